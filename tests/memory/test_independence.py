"""Along which axis a program is cut: never along one that its results depend on as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer

X = (300, 400)
IMAGES = (6, 4, 40, 50)


def cuts(fn: Callable[..., object], *shapes: tuple[int, ...]) -> list[tuple[int | None, ...]]:
    """The dims of the operands along which each section of the program is cut, tensors only."""
    compiled = lt.script(fn)
    args = tuple(torch.empty(s, device="meta") for s in shapes)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    return [
        tuple(
            None if cut is None else cut.dim
            for v, cut in zip(c.inputs, c.cuts, strict=True)
            if v in driver.function.params
        )
        for c in candidates(Outer(driver, values))
    ]


def softmax_rows(x):
    return torch.softmax(x, 1)


def softmax_columns(x):
    return torch.softmax(x, 0)


def cumulative_by_name(x):
    return torch.cumsum(x, dim=1)


def descending(x):
    return torch.sort(x, descending=True).values


def best_columns(x):
    return torch.topk(x, 90, 0).values


def turned(x):
    return torch.sort(x.t(), 1).values


def flipped_rows(x):
    return torch.flip(x, (0,))


def rolled(x):
    return torch.roll(x, 3, 1)


def everything(x):
    return torch.softmax(x.reshape(-1), 0)


def positions(x):
    return x * torch.arange(300)[:, None]


def lower_half(x):
    return x.tril()


def drawn(x):
    return F.rrelu(x, 0.1, 0.4, training=True)  # PyTorch says that it is pointwise


def scaled_by_its_size(x):
    return x / x.shape[0]


def batch(x):
    return torch.sort(F.relu(F.max_pool2d(x, 2)), 2).values


def pairs_of_rows(x, y):
    return torch.softmax(x @ y.t(), 1)


def both(x, y):
    return torch.cumsum(x * y, 1)


def both_later(x, y):
    return torch.cumsum(x, 1) + y.exp()


TABLE: list[tuple[Any, tuple[tuple[int, ...], ...], list[tuple[int | None, ...]]]] = [
    (softmax_rows, (X,), [(0,)]),
    (softmax_columns, (X,), [(1,)]),
    (cumulative_by_name, (X,), [(0,)]),
    (descending, (X,), [(0,)]),
    (best_columns, (X,), [(1,)]),
    (turned, (X,), [(1,)]),
    (flipped_rows, (X,), [(1,)]),
    (rolled, (X,), [(0,)]),
    (everything, (X,), []),
    (positions, (X,), [(0,)]),  # the positions are cut with it
    (lower_half, (X,), []),
    (drawn, (X,), []),
    (scaled_by_its_size, (X,), [(1,)]),
    (batch, (IMAGES,), [(0,)]),
    (pairs_of_rows, (X, (200, 400)), [(0,)]),
    (both, (X, X), [(0, 0)]),
    (both_later, (X, X), [(0, 0)]),
]


@pytest.mark.parametrize(("fn", "shapes", "expected"), TABLE, ids=[t[0].__name__ for t in TABLE])
def test_where_it_is_cut(fn: Any, shapes: Any, expected: Any) -> None:
    assert cuts(fn, *shapes) == expected


def test_a_size_from_before_is_not_mistaken() -> None:
    def f(x, n: int):
        return torch.cumsum(x.view(n, -1, 4), 2)

    x = torch.rand(300, 400)
    compiled = lt.script(f)
    driver, values = compiled.resolve(compiled.bind((x, 300), {}))
    (found,) = candidates(Outer(driver, values))
    assert driver.function.params[0] not in found.inputs  # begins behind the view


def spectra(x):
    y = torch.fft.fft(x * 2, dim=1)
    return torch.fft.ifft(y * y.conj(), dim=1).real


def spectra_of_columns(x):
    return torch.fft.rfft(x, dim=0).abs()


def special(x, y):
    return torch.lgamma(x.abs() + 1) + torch.igamma(y.abs() + 1, x.abs())


def special_of_a_row(x, y):
    return torch.igamma(x.abs() + 1, y.abs())


def solved(a, b):
    return torch.linalg.solve(a @ a.mT + a.exp(), b).sin()


def sampled(x, grid):
    return F.grid_sample(x, grid.tanh(), align_corners=False).relu()


def medians(x):
    return torch.quantile(x, 0.5, dim=1, keepdim=True) + x


PYTORCHS = [
    (spectra, (X,), [(0,)]),
    (spectra_of_columns, (X,), [(1,)]),
    (special, (X, X), [(1, 1)]),
    (special_of_a_row, (X, (400,)), [(1, 0)]),
    (solved, ((30, 40, 40), (30, 40, 5)), [(0, 0)]),
    (sampled, (IMAGES, (6, 30, 30, 2)), [(0, 0)]),
    (medians, (X,), [(0,)]),
]


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"), PYTORCHS, ids=[t[0].__name__ for t in PYTORCHS]
)
def test_pytorchs_own(fn: Any, shapes: Any, expected: Any) -> None:
    assert cuts(fn, *shapes) == expected
    torch.manual_seed(0)
    args = [torch.rand(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    try:
        lt.script(fn, budget=1)(*args)
    except lt.BudgetError as error:
        least = error.least_bytes
    limited = lt.script(fn, budget=least)
    for f in (limited, fn):
        for x in args:
            x.grad, x.kept = None, x.grad  # type: ignore[attr-defined]
        made = f(*args)
        torch.testing.assert_close(made, fn(*args))
        if fn not in (special, special_of_a_row):  # igamma has no derivative
            made.square().sum().backward()
    for x in args:
        torch.testing.assert_close(x.kept, x.grad, rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
