"""Scopes inside functions that `lt.script` compiles: Python's own, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt

kept: list[torch.Tensor] = []
x = torch.linspace(-1, 2, 16).view(4, 4)


@lt.ignore
def keep(t: torch.Tensor) -> torch.Tensor:
    """Shows the test what the program made."""
    kept.append(t)
    return t


def one_scope(x: torch.Tensor):
    with lt.dispose_scope() as scope:
        hidden = keep((x @ x).relu())
        y = scope.move_to_outer(hidden.sum(1))
    return y + 1


def from_the_tensor(x: torch.Tensor):
    b = x.sin()
    with lt.dispose_scope():
        y = lt.move_to_outer_dispose_scope(keep(b.cos()) + b)
    return y * 2 + b


def several_at_once(x: torch.Tensor):
    with lt.dispose_scope() as scope:
        hidden = keep(x * 2)
        y, z = scope.move_to_outer(hidden.sum(1), hidden.mean(1))
        n = scope.disposables_count
        owns = scope.contains(hidden)
    return y + z if owns and n > 0 else y


def carried_through_a_loop(x: torch.Tensor):
    total = torch.zeros(4)
    for i in range(5):
        with lt.dispose_scope() as scope:
            scope.attach(total)
            total = scope.move_to_outer(total + keep((x * i).sin()).sum(1))
    return total


def scopes_in_scopes(x: torch.Tensor):
    with lt.dispose_scope() as outer:
        with lt.dispose_scope() as inner:
            a = inner.move_to_outer(keep(x + 1))
        b = outer.move_to_outer((a * 2).sum())
        outer.dispose_everything()
    return b * 2


def returned_from_inside(x: torch.Tensor):
    with torch.no_grad(), lt.dispose_scope():
        return lt.detach_from_dispose_scope(keep(x * 2).sum() + 1)


def equal_and_equivalent_tensors_by_hand(x: torch.Tensor):
    a, b = x * 2, x * 2
    lt.dispose(b)
    for c in (x * 1.0, x.reshape(4, 4), x.expand(4, 4), x[:], x + 0, x.detach(), x.clone()):
        lt.dispose(c)
    return a + x


@lt.wrapped_dispose_scope
def wrapped(x: torch.Tensor):
    return keep(x @ x).sum(1)


@lt.dispose_scope()
def scoped(x: torch.Tensor) -> float:
    return keep(x @ x).sum().item()


def calls_wrapped(x: torch.Tensor):
    return wrapped(x) + lt.alias(x).sum()


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    one_scope,
    from_the_tensor,
    several_at_once,
    carried_through_a_loop,
    scopes_in_scopes,
    returned_from_inside,
    equal_and_equivalent_tensors_by_hand,
    wrapped,
    scoped,
    calls_wrapped,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("has_outer", [False, True])
def test_the_same_in_a_script(program: Callable[[torch.Tensor], Any], has_outer: bool) -> None:
    kept.clear()
    expected, were_disposed = program(x), [lt.is_disposed(t) for t in kept]
    compiled = lt.script(program)
    for _ in range(2):
        kept.clear()
        if has_outer:
            with lt.dispose_scope() as outer:
                found = compiled(x)
                if isinstance(found, torch.Tensor):
                    assert outer.contains(found) or program is returned_from_inside
                    outer.detach(found)
        else:
            found = compiled(x)
        torch.testing.assert_close(found, expected)
        assert [lt.is_disposed(t) for t in kept] == (
            [True] * len(kept) if has_outer else were_disposed
        )
        assert not lt.is_disposed(x)
        assert lt.current_dispose_scope() is None


@pytest.mark.parametrize("program", [one_scope, carried_through_a_loop, calls_wrapped])
def test_gradients_of_a_script(program: Callable[[torch.Tensor], Any]) -> None:
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(program(leaf).sum(), leaf)
    (found,) = torch.autograd.grad(lt.script(program)(leaf).sum(), leaf)
    torch.testing.assert_close(found, expected)


def test_a_scope_as_an_argument() -> None:
    def work(x: torch.Tensor, scope: lt.DisposeScope):
        y = scope.attach(x * 2)
        return y + 1

    compiled = lt.script(work)
    with lt.dispose_scope() as scope:
        torch.testing.assert_close(compiled(x, scope), x * 2 + 1)


def test_a_module_whose_forward_has_a_scope() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        @lt.wrapped_dispose_scope
        def forward(self, x: torch.Tensor):
            hidden = keep(self.linear(x).relu())
            return {"a": hidden.sum(1), "b": [hidden * 2]}

    torch.manual_seed(0)
    net = Net()
    kept.clear()
    torch.testing.assert_close(lt.script(net)(x), net(x))
    assert [lt.is_disposed(t) for t in kept] == [True, True]


def test_an_exception_passes_and_the_scope_ends() -> None:
    def work(x: torch.Tensor):
        with lt.dispose_scope():
            if keep(x * 2).sum() > 0:
                raise ValueError("too large")
        return x

    kept.clear()
    with pytest.raises(ValueError, match="too large"):
        lt.script(work)(x)
    assert [lt.is_disposed(t) for t in kept] == [True]
    assert lt.current_dispose_scope() is None


def test_use_after_the_end_is_an_error_or_right() -> None:
    """What was read after the scope is disposed, unless the compiler needed no tensor for it."""

    def work(x: torch.Tensor):
        with lt.dispose_scope():
            y = keep(x * 2)
        return y + 1

    with pytest.raises(lt.DisposedTensorError):
        work(x)
    with pytest.raises(lt.DisposedTensorError):
        lt.script(work)(x)


def test_a_program_with_a_scope_is_not_saved(tmp_path: Any) -> None:
    with pytest.raises(lt.CompileError, match="dispose_scope: cannot be saved"):
        lt.script(one_scope).save(tmp_path / "f.lt")


def test_a_trace_has_no_scopes() -> None:
    """It records what is computed; a program gives memory back at each last use anyway."""
    traced = lt.trace(one_scope, (x,))
    torch.testing.assert_close(traced(x + 1), one_scope(x + 1))
    assert "dispose" not in str(traced.graph)
