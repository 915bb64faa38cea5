"""Counts are exact after any sequence."""

from __future__ import annotations

import gc
import random

import pytest
import torch

import lowtide as lt


def counts(stats: lt.ScopeStatistics) -> tuple[int, ...]:
    """Outside: created, disposed · inside: created, disposed · attached, detached · live."""
    return (
        stats.created_outside_scope, stats.disposed_outside_scope, stats.created_in_scope,
        stats.disposed_in_scope, stats.attached_to_scope, stats.detached_from_scope,
        stats.thread_total_live,
    )  # fmt: skip


def test_made_in_a_scope(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope() as scope:
        t = torch.tensor(3)
        assert counts(stats) == (0, 0, 1, 0, 0, 0, 1)
        scope.attach(t)
        assert counts(stats) == (0, 0, 1, 0, 0, 0, 1)
    assert counts(stats) == (0, 0, 1, 1, 0, 0, 0)


def test_detached_is_live(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope() as scope:
        t = scope.detach(torch.tensor(3))
        assert counts(stats) == (0, 0, 1, 0, 0, 1, 1)
    assert counts(stats) == (0, 0, 1, 0, 0, 1, 1)
    lt.dispose(t)
    assert counts(stats) == (0, 1, 1, 0, 0, 1, 0)


def test_disposed_twice_counts_once(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope():
        t = torch.tensor(3)
        lt.dispose(t)
        lt.dispose(t)
        assert counts(stats) == (0, 0, 1, 1, 0, 0, 0)


def test_made_outside(stats: lt.ScopeStatistics) -> None:
    t = torch.tensor(3)
    assert counts(stats) == (1, 0, 0, 0, 0, 0, 1)
    with lt.dispose_scope() as scope:
        scope.detach(t)
        assert counts(stats) == (1, 0, 0, 0, 0, 0, 1)
        scope.attach(t)
        assert counts(stats) == (1, 0, 0, 0, 1, 0, 1)
        scope.detach(t)
        assert counts(stats) == (1, 0, 0, 0, 1, 1, 1)
    lt.dispose(t)
    assert counts(stats) == (1, 1, 0, 0, 1, 1, 0)


def test_attached_then_ended(stats: lt.ScopeStatistics) -> None:
    t = torch.tensor(3)
    with lt.dispose_scope() as scope:
        scope.attach(t)
    assert counts(stats) == (1, 0, 0, 1, 1, 0, 0)


def test_moves_between_scopes_count_nothing(stats: lt.ScopeStatistics) -> None:
    t = torch.tensor(3)
    with lt.dispose_scope() as outer:
        outer.attach(t)
        with lt.dispose_scope() as inner:
            inner.attach(t)
            inner.move_to_outer(t)
            outer.move_to_other(inner, t)
            assert counts(stats) == (1, 0, 0, 0, 1, 0, 1)


def test_what_python_frees_is_disposed(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope():
        t = torch.tensor(3) + 1
        assert counts(stats) == (0, 0, 2, 1, 0, 0, 1)
        del t
        assert counts(stats) == (0, 0, 2, 2, 0, 0, 0)
    u = torch.tensor(3)
    del u
    assert counts(stats) == (1, 1, 2, 2, 0, 0, 0)


def test_a_scope_that_goes_without_an_end_leaves_its_tensors_to_python(
    stats: lt.ScopeStatistics,
) -> None:
    def hold(tensors: list[torch.Tensor]) -> None:
        scope = lt.dispose_scope()
        scope.attach(tensors)

    kept = [torch.ones(1), torch.ones(1), torch.ones(1)]
    with lt.dispose_scope() as scope:
        kept += [torch.ones(1)]
        hold(kept[1:])
        assert not scope.contains(kept[3])
    assert stats.attached_to_scope == 2
    assert stats.detached_from_scope == 3
    assert not any(map(lt.is_disposed, kept))
    assert (stats.created_outside_scope, stats.created_in_scope) == (3, 1)
    lt.dispose(kept.pop(1))
    kept.clear()
    assert (stats.disposed_outside_scope, stats.disposed_in_scope) == (4, 0)
    assert stats.thread_total_live == 0


def test_without_watching_a_foreign_tensor_counts_when_it_is_met(stats: lt.ScopeStatistics) -> None:
    stats.stop()
    t = torch.tensor(3)
    assert counts(stats) == (0, 0, 0, 0, 0, 0, 0)
    with lt.dispose_scope() as scope:
        scope.attach(t)
        assert counts(stats) == (1, 0, 0, 0, 1, 0, 1)
    assert counts(stats) == (1, 0, 0, 1, 1, 0, 0)


def test_several_results_and_views(stats: lt.ScopeStatistics) -> None:
    x = torch.arange(6.0)
    stats.reset()
    with lt.dispose_scope():
        parts = x.split(2)
        best = x.max(0)
        assert counts(stats) == (0, 0, 5, 0, 0, 0, 5)
        del parts, best
        gc.collect()
        assert counts(stats) == (0, 0, 5, 5, 0, 0, 0)


def test_all_at_once(stats: lt.ScopeStatistics) -> None:
    assert stats.to_dict()["thread_total_live"] == 0
    with lt.dispose_scope():
        torch.ones(1)
    assert repr(stats).startswith("thread_total_live: 0; created_in_scope: 1")
    stats.reset()
    assert set(stats.to_dict().values()) == {0}


class Account:
    """What should have been counted: the documentation's rules on plain data."""

    def __init__(self) -> None:
        self.owner: dict[str, int | None] = {}  # of tensors alive, by name
        self.outer: list[int | None] = []  # of each scope, when it was opened
        self.open: list[int] = []
        self.of = dict.fromkeys((
            "created_in_scope", "disposed_in_scope", "created_outside_scope",
            "disposed_outside_scope", "attached_to_scope", "detached_from_scope",
        ), 0)  # fmt: skip

    def innermost(self) -> int | None:
        return self.open[-1] if self.open else None

    def around(self, scope: int) -> int | None:
        place = self.outer[scope]
        while place is not None and place not in self.open:
            place = self.outer[place]
        return place

    def made(self, name: str) -> None:
        self.owner[name] = self.innermost()
        self.of["created_outside_scope" if not self.open else "created_in_scope"] += 1

    def ended(self, name: str) -> None:
        owner = self.owner.pop(name)
        self.of["disposed_outside_scope" if owner is None else "disposed_in_scope"] += 1

    def given(self, name: str, to: int | None) -> None:
        owner, self.owner[name] = self.owner[name], to
        self.of["attached_to_scope"] += owner is None and to is not None
        self.of["detached_from_scope"] += owner is not None and to is None


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_are_counted_exactly(stats: lt.ScopeStatistics, seed: int) -> None:
    dice = random.Random(seed)
    scopes: dict[int, lt.DisposeScope] = {}
    handles: dict[str, torch.Tensor] = {}
    account = Account()

    def alive() -> str | None:
        return dice.choice(sorted(account.owner)) if account.owner else None

    for step in range(150):
        name, at = alive(), dice.choice(account.open) if account.open else None
        match dice.randrange(14):
            case 0 if len(scopes) < 4:
                account.outer.append(account.innermost())
                scopes[len(account.outer) - 1] = lt.dispose_scope().__enter__()
                account.open.append(len(account.outer) - 1)
            case 1 if at is not None:
                scopes.pop(at).dispose()
                account.open.remove(at)
                for other in [n for n, owner in account.owner.items() if owner == at]:
                    account.ended(other)
            case 2 if name:  # Python frees it
                del handles[name]
                account.ended(name)
            case 3 if name:
                lt.dispose(handles[name])
                account.ended(name)
            case 4 if name and at is not None:
                scopes[at].attach(handles[name])
                account.given(name, at)
            case 5 if name and at is not None:
                scopes[at].move_to_outer(handles[name])
                if account.owner[name] == at:
                    account.given(name, account.around(at))
            case 6 if name and at is not None:
                to = dice.choice([None, *account.open])
                scopes[at].move_to_other(None if to is None else scopes[to], handles[name])
                if account.owner[name] == at:
                    account.given(name, to)
            case 7 if name:
                lt.detach_from_dispose_scope(handles[name])
                account.given(name, None)
            case 8 if name:
                lt.move_to_outer_dispose_scope(handles[name])
                owner = account.owner[name]
                account.given(name, None if owner is None else account.around(owner))
            case 9 if name:
                other = dice.choice(sorted(account.owner))
                lt.move_to_other_dispose_scope(handles[name], handles[other])
                account.given(name, account.owner[other])
            case 10 if name and at is not None:
                scopes[at].dispose_everything_but(handles[name])
                for other in [n for n, owner in account.owner.items() if owner == at]:
                    if other != name:
                        account.ended(other)
            case 11 if name:  # in place: none is made
                handles[name].add_(1)
            case 12 if name:  # two at once
                handles[f"{step}a"], handles[f"{step}b"] = handles[name].max(0)
                account.made(f"{step}a")
                account.made(f"{step}b")
            case _:
                handles[f"{step}"] = torch.ones(1)
                account.made(f"{step}")
        found = stats.to_dict()
        assert found.pop("thread_total_live") == len(account.owner)
        assert found == account.of
        assert {n for n, t in handles.items() if not lt.is_disposed(t)} == set(account.owner)
        for at, scope in scopes.items():
            theirs = {n for n, owner in account.owner.items() if owner == at}
            assert {n for n, t in handles.items() if scope.contains(t)} == theirs
            assert scope.disposables_count == len(theirs)
    for scope in scopes.values():
        scope.dispose()


def test_backward_in_nested_scopes_counts_each_tensor_once(stats: lt.ScopeStatistics) -> None:
    stats.stop()  # two holders at least, of which the first has the mode on the stack
    leaf = torch.ones(3, requires_grad=True)
    with lt.dispose_scope(), lt.dispose_scope():
        # A method in Python: PyTorch has the mode aside, and autograd's engine puts it on again.
        (leaf * 2).sum().backward()
        stats.reset()
        for _ in range(3):
            leaf * 2
        assert stats.created_in_scope == stats.disposed_in_scope == 3


def test_watched_outside_backward_in_a_scope_counts_each_tensor_once(
    stats: lt.ScopeStatistics,
) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with lt.dispose_scope():
        (leaf * 2).sum().backward()
        stats.reset()
        for _ in range(3):
            leaf * 2
        assert stats.created_in_scope == stats.disposed_in_scope == 3


def test_a_scope_that_a_hook_opens_and_leaves_open_counts_each_tensor_once(
    stats: lt.ScopeStatistics,
) -> None:
    stats.stop()
    leaf, inner = torch.ones(3, requires_grad=True), lt.dispose_scope()
    doubled = leaf * 2
    doubled.register_hook(lambda grad: inner.__enter__() and None)
    with lt.dispose_scope():
        doubled.sum().backward()
        stats.reset()
        for _ in range(3):
            leaf * 2
        assert stats.created_in_scope == stats.disposed_in_scope == 3
        inner.dispose()


@pytest.mark.parametrize("asked_inside", [True, False])
def test_what_a_hook_makes_and_backward_returns_counts_once(
    stats: lt.ScopeStatistics, asked_inside: bool
) -> None:
    """It is seen twice: as the hook makes it, and as what `torch.autograd.grad` returns."""
    leaf = torch.ones(3, requires_grad=True)
    stats.reset()
    with lt.dispose_scope():
        doubled = leaf * 2
        total = doubled.sum()
        doubled.register_hook(lambda grad: grad * 2)
        (grad,) = torch.autograd.grad(total, doubled)
        if asked_inside:
            assert counts(stats) == (0, 0, 3, 0, 0, 0, 3)
    assert lt.is_disposed(grad)
    assert counts(stats) == (0, 0, 3, 3, 0, 0, 0)
