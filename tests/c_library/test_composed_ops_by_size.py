"""Ops that exported C writes by other ops give what eager PyTorch gives, for no rows, one and many;
indices out of range give a status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from tests.c_library.calling import BAD_SIZE, OK, RAISED, Library


def running(x: Tensor) -> tuple[Tensor, ...]:
    high, low = torch.cummax(x, 0), x.cummin(0)
    return *high, *low, torch.diff(x, dim=0), x.diff(n=2, dim=1), torch.logcumsumexp(x, 0)


def reduced(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    most = x.scatter_reduce(1, i, v, "amax")
    least = x.scatter_reduce(1, i, v, "amin", include_self=False)
    return most, least, x.scatter_reduce(1, i, v, "sum", include_self=False)


def found(x: Tensor, q: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    s = x.sort()[0]
    return torch.searchsorted(s, q), torch.searchsorted(s, q, right=True), torch.isin(i, i[:3] + 1)


def bags(words: Tensor, offsets: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    most = F.embedding_bag(words, table, offsets, mode="max")
    return most, F.embedding_bag(words, table, offsets, mode="sum", include_last_offset=True)


def moved(theta: Tensor, x: Tensor) -> Tensor:
    grid = F.affine_grid(theta, (1, 3, 5, 6), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def bordered(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    wide = F.conv2d(x, w, padding="same", dilation=2)
    return wide, F.conv1d(x.flatten(2), v, padding="same")


def named(points: dict[str, Tensor], scale: float) -> Tensor:
    return points["x"] * scale + points["y"]


def _values(n: int) -> Tensor:
    x = torch.randint(0, 5, (n, 3)).float()
    return x.masked_fill_(torch.arange(n)[:, None] == 40, torch.nan)


def _rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(n, 9), torch.randint(0, 9, (n, 4)), torch.randn(n, 4)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "running": (running, lambda n: (_values(n),)),
    "reduced": (reduced, _rows),
    "found": (found, lambda n: (torch.randn(n), torch.randn(7), torch.randint(9, (n,)))),
    "bags": (
        bags,
        lambda n: (torch.randint(50, (n,)), torch.tensor([0, 0, n // 2, n]), torch.randn(50, 8)),
    ),
    "moved": (moved, lambda n: (torch.randn(1, 2, 3), torch.randn(1, 3, 4, n))),
    "bordered": (
        bordered,
        lambda n: (torch.randn(1, 2, 6, n), torch.randn(3, 2, 3, 4), torch.randn(3, 2, 5)),
    ),
    "named": (named, lambda n: ({"x": torch.randn(n), "y": torch.randn(n)}, 2.5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_eager_gives(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    program, inputs = PROGRAMS[name]
    lt.export_c(lt.script(program), tmp_path, inputs(50))
    library = Library(tmp_path)
    least = min((s.least for s in library.functions[name].sizes), default=0)
    for n in (0, 1, 2, 33, 70):
        args = inputs(n)
        status, results = library.results(name, *args)
        if n < least:
            assert status == BAD_SIZE
            continue
        assert status == OK
        expected = program(*args)
        rows = expected if isinstance(expected, tuple) else (expected,)
        for got, right in zip(results, rows, strict=True):
            torch.testing.assert_close(got, right, equal_nan=True, rtol=1e-4, atol=1e-5)


def counted(i: Tensor) -> Tensor:
    return torch.bincount(i, minlength=7)


def added(i: Tensor, j: Tensor, v: Tensor) -> Tensor:
    return torch.zeros(9, 7).index_put((i, j), v, accumulate=True)


def test_indices_out_of_range(tmp_path: Path) -> None:
    i, j, v = torch.randint(9, (40,)), torch.randint(7, (40,)), torch.randn(40)
    lt.export_c(lt.script(added), tmp_path / "a", (i, j, v))
    library = Library(tmp_path / "a")
    status, (got,) = library.results("added", i, j, v)
    assert status == OK
    torch.testing.assert_close(got, added(i, j, v))
    i[0], j[0] = -9, -7
    assert library.results("added", i, j, v)[0] == OK
    for wrong in (7, -8):  # places within the tensor, if only their sum is looked at
        i[0], j[3] = 1, wrong
        assert library.results("added", i, j, v)[0] == RAISED
    lt.export_c(lt.script(counted), tmp_path / "b", (j % 7,))
    library = Library(tmp_path / "b")
    status, (got,) = library.results("counted", j % 7)
    assert status == OK
    assert torch.equal(got, counted(j % 7))
    assert library.results("counted", j.abs() + 7)[0] == RAISED
    assert library.results("counted", -1 - j.abs())[0] == RAISED
