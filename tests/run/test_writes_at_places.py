"""Writes into pairs at index vectors: each chunk of the pairs takes what lies in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak
from lowtide.ops.writes import put_in_part

N, M, K = 1601, 1403, 900  # pairs of 9 MB
INF = float("inf")


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def number(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows, columns] = 0
    return d.sum(1)


def along_columns(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Any:
    d = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    d[rows, columns] = INF
    return d.min(0)


def values(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows, columns] = v
    return torch.logsumexp(-d, 1)


def out_of_place(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    return d.index_put((rows, columns), v).mean(0) + d.mean()


def added(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d.index_put_((rows, columns), v, accumulate=True)
    return (d * d).sum(1)


def whole_rows(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows] = 0.0
    d[:, columns] = 2.0
    return torch.exp(-d).sum(1)


def filled(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d.index_fill_(0, rows[:20], 0.5)
    return d.index_fill(1, columns[:20], 3.0).sum(1)


def flags(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b).repeat(1, 4) < 0.5
    d[rows, columns] = True
    return d.sum(1)


def grid(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows[:30, None], columns[None, :20]] = v[:20]
    return d.amax(1)


FUNCTIONS = [number, along_columns, values, out_of_place, added, whole_rows, filled, flags, grid]


def given(k: int = K, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.rand(n, 3, generator=generator, dtype=dtype) for n in (N, M))
    places = torch.randperm(N * M, generator=generator)[:k]
    v = torch.rand(k, generator=generator, dtype=dtype)
    return [a, b, places // M, places % M - M * (places % 3 == 0), v]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_pairs_are_not_stored(fn: Any) -> None:
    args = given()
    compiled: Any = lt.script(fn)
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-5)
    measured = measure_peak(lambda: compiled(*args))[0].peak_bytes
    assert measured < 6 << 20
    assert compiled.memory(*args).peak_bytes < 16 << 20


@pytest.mark.parametrize("fn", [number, values, out_of_place, added, whole_rows])
def test_gradients(fn: Any) -> None:
    args = given(dtype=torch.float64)
    wanted = [x.requires_grad_() for x in args if x.is_floating_point()]
    found, expected = (
        torch.autograd.grad(
            sum(y.sin().sum() for y in _floats(f(*args))), wanted, allow_unused=True
        )
        for f in (lt.script(fn), fn)
    )
    torch.testing.assert_close(found, expected)


def _floats(found: Any) -> list[Tensor]:
    return [x for x in (found if isinstance(found, tuple) else [found]) if x.is_floating_point()]


def test_repeated_places_of_equal_values_and_no_places() -> None:
    args = given()
    args[2], args[3] = args[2].repeat(2), args[3].repeat(2)
    for fn in (number, along_columns):
        torch.testing.assert_close(lt.script(fn)(*args), fn(*args), rtol=1e-4, atol=1e-5)
    args = given(0)
    for fn in (number, values, added, out_of_place):
        torch.testing.assert_close(lt.script(fn)(*args), fn(*args), rtol=1e-4, atol=1e-5)


def test_nan_among_pairs_and_values() -> None:
    args = given()
    args[0][3], args[4][5] = float("nan"), float("nan")
    for fn in (values, along_columns, added):
        torch.testing.assert_close(
            lt.script(fn)(*args), fn(*args), rtol=1e-4, atol=1e-5, equal_nan=True
        )


@pytest.mark.parametrize("bad", [N, -N - 1])
def test_an_index_out_of_range_raises_torchs_error(bad: int) -> None:
    args = given()
    args[2][7] = bad
    with pytest.raises(IndexError) as expected:
        number(*args)
    with pytest.raises(IndexError) as found:
        lt.script(number)(*args)
    assert str(expected.value) in str(found.value)


def aliased(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> tuple[Tensor, Any]:
    d = squared(a, b)
    e = d.t()
    d[rows, columns] = v
    return e.sum(0), d.sum(0)


def read_before(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    total = d.sum(1)
    d[rows, columns] += 1
    d[rows, columns] = d[rows, columns] * v
    return d.sum(1) + total


def wider(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, v: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows[:3], 0] = v[:3]
    d[rows] = a[rows, :1]
    d[1:, columns] = 1.0
    return d.sum(1)


@pytest.mark.parametrize("fn", [aliased, read_before, wider])
def test_other_writes_are_right(fn: Any) -> None:
    args = given()
    torch.testing.assert_close(lt.script(fn)(*args), fn(*args), rtol=1e-4, atol=1e-4)


def test_parts_together_are_the_whole() -> None:
    x = torch.arange(30.0).view(5, 6)
    rows, columns = torch.tensor([0, 4, -2, 1]), torch.tensor([5, -6, 2, 1])
    v = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = x.clone()
    expected[rows, columns] = v
    every = torch.arange(5)[:, None], torch.arange(6)
    for dim, size in enumerate(x.shape):
        parts = []
        for span in torch.arange(size).split(2):
            places = list(every)
            places[dim] = places[dim][span]
            part = x.index_select(dim, span)
            parts.append(put_in_part(part, rows, columns, v, *places, 5, 6, False))
        assert torch.equal(torch.cat(parts, dim), expected)
