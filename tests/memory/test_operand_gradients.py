"""Gradients of what is cut, written over cotangents and operands that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer
from lowtide.budget.rewrite import with_sections
from lowtide.execute import chunks
from lowtide.execute.cut import Cut, Span
from lowtide.execute.driver import Driver
from lowtide.execute.operand_gradients import Gradients
from lowtide.torch_private.tensors import storage_of

f64 = torch.float64
CHUNKS = 5


pytestmark = pytest.mark.usefixtures("small_ones_reused")


@pytest.fixture(autouse=True)
def over(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operands whose gradients were written over something, for each section."""
    found: list[int] = []
    asked = chunks.Chunks._reused_memory

    def counted(self: Any, *args: Any) -> dict[int, Tensor]:
        taken = asked(self, *args)
        found.extend(taken)
        return taken

    monkeypatch.setattr(chunks.Chunks, "_reused_memory", counted)
    return found


def in_chunks(program: Callable[..., Any], args: Sequence[Tensor]) -> Callable[..., Any]:
    """The program, with everything that can be cut in chunks."""
    compiled: Any = lt.script(program)
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    runs = candidates(Outer(driver, values))
    assert runs
    made = Driver(with_sections(driver.function, dict.fromkeys(runs, CHUNKS), {}))
    return lambda *given: made(list(given))


def images() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(20, 16, 32, dtype=f64, requires_grad=True) for _ in range(3)]


def agrees(program: Callable[..., Any], *args: Tensor) -> None:
    call = in_chunks(program, args)

    def gradients(of: Callable[..., Any]) -> list[Tensor]:
        y = of(*args)
        ys = y if isinstance(y, tuple) else (y,)
        total = sum((v * torch.linspace(1, 2, v.numel(), dtype=f64).view_as(v)).sum() for v in ys)
        return [*torch.autograd.grad(total, args)]

    expected = gradients(program)
    for _ in range(2):
        torch.testing.assert_close(gradients(call), expected, rtol=1e-12, atol=1e-12)


def sorted_once(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.sort(x * a + b, -1).values * 2


def twice_and_once(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The gradient of b is the cotangent itself, that of a is another in its place."""
    return torch.cumsum(2 * a + b, 2) * 1.5 + x


def two_results(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cumsum(x + 3 * a, 2)
    return y * 2, torch.cumsum(b - x, 2) + a


def handed_through(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cumsum(x, 2)
    return y + a, a * 1 + torch.sort(b, -1).values


PROGRAMS = (sorted_once, twice_and_once, two_results, handed_through)


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_of_eager(program: Callable[..., Any]) -> None:
    agrees(program, *images())


def behind(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Each part's operand is the result of a sum over all, which no axis cuts, and goes then."""
    y = torch.cumsum(x - x.mean(), 1)
    y = y - y.mean()
    z = torch.cumsum(torch.sort(y, -1).values * a, 1)
    z = z - z.mean()
    return torch.cumsum(z * b, 1)


def widened(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The same, and no cotangent is as large as the operand."""
    y = torch.cumsum(x - x.mean(), 1)
    y = y - y.mean()
    z = torch.sort(y, -1).values
    return torch.cat([z * a, z - b], 2)


@pytest.mark.parametrize("program", [behind, widened])
def test_it_happens(program: Callable[..., Any], over: list[int]) -> None:
    agrees(program, *images())
    assert over


@pytest.mark.parametrize("behind", [behind, widened])
def test_a_graph_that_is_kept_keeps_its_operands(behind: Callable[..., Any]) -> None:
    args = images()
    y = in_chunks(behind, args)(*args).square().sum()
    first = torch.autograd.grad(y, args, retain_graph=True)
    again = torch.autograd.grad(y, args, retain_graph=True)
    last = torch.autograd.grad(y, args)
    expected = torch.autograd.grad(behind(*args).square().sum(), args)
    for found in (first, again, last):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("behind", [behind, widened])
def test_what_hooks_have_seen_stays(behind: Callable[..., Any]) -> None:
    args = images()
    seen: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = in_chunks(behind, args)(*args).square().sum()
    before = [x.detach().clone() for x in seen]
    found = torch.autograd.grad(y, args)
    torch.testing.assert_close([x.detach() for x in seen], before, rtol=0, atol=0)
    expected = torch.autograd.grad(behind(*args).square().sum(), args)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_operands_that_were_written_over_are_not_read_again() -> None:
    """By a backward pass that comes after one that was cut short."""
    args = images()
    y = in_chunks(widened, args)(*args)
    bad = torch.ones_like(y)
    bad[0] = torch.nan  # in the chunk that comes last
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
        y.backward(bad)
    with pytest.raises(RuntimeError, match="interrupted"):
        y.backward(torch.ones_like(y))


def test_a_gradient_is_written_beside_what_lies_in_the_cotangent() -> None:
    """The second operand's gradient is a view of the cotangent that the first's is written over."""
    values = [torch.zeros(4, 3), torch.zeros(4, 3)]
    g = torch.arange(12.0).view(4, 3)
    expected = g.clone()
    found = Gradients(values, {0: g}, [g])
    cuts = (Cut(0), Cut(0))
    for start in (2, 0):
        span = Span(start, 2, 4)
        part = g[start : start + 2]
        found.add([part * 2, part], cuts, span)
    first, second = found.rows
    assert first is not None
    assert second is not None
    assert storage_of(first) == storage_of(g) != storage_of(second)
    torch.testing.assert_close([first, second], [expected * 2, expected])


def test_chunks_that_give_nothing_leave_zeros() -> None:
    x, g = torch.zeros(6), torch.arange(6.0)
    found = Gradients([x], {0: g}, [g])
    for start, part in ((4, torch.ones(2)), (2, None), (0, torch.ones(2))):
        found.add([part], (Cut(0),), Span(start, 2, 6))
    torch.testing.assert_close(found.rows[0], torch.tensor([1.0, 1, 0, 0, 1, 1]))
    g = torch.arange(6.0)
    late = Gradients([x], {0: g}, [g])
    for start, part in ((4, None), (2, None), (0, torch.ones(2))):
        late.add([part], (Cut(0),), Span(start, 2, 6))
    torch.testing.assert_close(late.rows[0], torch.tensor([1.0, 1, 0, 0, 0, 0]))


def test_a_sum_is_made_in_place_where_nobody_else_has_the_first_chunks() -> None:
    values = [torch.zeros(3) for _ in range(5)]
    cotangent, both, carried = torch.ones(3), torch.ones(3), torch.ones(3)
    own, wide = torch.ones(3), torch.ones(1).expand(3)
    found = Gradients(values, {}, [cotangent])
    cuts = (None,) * 7
    first = [own, cotangent, carried, wide, None]
    found.add(first, cuts[:5], Span(3, 3, 6), [carried])
    found.add([torch.ones(3)] * 5, cuts[:5], Span(0, 3, 6))
    for k, x in enumerate(found.rows):
        assert x is not None
        torch.testing.assert_close(x, torch.full((3,), 2.0 if k < 4 else 1.0))
    assert found.rows[0] is own
    assert not any(found.rows[k] is x for k, x in enumerate(first) if k)
    assert torch.equal(cotangent, carried)
    twice = Gradients(values[:2], {}, [])
    for start in (3, 0):
        twice.add([both, both] if start else [torch.ones(3)] * 2, cuts[:2], Span(start, 3, 6))
    torch.testing.assert_close(twice.rows, [torch.full((3,), 2.0)] * 2)
    assert torch.equal(both, torch.ones(3))
