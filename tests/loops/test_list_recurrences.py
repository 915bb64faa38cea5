"""Recurrences through lists, and several in one function: scans, with the values of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.grad.eager_gradients import randn, same
from tests.loops import list_recurrences as r
from tests.loops.test_recurrences import check, results

H = 36


def arguments(n: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(n)
    return [torch.randn(n, 5, H, dtype=dtype), torch.randn(H, H, dtype=dtype) * 0.1]


def flat(found) -> tuple[torch.Tensor, ...]:
    if isinstance(found, torch.Tensor):
        return (found,)
    return tuple(x for item in found for x in flat(item))


def with_gradients(fn, given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    leaves = [a.clone().requires_grad_() for a in given]
    found = flat(fn(*leaves))
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape) for y in found]
    carrying = [(y, w) for y, w in zip(found, weights, strict=True) if y.requires_grad]
    got = torch.autograd.grad([y for y, _ in carrying], leaves, [w for _, w in carrying])
    return (*(y.detach() for y in found), *got)


@pytest.mark.parametrize("fn", r.SCANS, ids=lambda f: f.__name__)
def test_is_a_scan_with_the_gradients_of_eager(fn: r.Program) -> None:
    f = lt.script(fn)
    for n in (35, 40):
        given = arguments(n)
        check(with_gradients(f, given), with_gradients(fn, given), 1e-9)
    told = str(f.explain(*[a.requires_grad_() for a in arguments(40)]))
    assert "once for each of" in told
    assert ", 0 ops left to PyTorch" in told


@pytest.mark.parametrize("n", [2, 5, 40])
def test_what_is_added_is_what_was_read(n: int) -> None:
    f, given = lt.script(r.what_was_last_again), arguments(n)
    check(with_gradients(f, given), with_gradients(r.what_was_last_again, given), 1e-9)


def test_rows_before_are_no_recurrence() -> None:
    f, given = lt.script(r.differences), arguments(40)
    check(with_gradients(f, given), with_gradients(r.differences, given), 1e-9)
    told = str(f.explain(*given))
    assert ", 0 ops left to PyTorch" in told
    assert "once for each of" not in told


@pytest.mark.parametrize("fn", r.OTHERS, ids=lambda f: f.__name__)
def test_stays_as_it_is(fn: r.Program) -> None:
    f = lt.script(fn)
    given = arguments(34)
    check(flat(f(*given)), flat(fn(*given)), 1e-9)


@pytest.mark.parametrize("fn", [*r.SCANS, *r.OTHERS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("steps", [(1, 6), pytest.param((2,), marks=pytest.mark.long)], ids=str)
def test_few_steps(fn: r.Program, steps: tuple[int, ...]) -> None:
    f = lt.script(fn)
    for n in steps:
        given = arguments(n)
        try:
            want = flat(fn(*given))
        except (RuntimeError, IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                f(*given)
        else:
            check(flat(f(*given)), want, 1e-9)


def test_a_view_stays_a_view() -> None:
    x, u = arguments(40)
    _, before = lt.script(r.view_handed_out)(x, u)
    x.zero_()
    assert not before.any()


def test_items_are_one_tensor() -> None:
    given = arguments(34)
    last, h, again, _ = lt.script(r.item_and_its_other_name)(*given)
    assert last is h
    assert again is h
    h, stacked = lt.script(r.item_changed_afterwards)(*given)
    torch.testing.assert_close(stacked[-1], h)


def test_a_list_of_the_caller_is_changed() -> None:
    x, u = arguments(34)
    mine, theirs = [torch.zeros(5, H, dtype=x.dtype)], [torch.zeros(5, H, dtype=x.dtype)]
    check(lt.script(r.list_from_outside)(x, u, mine), r.list_from_outside(x, u, theirs), 1e-9)
    check(tuple(mine), tuple(theirs), 1e-9)


def test_what_needs_the_list_is_named() -> None:
    told = str(lt.script(r.list_handed_out).explain(*arguments(40)))
    assert "its list is needed as a list by return at" in told


@pytest.mark.parametrize("fn", [r.last_item, r.both_ways, r.second_layer_over_the_list])
def test_any_number_of_steps_is_one_program(fn: r.Program) -> None:
    f = lt.script(fn)
    f(*arguments(40))
    before = lt.cache_stats()
    for n in (34, 41, 90):
        check(results(f(*arguments(n))), results(fn(*arguments(n))), 1e-9)
    assert (lt.cache_stats() - before).compiles == 0


def test_several_items_in_each_step() -> None:
    def alternating(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outs: list[Tensor] = []
        h, c = x[0] * 0.0, x[0]
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t] * c)
            outs.append(h)
            c = torch.sigmoid(c + h)
            outs.append(c)
        return torch.stack(outs), outs[-1] * 2, outs[0] + outs[-2]

    compiled = same(alternating, randn(40, 6))
    assert "not lifted" not in str(compiled.explain(randn(40, 6)))
    for n in (1, 2, 50):
        for got, want in zip(compiled(randn(n, 6)), alternating(randn(n, 6)), strict=True):
            torch.testing.assert_close(got, want)


def stacked_if_any(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = torch.zeros(2)
    forwards: list[torch.Tensor] = []
    backwards: list[torch.Tensor] = []
    for t in range(x.shape[0]):
        h = 0.9 * h + x[t]
        forwards.append(h)
        backwards.insert(0, h * 2)
    if not backwards:
        backwards.append(h)
    return torch.stack(forwards) if forwards else x * 2, torch.stack(backwards)


def test_whether_a_list_has_items() -> None:
    """The list is not needed for that: the loop is lifted all the same."""
    compiled = lt.script(stacked_if_any)
    for n in (40, 5, 0):
        x = torch.rand(n, 2, generator=torch.Generator().manual_seed(n))
        for got, want in zip(compiled(x), stacked_if_any(x), strict=True):
            torch.testing.assert_close(got, want)
    assert not compiled.explain(torch.rand(40, 2)).torch_ops
