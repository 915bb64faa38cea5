"""Who owns a tensor, and when it ends (docs/dispose-scopes.md)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import lowtide as lt


def test_what_is_made_inside_is_disposed_at_the_end() -> None:
    x = torch.ones(3)
    with lt.dispose_scope() as scope:
        made = x * x + x
        temporaries = scope.disposables
        assert scope.contains(made)
        assert not any(lt.is_disposed(t) for t in temporaries)
    assert lt.is_disposed(made)
    assert all(lt.is_disposed(t) for t in temporaries)
    assert not lt.is_disposed(x)


def test_callees_are_inside() -> None:
    made: list[torch.Tensor] = []

    def helper() -> None:
        made.append(torch.ones(2))

    with lt.dispose_scope():
        helper()
    assert lt.is_disposed(made[0])


def test_nested_scopes_own_what_is_made_in_them() -> None:
    with lt.dispose_scope() as outer:
        a = torch.ones(1)
        with lt.dispose_scope() as inner:
            b = torch.ones(1)
            assert inner.outer_scope is outer
            assert lt.current_dispose_scope() is inner
            assert inner.contains(b)
            assert not inner.contains(a)
        assert lt.current_dispose_scope() is outer
        assert lt.is_disposed(b)
        assert not lt.is_disposed(a)
    assert lt.is_disposed(a)


def test_move_to_outer_from_the_scope_and_from_the_tensor() -> None:
    with lt.dispose_scope() as outer:
        with lt.dispose_scope() as inner:
            a, b = torch.ones(1), torch.ones(1)
            assert inner.move_to_outer(a) is a
            assert lt.move_to_outer_dispose_scope(b) is b
            assert not inner.contains(a)
            assert outer.contains(a)
            assert outer.contains(b)
        assert not lt.is_disposed(a)
        assert not lt.is_disposed(b)
    assert lt.is_disposed(a)
    assert lt.is_disposed(b)


def test_without_an_outer_scope_moving_out_detaches() -> None:
    with lt.dispose_scope() as scope:
        a = scope.move_to_outer(torch.ones(1))
        b = lt.move_to_outer_dispose_scope(torch.ones(1))
    assert a.item() == b.item() == 1


def test_several_tensors_come_back_as_a_tuple() -> None:
    with lt.dispose_scope() as scope:
        a, b = scope.move_to_outer(torch.ones(1), torch.zeros(1))
        c = scope.move_to_outer([torch.ones(1), {"k": torch.ones(1)}])
        assert scope.detach() == ()
    assert a.item() == 1
    assert b.item() == 0
    assert isinstance(c, list)
    assert not lt.is_disposed(c[0])


def test_detach_ends_the_scopes_ownership() -> None:
    with lt.dispose_scope() as outer, lt.dispose_scope() as inner:
        a = inner.detach(torch.ones(1))
        b = lt.detach_from_dispose_scope(torch.ones(1))
        assert not inner.contains(a)
        assert not outer.contains(a)
    assert a.item() == b.item() == 1


def test_moves_between_three_layers() -> None:
    free = torch.rand(10)
    taken = torch.rand(10)
    lt.move_to_other_dispose_scope(free, taken)  # neither has a scope: nothing happens
    with lt.dispose_scope():
        t1 = torch.rand(10)
        with lt.dispose_scope():
            t2 = torch.rand(10)
            with lt.dispose_scope():
                to_free, stays, to1, to2 = (torch.rand(10) for _ in range(4))
                lt.move_to_other_dispose_scope(to_free, free)
                lt.move_to_other_dispose_scope(taken, stays)
                lt.move_to_other_dispose_scope(to1, t1)
                lt.move_to_other_dispose_scope(to2, t2)
            assert lt.is_disposed(stays)
            assert lt.is_disposed(taken)
            assert not lt.is_disposed(to2)
        assert lt.is_disposed(to2)
        assert not lt.is_disposed(to1)
    assert lt.is_disposed(to1)
    assert not lt.is_disposed(to_free)
    assert not lt.is_disposed(free)


def test_move_to_other_takes_a_scope_a_tensor_or_none() -> None:
    with lt.dispose_scope() as outer, lt.dispose_scope() as inner:
        a, b, c = torch.ones(1), torch.ones(1), torch.ones(1)
        assert inner.move_to_other(outer, a) is a
        assert inner.move_to_other(None, b) is b
        assert lt.move_to_other_dispose_scope(c, outer) is c
        assert outer.contains(a)
        assert outer.contains(c)
        assert not inner.contains(b)
        assert not outer.contains(b)
    assert not lt.is_disposed(b)


def test_a_tensor_can_move_inwards() -> None:
    with lt.dispose_scope() as outer:
        a = torch.ones(1)
        with lt.dispose_scope() as inner:
            outer.move_to_other(inner, a)
        assert lt.is_disposed(a)


def test_attach_takes_foreign_tensors_and_steals_from_other_scopes() -> None:
    foreign = torch.ones(1)
    with lt.dispose_scope() as outer:
        mine = torch.ones(1)
        with lt.dispose_scope() as inner:
            assert inner.attach(foreign) is foreign
            assert inner.attach(mine, foreign) == (mine, foreign)
            assert inner.contains(mine)
            assert not outer.contains(mine)
        assert lt.is_disposed(mine)
        assert lt.is_disposed(foreign)


def test_a_tensor_kept_in_a_scope_can_go_to_a_scope_inside() -> None:
    with lt.dispose_scope() as first:
        with lt.dispose_scope() as second:
            a = second.move_to_outer(torch.ones(1))
        with lt.dispose_scope() as third:
            third.attach(a)
            assert not first.contains(a)
        assert lt.is_disposed(a)
        assert first.disposables_count == 0


def test_dispose_by_hand_is_idempotent_and_leaves_the_scope() -> None:
    with lt.dispose_scope() as scope:
        a = torch.ones(1)
        lt.dispose(a)
        lt.dispose(a, [a])
        assert lt.is_disposed(a)
        assert not scope.contains(a)
        assert scope.disposables_count == 0


def test_dispose_outside_all_scopes() -> None:
    a = torch.ones(1)
    lt.dispose(a)
    assert lt.is_disposed(a)


def test_dispose_everything_goes_on_afterwards() -> None:
    with lt.dispose_scope() as scope:
        a = torch.ones(1)
        scope.dispose_everything()
        assert lt.is_disposed(a)
        b = torch.ones(1)
        assert scope.disposables == (b,)
    assert lt.is_disposed(b)


def test_dispose_everything_but() -> None:
    x = torch.rand(10)
    with lt.dispose_scope() as scope:
        t1 = x * x + x
        t2 = x + x - t1
        assert scope.dispose_everything_but(t2) is t2
        assert lt.is_disposed(t1)
        t3 = t2 + x
        a, b = scope.dispose_everything_but(t2, t3)
        assert scope.contains(a)
        assert scope.contains(b)
        assert scope.disposables_count == 2
    assert lt.is_disposed(t2)
    assert lt.is_disposed(t3)
    assert not lt.is_disposed(x)


def test_everything_but_does_not_take_foreign_tensors() -> None:
    x = torch.rand(2)
    with lt.dispose_scope() as scope:
        assert scope.dispose_everything_but(x) is x
        assert not scope.contains(x)
    assert not lt.is_disposed(x)


def test_ending_twice_does_nothing() -> None:
    with lt.dispose_scope() as scope:
        a = torch.ones(1)
        scope.dispose()
        assert lt.is_disposed(a)
        assert lt.current_dispose_scope() is None
        b = torch.ones(1)
    scope.dispose()
    assert not lt.is_disposed(b)


def test_ends_in_another_order() -> None:
    first = lt.dispose_scope().__enter__()
    a = torch.ones(1)
    second = lt.dispose_scope().__enter__()
    b = torch.ones(1)
    third = lt.dispose_scope().__enter__()
    c = torch.ones(1)
    second.dispose()
    assert [lt.is_disposed(t) for t in (a, b, c)] == [False, True, False]
    assert third.outer_scope is first
    assert lt.current_dispose_scope() is third
    first.dispose()
    assert [lt.is_disposed(t) for t in (a, c)] == [True, False]
    assert third.outer_scope is None
    third.dispose()
    assert lt.is_disposed(c)


def test_what_is_inside_moves_out_past_a_scope_that_has_ended() -> None:
    with lt.dispose_scope() as first:
        second = lt.dispose_scope().__enter__()
        with lt.dispose_scope() as third:
            a, b = torch.ones(1), torch.ones(1)
            second.dispose()
            third.move_to_outer(a)
            lt.move_to_outer_dispose_scope(b)
            assert first.contains(a)
            assert first.contains(b)
        assert lt.current_dispose_scope() is first
    assert lt.is_disposed(a)
    assert lt.is_disposed(b)


def test_an_exception_ends_the_scope_and_passes() -> None:
    kept: list[torch.Tensor] = []

    def fails() -> None:
        with lt.dispose_scope():
            kept.append(torch.ones(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert lt.is_disposed(kept[0])


def test_tensors_python_frees_are_not_kept_alive() -> None:
    with lt.dispose_scope() as scope:
        for _ in range(10):
            torch.ones(1)
        assert scope.disposables_count == 0


def test_in_place_operations_make_no_tensor() -> None:
    x = torch.ones(3)
    out = torch.empty(3)
    with lt.dispose_scope() as scope:
        assert x.add_(1) is x
        assert torch.mul(x, 2, out=out) is out
        assert x.contiguous() is x
        assert x.requires_grad_(False) is x
        assert scope.disposables_count == 0
    assert x.tolist() == [2, 2, 2]


SEVERAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: x.max(0),
    "max, its indices saved for backward": lambda x: x.clone().requires_grad_().max(0),
    "topk": lambda x: torch.topk(x, 2),
    "chunk": lambda x: x.chunk(2),
    "unbind": lambda x: x.unbind(),
    "split": lambda x: x.split(1),
    "a list": lambda x: torch._foreach_add([x, x], 1),
    "None among them": lambda x: functional.multi_head_attention_forward(
        *(x[None], x[None], x[None], 4, 1, x.new_ones(12, 4), None, None, None, False, 0.0),
        *(x.new_ones(4, 4), None),
        need_weights=False,
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_results_is_the_scopes(name: str, stats: lt.ScopeStatistics) -> None:
    x = torch.rand(4, 4)
    with lt.dispose_scope() as scope:
        results = [t for t in SEVERAL[name](x) if t is not None]
        assert results
        assert all(scope.contains(t) for t in results)
    assert all(lt.is_disposed(t) for t in results)
    assert stats.created_in_scope == stats.disposed_in_scope
    assert "test_semantics.py" in repr(results[-1])
    assert x.shape == (4, 4)


def test_of_several_results_those_that_were_there_before_stay() -> None:
    x, y = torch.ones(2), torch.tensor(1.0)
    with lt.dispose_scope() as scope:
        same, wider = torch.atleast_1d(x, y)
        assert same is x
        assert scope.disposables == (wider,)
    assert lt.is_disposed(wider)
    assert x.tolist() == [1, 1]


def test_a_list_that_comes_back_stays_as_it_is() -> None:
    tensors = [torch.ones(2), torch.ones(2)]
    with lt.dispose_scope() as scope:
        torch._foreach_add_(tensors, 1)
        assert torch.overrides.handle_torch_function(_same, (), tensors) is tensors
        (again,) = torch.overrides.handle_torch_function(_in_a_list, (), tensors)
        assert again is tensors
        assert scope.disposables_count == 0
    assert [t.tolist() for t in tensors] == [[2, 2], [2, 2]]


def _same(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors


def _in_a_list(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [tensors]


def test_alias_is_a_handle_with_a_life_of_its_own() -> None:
    x = torch.ones(3, requires_grad=True)
    with lt.dispose_scope():
        a = lt.alias(x)
        assert a is not x
        assert a.data_ptr() == x.data_ptr()
        a.sum().backward()
    assert lt.is_disposed(a)
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]


def test_wrapped_dispose_scope_moves_nests_out() -> None:
    made: list[torch.Tensor] = []

    @lt.wrapped_dispose_scope
    def work(x: torch.Tensor) -> dict[str, object]:
        made.append(x + 1)
        return {"a": x * 2, "b": [x * 3, (x, None, 4)]}

    x = torch.ones(2)
    result = work(x)
    assert lt.is_disposed(made[0])
    assert result["a"].tolist() == [2, 2]  # type: ignore[attr-defined]
    assert result["b"][0].tolist() == [3, 3]  # type: ignore[index]
    with lt.dispose_scope() as scope:
        inside = work(x)["a"]
        assert scope.contains(inside)  # type: ignore[arg-type]
    assert lt.is_disposed(inside)  # type: ignore[arg-type]


@pytest.mark.parametrize("decorate", [lt.dispose_scope(), lt.dispose_scope])
def test_as_a_decorator_each_call_has_a_scope(decorate: Any) -> None:
    @decorate
    def work(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    a, b = work(torch.ones(1)), work(torch.ones(1))
    assert lt.is_disposed(a)
    assert lt.is_disposed(b)


# Bad input.


def test_moving_a_tensor_of_somebody_elses_leaves_it_where_it_is() -> None:
    foreign = torch.ones(1)
    with lt.dispose_scope() as outer:
        a = torch.ones(1)
        with lt.dispose_scope() as inner:
            assert inner.move_to_outer(a) is a
            assert inner.detach(a) is a
            assert inner.move_to_outer(foreign) is foreign
            assert outer.contains(a)
            assert not outer.contains(foreign)
            assert lt.move_to_outer_dispose_scope(foreign) is foreign
    assert lt.is_disposed(a)
    assert not lt.is_disposed(foreign)


@pytest.mark.parametrize(
    "use",
    [
        lambda s, t: s.move_to_outer(t),
        lambda s, t: s.move_to_other(None, t),
        lambda s, t: s.detach(t),
        lambda s, t: s.attach(t),
        lambda s, t: s.dispose_everything(),
        lambda s, t: s.dispose_everything_but(t),
        lambda s, t: s.__enter__(),
        lambda s, t: lt.move_to_other_dispose_scope(t, s),
    ],
)
def test_an_ended_scope_takes_nothing(use: object) -> None:
    with lt.dispose_scope() as scope:
        pass
    with pytest.raises(lt.ScopeError, match=r"test_semantics\.py:\d+> can no longer be used"):
        use(scope, torch.ones(1))  # type: ignore[operator]
    assert scope.is_ended
    assert scope.disposables == ()
    assert scope.disposables_count == 0
    assert not scope.contains(torch.ones(1))


def test_a_scope_cannot_be_entered_twice() -> None:
    with lt.dispose_scope() as scope, pytest.raises(lt.ScopeError, match="is open already"):
        scope.__enter__()


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_what_is_no_tensor_is_refused() -> None:
    with lt.dispose_scope() as scope:
        ended = lt.dispose_scope()
        ended.dispose()
        nonsense = (3, None, "t", Unprintable(), torch.nn.Identity())
        for use in (scope.move_to_outer, scope.attach, scope.detach, scope.dispose_everything_but,
                    scope.contains, ended.contains, lt.dispose, lt.alias, lt.is_disposed,
                    lt.move_to_outer_dispose_scope, lt.detach_from_dispose_scope):  # fmt: skip
            for value in nonsense:
                with pytest.raises(TypeError, match="expected "):
                    use(value)  # type: ignore[operator]
        for use in (scope.contains, lt.alias, lt.is_disposed):
            for nest in ([], [torch.ones(1)], {"a": torch.ones(1)}):
                with pytest.raises(TypeError, match="expected a tensor"):
                    use(nest)  # type: ignore[operator]
        kept = torch.ones(1)
        for other in (3, "scope", [scope], kept, Unprintable()):
            with pytest.raises(TypeError, match="expected a dispose scope or None"):
                scope.move_to_other(other, kept)  # type: ignore[arg-type]
        assert scope.contains(kept)
        with pytest.raises(TypeError, match="expected "):
            lt.move_to_other_dispose_scope(torch.ones(1), Unprintable())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a function"):
            lt.wrapped_dispose_scope(Unprintable())  # type: ignore[arg-type]


def test_a_scope_cannot_be_copied() -> None:
    with lt.dispose_scope() as scope:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                way(scope)


def test_a_disposed_tensor_cannot_be_moved() -> None:
    with lt.dispose_scope() as scope:
        a = torch.ones(1)
        lt.dispose(a)
        for use in (scope.move_to_outer, scope.attach, scope.detach, lt.alias,
                    lt.move_to_outer_dispose_scope, lt.detach_from_dispose_scope):  # fmt: skip
            with pytest.raises(lt.DisposedTensorError, match=r"by dispose\(\)"):
                use(a)  # type: ignore[operator]


def test_repr_says_what_it_is() -> None:
    with lt.dispose_scope() as scope:
        torch.ones(1)
        kept = torch.ones(1)
        assert "1 tensors" in repr(scope)
    assert repr(scope).startswith("<ended dispose scope opened at ")
    assert "<disposed tensor, made at" in repr(kept)
