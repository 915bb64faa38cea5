"""Loops of which some iterations go another way are lifted, and give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.pipeline import faults
from tests.loops.branching import BY_DATA, BY_NUMBER, repulsion

SIZES = (36, 7, 1, 2, 34)
Program = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Sums are taken in another order: in double precision that is no matter. Faults are raised."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with faults.strict():
        yield
    torch.set_default_dtype(before)


def results_of(fn: Program, x: torch.Tensor) -> list[torch.Tensor]:
    """What it returns, and the gradient of a sum of it."""
    x = x.clone().requires_grad_()
    found = fn(x)
    outs = list(found) if isinstance(found, tuple) else [found]
    carried = [o for o in outs if o.requires_grad]
    generator = torch.Generator().manual_seed(1)
    if carried:
        sum((o * torch.rand(o.shape, generator=generator)).sum() for o in carried).backward()
    return [*outs, *([] if x.grad is None else [x.grad])]


@pytest.mark.parametrize("fn", [*BY_NUMBER, *BY_DATA], ids=lambda f: f.__name__)
def test_is_lifted_and_like_pytorch(fn: Program) -> None:
    compiled = lt.script(fn)
    for n in SIZES:
        x = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(results_of(compiled, x), results_of(fn, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), fn(x))
    x = torch.randn(40, 2)
    for inputs in (x, x.requires_grad_()):
        found = compiled.explain(inputs)
        assert not found.torch_ops, found
        assert len(found.kernels) <= 5, found


def test_what_is_not_taken_hands_on_no_gradient() -> None:
    """Of two points at one place: the derivative of 1 / d is infinite there, times 0."""
    x = torch.randn(36, 2)
    got = results_of(lt.script(repulsion), x)
    assert all(g.isfinite().all() for g in got)


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
        (seldom_large, "too much to compute where it is not needed"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_stays_a_loop(fn: Program, why: str) -> None:
    compiled = lt.script(fn)
    x = torch.randn(40, 2)
    torch.testing.assert_close(results_of(compiled, x), results_of(fn, x))
    assert why in str(compiled.explain(x)), compiled.explain(x)


def test_an_index_error_is_pytorchs() -> None:
    with pytest.raises(IndexError):
        lt.script(reads_beyond)(torch.randn(40, 2))
