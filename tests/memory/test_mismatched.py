"""Operands of different dtypes: what PyTorch refuses is known before the call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.memory import mismatched

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


def of(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.ones(*shape).to(dtype)


# Arguments, for the dtypes of three operands.
CALLS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten.mm.default: lambda a, b, _: (of(a, 4, 4), of(b, 4, 4)),
    aten.addmm.default: lambda a, b, c: (of(a, 4), of(b, 4, 4), of(c, 4, 4)),
    aten.mv.default: lambda a, b, _: (of(a, 4, 4), of(b, 4)),
    aten.addmv.default: lambda a, b, c: (of(a, 4), of(b, 4, 4), of(c, 4)),
    aten.convolution.default: lambda a, b, _: (
        *(of(a, 1, 2, 6, 6), of(b, 2, 2, 3, 3), None),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    aten.index_add.default: lambda a, b, _: (of(a, 4, 4), 0, torch.tensor([0, 1]), of(b, 2, 4)),
    aten.index_add_.default: lambda a, b, _: (of(a, 4, 4), 0, torch.tensor([0, 1]), of(b, 2, 4)),
    aten.native_layer_norm.default: lambda a, b, c: (of(a, 4, 4), [4], of(b, 4), of(c, 4), 1e-5),
    aten.native_group_norm.default: lambda a, b, c: (
        *(of(a, 2, 4, 4), of(b, 4), of(c, 4)),
        *(2, 4, 4, 2, 1e-5),
    ),
    aten.native_batch_norm.default: lambda a, b, c: (
        *(of(a, 4, 4), of(b, 4), of(c, 4)),
        *(None, None, True, 0.1, 1e-5),
    ),
}


def test_every_op_is_tried() -> None:
    assert CALLS.keys() == mismatched._ALIKE.keys()


@pytest.mark.parametrize("func", CALLS, ids=str)
def test_only_what_pytorch_refuses(func: Any) -> None:
    refused = 0
    for dtypes in itertools.product(DTYPES, repeat=3):
        args = CALLS[func](*dtypes)
        try:
            mismatched.check(func, args)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError):
                func(*args)
    assert refused


def product(x, w):
    return torch.relu(x @ w)


def convolved(x, w):
    return F.conv2d(x, w)


def test_the_call_is_known_to_fail() -> None:
    for fn, x, w in [
        (product, torch.rand(40, 50), torch.rand(50, 60, dtype=torch.float64)),
        (convolved, torch.rand(2, 3, 20, 20), torch.rand(4, 3, 3, 3, dtype=torch.float64)),
    ]:
        fails = lt.script(fn).memory(x, w).fails
        assert f"test_mismatched.py:{fn.__code__.co_firstlineno + 1}" in fails
        assert "one dtype, but got float32, float64" in fails
        with pytest.raises(RuntimeError):
            lt.script(fn)(x, w)
        assert not lt.script(fn).memory(x, w.float()).fails
