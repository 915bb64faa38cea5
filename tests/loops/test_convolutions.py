"""Convolutions written by hand are PyTorch's, are whole kernels, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.texpr.index import Size, as_index, axis
from lowtide.texpr.index_ranges import floordiv, mod, nonnegative
from tests.loops import convolutions as by_hand

Case = tuple[Callable[..., Any], Callable[..., Tensor], tuple[Any, ...]]


def sized(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=made, dtype=torch.float64) for s in shapes)


def transposed(x: Tensor, w: Tensor, S: int) -> Tensor:
    return F.conv_transpose2d(x, w, stride=S)


IMAGE, WEIGHTS = (2, 3, 11, 13), (4, 3, 3, 3)
LARGE = (1, 2, 37, 40)  # sizes that are symbols
CASES: list[Case] = [
    *(
        (by_hand.by_places, lambda x, w, S, D: F.conv2d(x, w, stride=S, dilation=D), (s, w, S, D))
        for s, w, S, D in (
            (IMAGE, WEIGHTS, 1, 1),
            (IMAGE, WEIGHTS, 2, 1),
            (IMAGE, WEIGHTS, 1, 2),
            (IMAGE, WEIGHTS, 3, 2),
            (LARGE, (3, 2, 3, 3), 2, 1),
        )
    ),
    *(
        (fn, lambda x, w, S: F.conv2d(x, w, stride=S), (s, w, S))
        for fn in (by_hand.by_outputs, by_hand.by_patches)
        for s, w, S in ((IMAGE, WEIGHTS, 1), (LARGE, (3, 2, 4, 4), 2))
    ),
    *(
        (by_hand.along_a_line, lambda x, w, S: F.conv1d(x, w, stride=S), ((2, 3, n), (4, 3, 5), S))
        for n, S in ((41, 1), (60, 3))
    ),
    *(
        (
            by_hand.by_columns,
            lambda x, w, S, D, P: F.conv2d(x, w, stride=S, dilation=D, padding=P),
            (s, w, S, D, P),
        )
        for s, w, S, D, P in (
            (IMAGE, WEIGHTS, 1, 1, 1),
            (IMAGE, WEIGHTS, 2, 1, 1),
            (IMAGE, WEIGHTS, 2, 2, 1),
            (LARGE, (3, 2, 3, 3), 2, 1, 1),
        )
    ),
    *(
        (fn, transposed, ((2, 3, 6, 7), (3, 4, K, K), S))
        for fn in (by_hand.transposed_by_inputs, by_hand.transposed_by_places)
        for K, S in ((3, 1), (3, 2), (2, 3))
    ),
    (by_hand.transposed_by_inputs, transposed, ((1, 2, 34, 36), (2, 3, 3, 3), 2)),
    *(
        (fn, lambda x, w, G: F.conv2d(x, w, groups=G), ((2, 4, 11, 13), (6, 2, 3, 3), 2))
        for fn in (by_hand.by_groups, by_hand.by_views_of_groups, by_hand.by_channels_of_groups)
    ),
    (
        by_hand.by_channels,
        lambda x, w: F.conv2d(x, w, groups=x.shape[1]),
        ((2, 4, 11, 13), (4, 1, 3, 3)),
    ),
    (by_hand.in_three_dims, F.conv3d, ((1, 3, 7, 6, 9), (4, 3, 3, 3, 3))),
    (by_hand.means, lambda x: F.avg_pool2d(x, 3, 2), ((2, 3, 12, 15),)),
    (by_hand.means, lambda x: F.avg_pool2d(x, 3, 2), ((1, 2, 36, 41),)),
]


@pytest.mark.parametrize(
    ("fn", "library", "given"), CASES, ids=lambda x: getattr(x, "__name__", None)
)
def test_is_the_convolution(
    fn: Callable[..., Any], library: Callable[..., Tensor], given: tuple[Any, ...]
) -> None:
    tensors = sized(*(x for x in given if isinstance(x, tuple)))
    rest = [x for x in given if not isinstance(x, tuple)]
    inputs = [t.requires_grad_() for t in tensors]
    f = lt.script(fn)
    with faults.strict():
        got, want = f(*inputs, *rest), library(*inputs, *rest)
        torch.testing.assert_close(got, want)
        back = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).double()
        for g, e in zip(
            torch.autograd.grad(got, inputs, back),
            torch.autograd.grad(want, inputs, back),
            strict=True,
        ):
            torch.testing.assert_close(g, e)
    report = str(f.explain(*inputs, *rest))
    assert "not lifted" not in report
    if fn is not by_hand.by_columns:  # at its end is a view
        assert ", 0 ops left to PyTorch" in report


def test_compiled_once_for_sizes_and_strides() -> None:
    """A stride is a constant of the program, as its slices have another form for each."""
    f = lt.script(by_hand.by_outputs)
    (w,) = sized((3, 2, 3, 3))
    for size in (40, 43, 52):
        (x,) = sized((1, 2, size, size))
        torch.testing.assert_close(f(x, w, 2), F.conv2d(x, w, stride=2))
    assert str(f.explain(x, w, 2)).count("compiled again") <= 1
    torch.testing.assert_close(f(x, w, 3), F.conv2d(x, w, stride=3))


def test_no_columns_are_stored() -> None:
    """The gradient of a strided unfold is a convolution of what comes back, by phases."""
    x, w = sized((2, 8, 40, 40), (8, 8, 3, 3))
    x.requires_grad_()
    stages = dict(lt.script(by_hand.by_columns).stages(x, w, 2, 1, 1))
    normal = stages["backward normal form"]
    assert ":72" not in normal  # 8 channels by 9 places
    sums = [line for line in normal.splitlines() if "sum[" in line]
    assert len(sums) == 1
    assert "%" not in sums[0]
    assert "//" not in sums[0].replace("((s0 + 1) // 2)", "")


# ---- what stays as it is -----------------------------------------------------------------------


def overlapping(x, w, S):
    K, (B, _, H, W) = w.shape[2], x.shape
    out = torch.zeros(B, w.shape[1], (H - 1) * S + K, (W - 1) * S + K, dtype=x.dtype)
    for i in range(H):
        copy = torch.einsum("bcw,cokl->bokw", x[:, :, i], w)
        out[:, :, i * S : i * S + K, :W] = copy
    return out


def test_overlapping_writes_stay_a_loop() -> None:
    x, w = sized((2, 3, 34, 36), (3, 4, 3, 3))
    f = lt.script(overlapping)
    torch.testing.assert_close(f(x, w, 2), overlapping(x, w, 2))
    assert "overlap" in str(f.explain(x, w, 2))


def shifted(x):
    n = int(x.shape[0] * 0.5)
    total = torch.zeros((), dtype=x.dtype)
    for i in range(3):
        total = total + x[i : i + n].sum()
    return total


def test_what_is_unknown_is_told() -> None:
    (x,) = sized((50,))
    f = lt.script(shifted)
    torch.testing.assert_close(f(x), shifted(x))
    report = str(f.explain(x))
    assert "a size that is known only at run time: what `int` gives (getitem at" in report


def divided(x, parts):
    n = x.shape[0] // parts
    out = torch.zeros(parts, x.shape[1], dtype=x.dtype)
    for i in range(parts):
        out[i] = x[i * n : (i + 1) * n].sum(0)
    return out


def test_a_divisor_is_a_constant_only_where_that_answers() -> None:
    """Sizes divided by an int of the call are left to Python until something asks for them."""
    f = lt.script(divided)
    (x,) = sized((60, 5))
    for parts in (2, 3, 5):
        torch.testing.assert_close(f(x, parts), divided(x, parts))
    assert "not lifted" not in str(f.explain(x, 5))

    @lt.script
    def free(x: Tensor, n: int):
        return x * 2, n // 3, 7 // n

    for n in range(1, 40):
        assert free(x, n)[1:] == (n // 3, 7 // n)
    assert str(free.explain(x, 3)).count("compiled again") == 0


# ---- index arithmetic --------------------------------------------------------------------------


def test_an_axis_within_a_remainder_is_not_linear() -> None:
    """63 - r + r % 2 at r = 64 is -1, though it does not fall from 0 to 1."""
    r = axis("r", 65)
    assert not nonnegative(63 - r + mod(r, 2))
    assert nonnegative(64 - r + mod(r, 2))
    assert nonnegative(r - 2 * floordiv(r, 2))
    assert nonnegative(floordiv(as_index(Size("n", 33)) + 1, 2) - 17)
    assert not nonnegative(floordiv(as_index(Size("n", 33)) + 1, 2) - 18)
    assert not nonnegative(2 * floordiv(r, 2) - r)


def test_a_division_within_a_division_is_not_linear() -> None:
    """A size of rows // 2 also divides the element's index: it is never replaced by 0."""
    n = floordiv(as_index(Size("n", 33)), 2)
    k = axis("k", as_index(Size("m", 33)))
    assert not nonnegative(n - 1 - floordiv(k, n))
    assert nonnegative(floordiv(k, n) + n)
