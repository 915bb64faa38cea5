"""Rows that a task reads again are held in its buffers, and vectors lie along heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.index_ranges import floordiv, mod
from lowtide.tile.items import along_lanes
from tests.texts import kernels_in


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x), (x.shape[1],))


def stage(fn: Any, name: str, *args: Tensor) -> str:
    stages: Any = lt.script(fn).stages(*args)
    return "\n".join(kernels_in(text) for title, text in stages if title == name)


def test_a_costly_value_of_a_row_is_computed_once() -> None:
    assert stage(normed, "tile program", torch.randn(64, 300)).count("erf(") == 1


@pytest.mark.parametrize("columns", [1, 33, 5000, 40])
def test_other_sizes(columns: int) -> None:
    compiled = lt.script(normed)
    compiled(torch.randn(64, 300))
    x = torch.randn(50, columns)
    torch.testing.assert_close(compiled(x), normed(x), rtol=1e-4, atol=1e-4)


def test_long_rows_are_not_held() -> None:
    compiled = lt.script(normed)
    compiled(torch.randn(64, 300))
    x = torch.randn(64, 100_000)
    compiled(x)
    assert compiled.memory(x).peak_bytes < x.numel() * 4 + 1_000_000


def test_nests_of_the_same_points_are_one() -> None:
    """A value that is stored and summed up along columns."""

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.exp(x) * y
        return z, z.sum(0)

    text = stage(both, "tile program", torch.randn(300, 200), torch.randn(300, 200))
    assert text.count("nest (") == 2, text


def test_sums_that_are_stored_share_a_nest() -> None:
    """Four sums of the gradient of a norm; what is computed for one of them stands between."""

    def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 4, w, b))

    args = [torch.randn(s, requires_grad=True) for s in ((2, 32, 32, 32), (32,), (32,))]
    text = stage(gated, "backward tile program", *args)
    first, _ = text.split("kernel k1")
    assert first.count("= sum[") == 4
    sums = [nest for nest in first.split("  nest (") if "= sum[" in nest]
    assert len(sums) == 1, text
    got = torch.autograd.grad(lt.script(gated)(*args).sum(), args)
    wide = [a.detach().double().requires_grad_() for a in args]
    want = torch.autograd.grad(gated(*wide).sum(), wide)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("by", "start", "step"), [(32, 0, 0), (16, 16, 0), (24, 0, None), (32, 3, None), (8, 0, None)]
)
def test_lanes_within_a_run(by: int, start: int, step: int | None) -> None:
    j = Axis("j", as_index(1024))
    at = as_index(j) + start
    found = along_lanes(floordiv(at, as_index(by)), j, 16)
    assert (None if found is None else found.const) == step
    rest = along_lanes(mod(at, as_index(by)), j, 16)
    assert (None if rest is None else rest.const) == (None if step is None else 1)


def test_heads_lie_side_by_side() -> None:
    j = Axis("j", as_index(1024))
    within = mod(as_index(j), as_index(256))
    head, unit = floordiv(within, as_index(32)), mod(within, as_index(32))
    found = along_lanes(head * 4096 + unit, j, 16)
    assert found is not None
    assert found.const == 1
    assert along_lanes(head * as_index(j), j, 16) is None


@pytest.mark.parametrize("size", [8, 16, 24, 32, 48])
@pytest.mark.parametrize("rows", [1, 30])
def test_heads(size: int, rows: int) -> None:
    """The gradient of three tensors of heads that are cut out of one."""

    def attention(x: Tensor) -> Tensor:
        q, k, v = x.view(2, x.shape[1], 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    given = torch.randn(2, rows, 3 * 4 * size)
    grads: list[Tensor] = []
    for fn in (attention, lt.script(attention)):
        x = given.clone().requires_grad_()
        fn(x).sin().sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
