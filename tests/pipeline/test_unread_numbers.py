"""A number that nothing reads, but that Python may refuse to make, is made beside the kernels: it
ends no region."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import lowtide as lt


def sizes(x: Tensor, k: int) -> Tensor:
    a = x * 2
    rows = x.shape[0] // k  # noqa: F841
    return (a * 3).sum(1)


def items(x: Tensor, k: list[int]) -> Tensor:
    a = x * 2
    last = k[-1]  # noqa: F841
    part = k[0] % k[1]  # noqa: F841
    return (a * 3).sum(1)


def floats(x: Tensor, k: float) -> Tensor:
    a = x * 2
    scale = 1.0 / k  # noqa: F841
    depth = math.log(k)  # noqa: F841
    return (a * 3).sum(1)


@pytest.mark.parametrize(
    ("function", "good", "bad", "error"),
    [
        (sizes, 2, 0, ZeroDivisionError),
        (items, [1, 2], [1, 0], ZeroDivisionError),
        (floats, 2.0, -1.0, ValueError),
    ],
)
def test_one_kernel_and_the_error(function, good, bad, error) -> None:
    x = torch.rand(40, 3)
    compiled = lt.script(function)
    for _ in range(2):
        assert torch.allclose(compiled(x, good), function(x, good))
        with pytest.raises(error):
            compiled(x, bad)
    found = compiled.explain(x, good)
    assert len(found.kernels) == 1
    assert found.torch_ops == ()
