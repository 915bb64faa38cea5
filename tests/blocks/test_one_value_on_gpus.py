"""A sum that two kernels compute is added up by both in one order, or stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton import kernels as triton_kernels
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.tile.group import RECOMPUTED
from lowtide.tile.summation import order_in_blocks, two_orders


def nearest(a: Tensor, b: Tensor) -> Tensor:
    s = (a[:, None] - b[None]).abs().sum(-1)
    return (s <= s.min()).sum()


def product(a: Tensor, b: Tensor) -> Tensor:
    s = torch.tanh(a @ b.T / 40.0)
    return (s >= s.max()).sum()


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(150, 33), torch.randn(160, 33)


def again(made: list[BlockKernels]) -> list[str]:
    return [n for e in made for g in e.groups for n in g.defs if n.endswith(RECOMPUTED)]


@pytest.mark.parametrize("fn", [nearest, product])
def test_one_order(fn: Callable[..., Tensor], made: list[BlockKernels]) -> None:
    compiled = lt.script(fn)
    assert int(compiled(*given())) == 1
    assert again(made)
    for executable in made:
        assert not two_orders(executable.plans, executable.groups, order_in_blocks)


def test_what_has_two_orders_is_stored(
    made: list[BlockKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_kernels, "recomputed", lambda *_: frozenset())
    assert int(lt.script(nearest)(*given())) == 1
    assert not again(made)
