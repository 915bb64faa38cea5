"""Loops of which some iterations go another way are lifted, and give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults
from tests.loops.branching import (
    BEFORE,
    BY_DATA,
    BY_NUMBER,
    outer_root,
    repulsion,
    squares,
    tetrahedron,
)
from tests.loops.growing_slices import (
    PROGRAMS,
    list_of_slices,
    slices_in_branches,
    slices_in_triangles,
)

# How many rows, and whether gradients are wanted: each is compiled for itself.
CALLS = ((36, True), (36, False), (7, True), (1, False))
MORE_CALLS = ((7, False), (1, True))
FUNCTIONS = [*BY_NUMBER, tetrahedron, *BY_DATA, *BEFORE, *PROGRAMS]
Program = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with faults.strict():
        yield


def results_of(fn: Program, x: torch.Tensor) -> list[torch.Tensor]:
    """What it returns, and the gradient of a sum of it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(x.dtype)
    try:
        found = fn(x)
    finally:
        torch.set_default_dtype(before)
    outs = list(found) if isinstance(found, tuple) else [found]
    carried = [o for o in outs if o.requires_grad]
    generator = torch.Generator().manual_seed(1)
    if carried:
        weights = [torch.rand(o.shape, generator=generator).to(x.dtype) for o in carried]
        sum((o * w).sum() for o, w in zip(carried, weights, strict=True)).backward()
    return [*(o.detach() for o in outs), *([] if x.grad is None else [x.grad])]


def check(compiled: Program, fn: Program, x: torch.Tensor, *, wants: bool) -> None:
    """As near to the double precision result as eager PyTorch is in single precision."""
    exact = results_of(fn, x.double().requires_grad_(wants))
    plain, got = (results_of(f, x.clone().requires_grad_(wants)) for f in (fn, compiled))
    if len(got) > len(exact):  # eager has taken no branch that gives a gradient
        assert not got.pop().any()
    assert len(got) == len(exact)
    for mine, theirs, true in zip(got, plain, exact, strict=True):
        near = theirs.isfinite() & true.isfinite()
        error = torch.where(near, theirs - true, 0).abs()
        limit = 20 * error.amax() + 1e-5 * torch.where(near, true, 0).abs().amax()
        difference = torch.where(near, mine - true, 0).abs()
        assert (difference <= limit).all(), (difference.amax(), limit)
        torch.testing.assert_close(mine[~near], theirs[~near], equal_nan=True)


def points(n: int) -> torch.Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_is_lifted_and_like_pytorch(fn: Program) -> None:
    compiled = lt.script(fn)
    for n, wants in CALLS:
        check(compiled, fn, points(n), wants=wants)
    x = torch.randn(40, 2)
    for inputs in (x, x.requires_grad_()):
        found = compiled.explain(inputs)
        assert not found.plain
        assert not found.torch_ops, found
        assert len(found.kernels) <= 5, found


@pytest.mark.long
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_few_rows_like_pytorch(fn: Program) -> None:
    compiled = lt.script(fn)
    for n, wants in MORE_CALLS:
        check(compiled, fn, points(n), wants=wants)


def test_what_is_not_taken_hands_on_no_gradient() -> None:
    """Of two points at one place: the derivative of 1 / d is infinite there, times 0."""
    x = torch.randn(36, 2, requires_grad=True)
    assert all(g.isfinite().all() for g in results_of(lt.script(repulsion), x))
    assert x.grad is not None


# ---- names of one tensor ------------------------------------------------------------------------


def begins_as_input(x: torch.Tensor, most: int) -> torch.Tensor:
    y = x
    for i in range(3):
        if i > most:
            y = y * 2
    y += 1
    return y


def begins_as_another(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.zeros(x.shape[1])
    z = y
    for i in range(x.shape[0]):
        if i > most:
            y = y + x[i]
    y += 1
    return y, z


def one_of_two_rows(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In PyTorch, `y` is a view of one or the other."""
    a, b = torch.zeros(2, 2), torch.ones(2, 2)
    out = torch.zeros(x.shape)
    for i in range(x.shape[0]):
        y = a[0] if i > most else b[1]
        out[i] = y + x[i]
        y += 1
    return out, a + b


@pytest.mark.parametrize("fn", [begins_as_input, begins_as_another, one_of_two_rows])
@pytest.mark.parametrize("most", [1, 100])
def test_names_stay_names(fn: Any, most: int) -> None:
    compiled = lt.script(fn)
    x = torch.randn(40, 2)
    a, b = x.clone(), x.clone()
    torch.testing.assert_close(compiled(a, most), fn(b, most))
    torch.testing.assert_close(a, b)


# ---- what stays a loop --------------------------------------------------------------------------


def grows_sometimes(x: torch.Tensor) -> torch.Tensor:
    rows = [x[0]]
    for i in range(x.shape[0]):
        if i % 20 > 3:
            rows.append(x[i])
    return torch.stack(rows)


def ends_early(x: torch.Tensor) -> torch.Tensor:
    s = torch.zeros(())
    for i in range(x.shape[0]):
        if x[i, 0] > 1.5:
            break
        s = s + x[i, 0]
    return s


def seldom_large(x: torch.Tensor) -> torch.Tensor:
    w = torch.ones(700, 700)
    h = torch.ones(1, 700)
    for i in range(x.shape[0]):
        if i * i == 900:
            h = torch.tanh(h @ w + x[i, 0])
    return h


def reads_beyond(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        if i % 2 < 5:
            out[i] = x[i - 45, 0]
    return out


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (grows_sometimes, "a list in some iterations only"),
        (ends_early, "it ends where the data"),
        (list_of_slices, "sizes change from iteration to iteration"),
        (outer_root, "may be needed in none of its steps"),
        (squares, "reads at a product of numbers of steps"),
        (slices_in_branches, "the gradient of a clamped index"),
        (slices_in_triangles, "the gradient of a clamped index"),
        (seldom_large, "too much to compute where it is not needed"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_stays_a_loop(fn: Program, why: str) -> None:
    compiled = lt.script(fn)
    x = torch.randn(34, 2)
    check(compiled, fn, x, wants=True)
    check(compiled, fn, x, wants=False)
    found = str(compiled.explain(x.requires_grad_()))
    assert why in found, found


def divides(x: torch.Tensor) -> torch.Tensor:
    s = torch.zeros(())
    for i in range(x.shape[0]):
        s = s + x[i, 0] * (1.0 / i)
    return s


def test_a_division_by_zero_is_pythons() -> None:
    with pytest.raises(ZeroDivisionError):
        lt.script(divides)(torch.randn(40, 2))


def test_an_index_error_is_pytorchs() -> None:
    with pytest.raises(IndexError):
        lt.script(reads_beyond)(torch.randn(40, 2))


def furthest_of_nearest(x: torch.Tensor) -> torch.Tensor:
    furthest = torch.zeros(())
    for i in range(x.shape[0]):
        nearest = torch.full((), float("inf"))
        for j in range(6):
            d = torch.sqrt((x[i, 0] - 2 * x[j, 1]) ** 2 + 1)
            if d < nearest:
                nearest = d
        if nearest > furthest:
            furthest = nearest
    return furthest


def test_a_long_chain_of_choices_in_each_step() -> None:
    """Each choice reads the one before it twice: written out one by one they doubled each time."""
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    check(lt.script(furthest_of_nearest), furthest_of_nearest, x, wants=True)
