"""Loops on the border of what is lifted: like eager in any case; which are lifted is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt


def neg_step(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0] - 1, -1, -1):
        out[i] = x[i] * i
    return out


def neg_step_overlap(x):
    out = torch.zeros(x.shape[0] + 3, x.shape[1])
    for i in range(x.shape[0] - 1, -1, -1):
        out[i : i + 2] = x[i]
    return out


def step3(x):
    out = torch.zeros_like(x)
    for i in range(1, x.shape[0], 3):
        out[i] = x[i] + i
    return out


def step_sum(x):
    acc = torch.zeros(x.shape[1])
    for i in range(0, x.shape[0], 2):
        acc += x[i]
    return acc


def negative_index(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[-i] = x[i]
    return out


def negative_index1(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[-1 - i] = x[i]
    return out


def wrap_neg(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc += x[i - 1]
    return acc


def wrap_write(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i - 2] = x[i]
    return out


def reads_next(x):
    out = x * 1
    for i in range(x.shape[0] - 1):
        out[i] = out[i + 1] * 2
    return out


def reads_prev(x):
    out = x * 1
    for i in range(x.shape[0] - 1):
        out[i + 1] = out[i] * 0.5
    return out


def in_place_input_alias(x):
    y = x.view(-1)
    for i in range(x.shape[0]):
        y[i] = 3
    return x * 1


def transposed_alias(x):
    out = torch.zeros(x.shape[0], x.shape[0])
    t = out.t()
    for i in range(x.shape[0]):
        out[i] = x[i, 0]
        t[i] += 1
    return out


def diag_and_row(x):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        out[i] = x[i, 1]
        out[:, i] += x[i, 0]
    return out


def dtype_change(x):
    acc = torch.zeros(x.shape[1], dtype=torch.int64)
    for i in range(x.shape[0]):
        acc = acc + x[i]
    return acc


def dtype_down(x):
    acc = torch.zeros(x.shape[1], dtype=torch.float64)
    for i in range(x.shape[0]):
        acc += x[i]
    return acc


def int_acc(x):
    acc = torch.zeros(x.shape[1], dtype=torch.int32)
    for i in range(x.shape[0]):
        acc += (x[i] * 10).to(torch.int32)
    return acc


def u8_acc(x):
    acc = torch.zeros(x.shape[1], dtype=torch.uint8)
    for i in range(x.shape[0]):
        acc += (x[i] * 10).to(torch.uint8)
    return acc


def cond_write(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if i > 20:
            out[i] = x[i]
    return out


def continue_(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        if i == 21:
            continue
        acc = acc + x[i]
    return acc


def break_const(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        if i == 5:
            break
        acc = acc + x[i]
    return acc


def data_bounds(x):
    acc = torch.zeros(x.shape[1])
    n = int(x.sum().item()) % 7
    for i in range(n):
        acc = acc + x[i % x.shape[0]]
    return acc


def two_buffers_swap(x):
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    for i in range(x.shape[0]):
        a[i] = x[i] + b.sum()
        b[i] = 1
    return a, b


def write_scalar_read_later(x):
    out = torch.zeros(x.shape[0])
    s = torch.zeros(())
    for i in range(x.shape[0]):
        s += x[i].sum()
        out[i] = s
    return out, s


def min_and_read(x):
    m = torch.full((x.shape[1],), 1e9)
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        m = torch.minimum(m, x[i])
        out[i] = m
    return out, m


def overlap_add_then_mul(x):
    out = torch.ones(x.shape[0] + 2, x.shape[1])
    for i in range(x.shape[0]):
        out[i : i + 3] += x[i]
        out[i : i + 3] *= 2
    return out


def sub_reversed(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = x[i] - acc
    return acc


def div_acc(x):
    acc = torch.ones(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc / (1 + x[i])
    return acc


def abs_acc(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = (acc + x[i] - 0.5).abs()
    return acc


def acc_bcast(x):
    acc = torch.zeros(1)
    for i in range(x.shape[0]):
        acc = acc + x[i]
    return acc


def shape_change_first(x):
    acc = torch.zeros(())
    for i in range(x.shape[0]):
        acc = acc + x[i]
    return acc


def slice_neg(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[-i:] += 1
    return out


def slice_past_end(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i : i + 4] += 1
    return out


def slice_past_end_w(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[4 * i : 4 * i + 4] = i
    return out


def slice_strided(x):
    out = torch.zeros(x.shape[0] * 2, x.shape[1])
    for i in range(2):
        out[i::2] = x + i
    return out


def slice_strided2(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(3):
        out[i::2] = x[i::2] + i
    return out


def expanded_write(x):
    out = torch.zeros(1, x.shape[1]).expand(x.shape[0], x.shape[1]).clone()
    for i in range(x.shape[0]):
        out[i] += x[i]
    return out


def same_row_twice(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i // 2] = x[i]
    return out


def same_row_add(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i // 2] += x[i]
    return out


def modulo_write(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i % 3] = x[i]
    return out


def modulo_add(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i % 2] += x[i]
    return out


def square_index(x):
    out = torch.zeros(x.shape[0] * x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i * i] = x[i]
    return out


def upper(x):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(i, n):
            out[i, j] = x[i, 0] * x[j, 1]
    return out


def upper_add(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        for j in range(i):
            acc += x[i] * x[j]
    return acc


def ij_overlap(x):
    n = x.shape[0]
    out = torch.zeros(2 * n, x.shape[1])
    for i in range(n):
        for j in range(n):
            out[i + j] = x[i] * x[j]
    return out


def ij_conv(x):
    n = x.shape[0]
    out = torch.zeros(2 * n, x.shape[1])
    for i in range(n):
        for j in range(n):
            out[i + j] += x[i] * x[j]
    return out


def inner_reset(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        acc = torch.zeros(x.shape[1])
        for j in range(x.shape[0]):
            acc = acc + x[j] * x[i]
        out[i] = acc
    return out


def inner_not_reset(x):
    out = torch.zeros_like(x)
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            acc = acc + x[j] * x[i]
        out[i] = acc
    return out


def carried_index(x):
    out = torch.zeros(x.shape[0] * 2 + 1, x.shape[1])
    k = 0
    for i in range(x.shape[0]):
        out[k] = x[i]
        k += 2
    return out, k


def carried_index_var(x):
    out = torch.zeros(x.shape[0] * x.shape[0], x.shape[1])
    k = 0
    for i in range(x.shape[0]):
        out[k] = x[i]
        k += i
    return out, k


def last_value(x):
    y = x[0] * 0
    for i in range(x.shape[0]):
        y = x[i] * 2
    return y


def prev_value(x):
    y = x[0] * 0
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = y
        y = x[i] * 2
    return out


def list_of_prev(x):
    rows = []
    y = x[0]
    for i in range(x.shape[0]):
        rows.append(y)
        y = x[i] + 1
    return torch.stack(rows)


def list_two(x):
    rows = []
    for i in range(x.shape[0]):
        rows.append(x[i])
        rows.append(x[i] + 1)
    return torch.stack(rows)


def list_cond(x):
    rows = []
    for i in range(x.shape[0]):
        if i > 20:
            rows.append(x[i])
    return torch.stack(rows) if len(rows) > 0 else x


def list_mutated_after(x):
    rows = []
    buf = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        buf = x[i] * 1
        rows.append(buf)
        buf += 1
    return torch.stack(rows)


def list_view_of_buf(x):
    buf = torch.zeros_like(x)
    rows = []
    for i in range(x.shape[0]):
        buf[i] = x[i]
        rows.append(buf[0])
    return torch.stack(rows)


def buf_row_alias(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        r = out[i]
        r += x[i]
        r *= 2
    return out


def buf_row_alias_reused(x):
    out = torch.zeros_like(x)
    r = out[0]
    for i in range(x.shape[0]):
        r += x[i]
        r = out[i]
    return out


def setitem_mask(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i][x[i] > 0.5] = 1
    return out


def swap_rows(x):
    out = x * 1
    n = x.shape[0]
    for i in range(n // 2):
        t = out[i].clone()
        out[i] = out[n - 1 - i]
        out[n - 1 - i] = t
    return out


def nan_max(x):
    y = x.clone()
    y[0] = float("nan")
    m = torch.full((x.shape[1],), -1e9)
    for i in range(x.shape[0]):
        m = torch.maximum(m, y[i])
    return m


def max_builtin(x):
    m = torch.full((x.shape[1],), -1e9)
    for i in range(x.shape[0]):
        m = torch.where(x[i] > m, x[i], m)
    return m


def clamp_acc(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = (acc + x[i]).clamp(max=1.5)
    return acc


def float_acc(x):
    s = 0.0
    for _ in range(x.shape[0]):
        s = s + 0.5
    return x * s


def bool_acc(x):
    b = torch.zeros(x.shape[1], dtype=torch.bool)
    for i in range(x.shape[0]):
        b = b | (x[i] > 0.9)
    return b


def requires(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i].copy_(x[i])
        out[i].mul_(2)
    return out


def out_resized(x):
    out = torch.zeros(0, x.shape[1])
    for i in range(x.shape[0]):
        out = torch.cat([out, x[i : i + 1]])
    return out


def enum_zip(x):
    acc = torch.zeros(x.shape[1])
    for i, row in enumerate(x):
        acc += row * i
    return acc


def scaled_by_count(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc * i + x[i]
    return acc


def mean_running(x):
    m = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        m = m + (x[i] - m) / (i + 1)
    return m


def two_accs_cross(x):
    a, b = torch.zeros(x.shape[1]), torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        a = a + x[i]
        b = b + a
    return a, b


def col_row(x):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        out[i, :] = x[i, 0]
    for j in range(n):
        out[:, j] += out[:, j] * 2 + x[j, 1]
    return out


def write_flat_view(x):
    out = torch.zeros(x.shape[0], 4)
    flat = out.view(-1)
    for i in range(x.shape[0]):
        flat[4 * i : 4 * i + 4] = x[i, :4]
    return out


def write_flat_overlap(x):
    out = torch.zeros(x.shape[0], 4)
    flat = out.view(-1)
    for i in range(x.shape[0]):
        flat[3 * i : 3 * i + 4] = x[i, :4]
    return out


def diag_write(x):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        out[i, i] = x[i, 0]
    return out


def diag_antidiag(x):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        out[i, i] = x[i, 0]
        out[i, n - 1 - i] = x[i, 1]
    return out


def ext_loop_var(x):
    acc = torch.zeros(x.shape[1])
    i = 0
    for i in range(x.shape[0]):
        acc += x[i]
    return acc, i


def while_loop(x):
    acc = torch.zeros(x.shape[1])
    i = 0
    while i < x.shape[0]:
        acc += x[i]
        i += 1
    return acc, i


def write_then_read_all_after(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    s = out.sum(0)
    for i in range(x.shape[0]):
        out[i] -= s
    return out, s


def uninit_empty(x):
    out = torch.empty(x.shape[0], x.shape[1])
    out.fill_(2)
    for i in range(x.shape[0] - 1):
        out[i + 1] = x[i]
    return out


def check(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=3e-5, atol=3e-5, equal_nan=True)
        assert got.dtype is want.dtype
    elif isinstance(want, tuple | list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w)
    else:
        assert got == want
        assert type(got) is type(want)


LIFTED: list[Callable[..., Any]] = [
    prev_value, list_of_prev, nan_max, setitem_mask,
    neg_step, negative_index1, step3, step_sum, dtype_down, int_acc, slice_strided,
    slice_strided2, modulo_add, ij_conv, inner_reset, carried_index, last_value, expanded_write,
    list_mutated_after, buf_row_alias, requires, enum_zip, col_row, write_flat_view, diag_write,
    diag_antidiag, while_loop, write_then_read_all_after, uninit_empty, reads_next,
    same_row_add, list_two, dtype_change, acc_bcast, shape_change_first,
    cond_write, continue_, upper, upper_add, slice_past_end,
]  # fmt: skip
KEPT: list[Callable[..., Any]] = [
    neg_step_overlap, negative_index, wrap_neg, wrap_write, reads_prev,
    in_place_input_alias, transposed_alias, diag_and_row, u8_acc,
    break_const, data_bounds, two_buffers_swap, write_scalar_read_later, min_and_read,
    overlap_add_then_mul, sub_reversed, div_acc, abs_acc,
    slice_neg, slice_past_end_w, same_row_twice,
    modulo_write, square_index, ij_overlap, inner_not_reset, carried_index_var,
    list_cond, list_view_of_buf, buf_row_alias_reused,
    swap_rows, max_builtin, clamp_acc, bool_acc, out_resized,
    scaled_by_count, mean_running, two_accs_cross, write_flat_overlap, ext_loop_var,
]  # fmt: skip


# Both few and odd, one of them, neither; and once more both.
SIZES = [((4, 7), (40, 5), (47, 41)), pytest.param(((3, 5),), marks=pytest.mark.long)]


@pytest.mark.parametrize("fn", [*LIFTED, *KEPT], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", SIZES, ids=["each", "few"])
def test_like_eager(fn: Callable[..., Any], sizes: tuple[tuple[int, int], ...]) -> None:
    f = lt.script(fn)
    for n, m in sizes:
        x = torch.rand(n, m)
        other = x.clone()
        try:
            want = fn(other)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                f(x)
            continue
        check(f(x), want)
        torch.testing.assert_close(x, other)


@pytest.mark.parametrize("fn", LIFTED, ids=lambda f: f.__name__)
def test_lifted(fn: Callable[..., Any]) -> None:
    text = str(lt.script(fn).explain(torch.rand(47, 47)))
    assert ", 0 ops left to PyTorch" in text
    assert "not lifted" not in text


@pytest.mark.parametrize("fn", KEPT, ids=lambda f: f.__name__)
def test_kept(fn: Callable[..., Any]) -> None:
    f = lt.script(fn)
    text = str(f.explain(torch.rand(47, 47)))
    ways = ("not lifted", "once for each of", "iterations")
    assert any(way in text for way in ways) or ", 0 ops left to PyTorch" not in text
