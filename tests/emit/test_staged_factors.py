"""Factors of products that are more than a load lie in buffers of a tile, as plain ones do."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.ir.dtypes import f32
from lowtide.texpr.expr import load
from lowtide.texpr.index import Axis, as_index
from lowtide.tile import items


def plain(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    del u
    q, k, v = t.view(1, t.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v)


def biased(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    q, k, v = (t + u).view(1, t.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v)


def rotated(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    q, k, v = t.view(1, t.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4).contiguous()
    k = k * u[:16] + torch.cat([-k[..., 8:], k[..., :8]], -1) * u[16:32]
    return F.scaled_dot_product_attention(q, k, v)


def masked(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    q, k, v = t.view(1, t.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
    rows = torch.arange(t.shape[1]).unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(rows * u[:1]).cos() + t[0, :, 0])


def added(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    q, k, v = t.view(1, t.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
    bias = u[: t.shape[1]].unsqueeze(1) - u[: t.shape[1]]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@pytest.mark.parametrize("length", [40, 133, 190])
@pytest.mark.parametrize("f", [plain, biased, rotated, masked, added])
def test_attention_of_views(f: object, length: int) -> None:
    torch.manual_seed(length)
    t, u = torch.randn(1, length, 192), torch.randn(192)
    c = lt.script(f)  # pyright: ignore[reportArgumentType]
    expected = f(t.double(), u.double()).float()  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(c(t, u), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("f", [plain, biased, rotated])
def test_keys_are_transposed_by_blocks_of_registers(f: object) -> None:
    t, u = torch.randn(1, 1024, 192), torch.randn(192)
    stages = dict(lt.script(f).stages(t, u))  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    assert "transposed" in stages["tile program"]


def neighbours(x: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    here = x[:, None].expand(-1, idx.shape[1], -1)
    return torch.cat([here, x[idx] - here], -1)


@pytest.mark.parametrize("rows", [37, 64])
def test_a_row_whose_index_is_clamped_is_not_copied_as_a_whole(rows: int) -> None:
    """`x[i, clamp(k, 3)]` for k below 6: beyond k = 2 lies the next row, or no memory of x."""
    torch.manual_seed(rows)
    x, idx = torch.randn(rows, 3), torch.randint(0, rows, (rows, 5))
    c = lt.script(neighbours)
    assert "transposed" in dict(c.stages(x, idx))["tile program"]  # pyright: ignore[reportAttributeAccessIssue]
    torch.testing.assert_close(c(x, idx), neighbours(x, idx), rtol=0, atol=0)


def test_a_mask_that_heads_share_does_not_join_them() -> None:
    """Tiles of all heads together would be too large for buffers."""
    t, u = torch.randn(1, 1024, 192), torch.randn(192)
    (text,) = (s for title, s in lt.script(masked).stages(t, u) if title == "tile program")
    assert re.search(r"grid \(\w+:4 by 1\)", text)


def test_heads_beside_each_other_are_no_windows() -> None:
    """`x[16 * head + i]`, for i below 16; but `x[4 * head + i]` overlaps."""
    head, i = Axis("head", as_index(4)), Axis("i", as_index(16))
    apart = load("x", [as_index(head) * 16 + as_index(i)], f32)
    overlapping = load("x", [as_index(head) * 4 + as_index(i)], f32)
    assert not items._overlaps(apart, (i,))
    assert items._overlaps(overlapping, (i,))
    assert not items._overlaps(load("x", [as_index(i)], f32), (i,))
