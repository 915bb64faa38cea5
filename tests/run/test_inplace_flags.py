"""`inplace=True` of activations: what they are given changes, whoever looks at it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt


def discarded(x):
    y = x - 0.5
    F.relu(y, True)
    return y


def by_keyword(x):
    y = x - 0.5
    z = F.elu(y, inplace=True)
    return y, z + y


def through_a_view(x):
    y = x - 0.5
    F.leaky_relu(y[1:], 0.3, True)
    F.hardtanh(y[:, 0], -0.1, 0.1, inplace=True)
    return y


def read_before(x):
    y = x - 0.5
    before = y + 1
    F.threshold(y, 0.1, 2.0, True)
    return before, y


def of_an_input(x):
    return F.silu(x, inplace=True) + 1


def of_an_input_by_library(x):
    return torch.sort(F.relu6(x, True)).values


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LeakyReLU(0.3, inplace=True)
        self.second = nn.Hardswish(inplace=True)
        self.third = nn.ReLU(inplace=False)

    def forward(self, x):
        y = x - 0.5
        self.first(y)
        self.second(y[2:])
        z = self.third(y)
        return y, z


PROGRAMS: list[Any] = [
    discarded, by_keyword, through_a_view, read_before, of_an_input, of_an_input_by_library,
    Layers(),
]  # fmt: skip
ENTRIES: dict[str, Callable[[Any, Tensor], Any]] = {
    "script": lambda program, x: lt.script(program),
    "trace": lambda program, x: lt.trace(program, (x.clone(),)),
}


def tensors(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", "Layers"))
def test_as_in_pytorch(program: Any, entry: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 7)
    mine, theirs = x.clone(), x.clone()
    got, want = ENTRIES[entry](program, x)(mine), program(theirs)
    for a, b in zip([*tensors(got), mine], [*tensors(want), theirs], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_that_only_the_call_knows(flag: bool) -> None:
    def program(x, flag: bool):
        y = x - 0.5
        z = F.relu(y, flag)
        return y, z

    x = torch.rand(6, 7)
    for got, want in zip(lt.script(program)(x, flag), program(x, flag), strict=True):
        torch.testing.assert_close(got, want)


def test_gradients() -> None:
    torch.manual_seed(0)
    x, w = torch.rand(6, 7, requires_grad=True), torch.rand(7, 7, requires_grad=True)

    def program(x, w):
        y = (x - 0.5) @ w
        F.leaky_relu(y, 0.2, inplace=True)
        return F.elu(y * 2 - 1, 0.5, True)

    got, want = (
        torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (lt.script(program), program)
    )
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_it_is_part_of_the_kernel_before_it() -> None:
    def program(x, mean, var):
        return F.relu(F.batch_norm(x, mean, var), inplace=True)

    found = lt.script(program).explain(torch.rand(2, 3, 8, 8), torch.rand(3), torch.rand(3))
    assert "1 kernel, 0 ops left to PyTorch" in str(found)
