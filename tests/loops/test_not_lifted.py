"""Programs whose loops must stay loops, or stop at PyTorch: results like eager in any case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt


def recurrence(x):
    h = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        h = torch.tanh(h + x[i])
    return h


def smoothed(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc * 0.9 + x[i]
    return acc


def prefix_sums(x):
    out = torch.zeros_like(x)
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc + x[i]
        out[i] = acc
    return out


def reads_the_buffer(x):
    out = torch.zeros(x.shape[0] + 1, x.shape[1])
    for i in range(x.shape[0]):
        out[i + 1] = out[i] * 0.5 + x[i]
    return out


def overlapping(x):
    out = torch.zeros(x.shape[0] + 4, x.shape[1])
    for i in range(x.shape[0]):
        out[i : i + 3] = x[i]
    return out


def in_pairs(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i // 2] = x[i]
    return out


def overwritten(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[0] = x[i]
        out[i] += 1
    return out


def sums_then_scales(x):
    out = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        out += x[i]
        out *= 0.5
    return out


def reads_a_sum(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + out.sum()
    return out


def data_dependent(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    where = (x[:, 0] * x.shape[0]).long()
    for i in range(x.shape[0]):
        out[where[i]] = x[i]
    return out


def breaks(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        if x[i, 0] > 0.9:
            break
        acc = acc + x[i]
    return acc


def through_a_view(x):
    out = torch.zeros_like(x)
    first = out[0]
    for i in range(x.shape[0]):
        out[i] = x[i] + first
        first += 1
    return out, first


def through_a_list(x):
    out = torch.zeros_like(x)
    both = [out, x]
    for i in range(x.shape[0]):
        both[0][i] += out.sum() + x[i]
    return out


def changes_the_input(x):
    for i in range(x.shape[0]):
        x[i] += 1
    return x * 2


def maybe_a_copy(x):
    out = torch.zeros_like(x)
    flat = out.reshape(-1)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return flat, out


def random_numbers(x):
    torch.manual_seed(7)
    acc = torch.zeros(x.shape[1])
    for _ in range(x.shape[0]):
        acc = acc + torch.rand(x.shape[1])
    return acc


def growing_rows(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc + x[: i + 1].sum(0)
    return acc


def last_of_list(x):
    rows = [x[0]]
    for i in range(x.shape[0]):
        rows.append(rows[-1] * 0.5 + x[i])
    return torch.stack(rows)


def length_of_list(x):
    rows = []
    for i in range(x.shape[0]):
        rows.append(x[i] * len(rows))
    return torch.stack(rows)


def returns_the_list(x):
    rows = []
    for i in range(x.shape[0]):
        rows.append(x[i] * 2)
    return rows, torch.stack(rows)


def same_object(x):
    acc = torch.zeros(x.shape[1])
    rows = []
    for i in range(x.shape[0]):
        acc += x[i]
        rows.append(acc)
    return torch.stack(rows)


def last_row(x):
    row = x[0]
    for i in range(x.shape[0]):
        row = x[i]
    row += 1
    return x * 2


def swapped(x):
    a, b = x[0] * 1, x[1] * 1
    for i in range(x.shape[0]):
        a, b = b, a + x[i]
    return a, b


def even_only(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        if i % 2 == 0:
            acc = acc + x[i]
    return acc


def narrow_floats(x):
    acc = torch.zeros(x.shape[1], dtype=torch.bfloat16)
    for i in range(x.shape[0]):
        acc = acc + x[i].bfloat16()
    return acc


def counts_floats(x):
    w = 1.0
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc + x[i] * w
        w = w * 0.9
    return acc


def changed_by_alias(x):
    out = torch.zeros_like(x)
    other = out
    for i in range(x.shape[0]):
        out[i] = x[i]
        if i == 1:
            other[0] = 7
    return out


def meeting(x):
    out = torch.ones(2 * x.shape[0] + 2, x.shape[1])
    for i in range(x.shape[0]):
        out[2 * i] = x[i]
        out[2 * i + 2] = x[i].sin()
    return out


def meeting_in_part(x):
    out = torch.ones(3 * x.shape[0] + 3, x.shape[1])
    for i in range(x.shape[0]):
        out[3 * i : 3 * i + 2] = x[i]
        out[3 * i + 4] = x[i].sin()
    return out


PROGRAMS: list[Callable[..., Any]] = [
    meeting, meeting_in_part,
    recurrence, smoothed, prefix_sums, reads_the_buffer, overlapping, overwritten, in_pairs,
    sums_then_scales, reads_a_sum, data_dependent, breaks, through_a_view, through_a_list,
    changes_the_input, maybe_a_copy, random_numbers, growing_rows, last_of_list, length_of_list,
    returns_the_list, same_object, last_row, swapped, even_only, narrow_floats, counts_floats,
    changed_by_alias,
]  # fmt: skip


def check(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    else:
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_like_eager(fn: Callable[..., Any]) -> None:
    f = lt.script(fn)
    for n in (2, 3, 33, 50):
        for m in (5, 40):
            x = torch.rand(n, m)
            other = x.clone()
            check(f(x), fn(other))
            torch.testing.assert_close(x, other)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (recurrence, "once for each of s0 steps"),
        (reads_the_buffer, "reads other elements of what the loop writes"),
        (overlapping, "not lifted: two iterations may write one element (getitem"),
        (in_pairs, "not lifted: two iterations may write one element (getitem"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_explained(fn: Callable[..., Any], words: str) -> None:
    assert words in str(lt.script(fn).explain(torch.rand(50, 40)))


def test_places_that_are_counted_are_in_no_key() -> None:
    """Each iteration of a loop that the driver runs is looked up by sizes alone."""
    from lowtide.execute.region import Region

    missed: list[str] = []
    find = Region._miss

    def miss(self: Region, values: Any) -> Any:
        missed.append(self.context.name)
        return find(self, values)

    f, x = lt.script(meeting), torch.rand(60, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Region, "_miss", miss)
        torch.testing.assert_close(f(x), meeting(x))
    assert len(missed) < 10
