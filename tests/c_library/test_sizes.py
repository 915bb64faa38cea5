"""Sizes of exported C: each n >= 0 that the program takes; constants and arguments by `sizes=`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.c_library.calling import BAD_SIZE, OK, Library


def distances(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.cdist(a, b)
    return d, d.exp().sum(0)


def sequence(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.cumsum(0), x.sort(0).values, x.softmax(1).mean(0)


def recurrence(x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(h * 0.9 + x[t])
    return h


def columns(x: Tensor) -> Tensor:
    return torch.cat([x, x.sum(1, keepdim=True)], 1) * x.shape[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "distances": (distances, (torch.rand(50, 3), torch.rand(40, 3))),
    "sequence": (sequence, (torch.rand(50, 4),)),
    "recurrence": (recurrence, (torch.rand(50, 4),)),
    "columns": (columns, (torch.rand(50, 40),)),
}


def compared(
    library: Library, program: Callable[..., Any], sizes: tuple[int, ...], args: tuple[Tensor, ...]
) -> None:
    expected = program(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    outs = [torch.full_like(e, 7) for e in expected]
    assert library(program.__name__, sizes, args, outs) == OK, sizes
    for out, e in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, e, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_elements_and_one(name: str, tmp_path: Path) -> None:
    program, args = PROGRAMS[name]
    lt.export_c(lt.script(program), tmp_path, args)
    library = Library(tmp_path)
    torch.manual_seed(0)
    for n in (0, 1, 2, 33):
        for m in (0, 1, 2, 40):
            if name == "distances":
                compared(library, program, (n, m), (torch.rand(n, 3), torch.rand(m, 3)))
            elif name == "columns":
                compared(library, program, (n, m), (torch.rand(n, m),))
        if name not in ("distances", "columns"):
            compared(library, program, (n,), (torch.rand(n, 4),))


def products(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def test_sizes_that_are_fixed_and_kept(tmp_path: Path) -> None:
    x, y = torch.rand(50, 40), torch.rand(40, 3)
    chosen = {"x.shape[0]": 50, "y.shape[1]": None}
    lt.export_c(lt.script(products), tmp_path, (x, y), sizes=chosen)
    header = (tmp_path / "model.h").read_text()
    assert "v1 = x.shape[1] = y.shape[0], at least 0; v3 = y.shape[1], at least 0" in header
    assert "constant, as in the example: x.shape[0] = 50" in header
    library = Library(tmp_path)
    for k in (0, 1, 5, 90):
        for n in (0, 1, 2, 8):
            x, y, out = torch.rand(50, k), torch.rand(k, n), torch.zeros(50, n)
            assert library("products", (k, n), (x, y), [out]) == OK
            torch.testing.assert_close(out, x @ y, rtol=1e-5, atol=1e-5)


def test_a_batch_of_one_in_the_example(tmp_path: Path) -> None:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2)).eval()
    lt.export_c(lt.script(m), tmp_path, (torch.rand(1, 8),), sizes={"input.shape[0]": None})
    library = Library(tmp_path)
    for n in (0, 1, 2, 300):
        x, out = torch.rand(n, 8), torch.zeros(n, 2)
        assert library("forward", (n,), (x,), [out]) == OK
        torch.testing.assert_close(out, m(x).detach())


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"x.shape[0]": 60}, "x.shape[0] is 50 in the example"),
        ({"n": 60}, "no such size"),
    ],
)
def test_wrong_sizes(sizes: Mapping[str, int], words: str, tmp_path: Path) -> None:
    with pytest.raises(lt.CompileError) as caught:
        lt.export_c(
            lt.script(products), tmp_path, (torch.rand(50, 40), torch.rand(40, 3)), sizes=sizes
        )
    assert words in str(caught.value)
    assert "x.shape[0]" in str(caught.value)


def counted(x: Tensor) -> Tensor:
    return x[x > 0.5]


def test_results_that_the_data_size_of_no_elements_and_one(tmp_path: Path) -> None:
    lt.export_c(lt.script(counted), tmp_path, (torch.rand(50),))
    assert "v0 = x.shape[0], at least 0" in (tmp_path / "model.h").read_text()
    library = Library(tmp_path)
    for x in (torch.zeros(0), torch.ones(1), torch.zeros(1), torch.rand(7)):
        out, shape = torch.zeros(7), torch.zeros(1, dtype=torch.int64)
        assert library("counted", (len(x),), (x,), [(out, shape)]) == OK
        assert torch.equal(out[: int(shape)], x[x > 0.5])


def test_what_the_program_does_not_take(tmp_path: Path) -> None:
    def least(x: Tensor) -> Tensor:
        return x.min(0).values

    lt.export_c(lt.script(least), tmp_path, (torch.rand(50, 3),))
    assert "x.shape[0], at least 1" in (tmp_path / "model.h").read_text()
    library, out = Library(tmp_path), torch.zeros(3)
    assert library("least", (0,), (torch.rand(0, 3),), [out]) == BAD_SIZE
    x = torch.rand(1, 3)
    assert library("least", (1,), (x,), [out]) == OK
    assert torch.equal(out, x[0])
