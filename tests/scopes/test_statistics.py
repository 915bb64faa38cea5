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


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_balance(stats: lt.ScopeStatistics, seed: int) -> None:
    dice = random.Random(seed)
    scopes: list[lt.DisposeScope] = []
    tensors: list[torch.Tensor] = []
    made = 0
    for _ in range(150):
        match dice.randrange(9):
            case 0 if len(scopes) < 4:
                scopes.append(lt.dispose_scope().__enter__())
            case 1 if scopes:
                scopes.pop(dice.randrange(len(scopes))).dispose()
            case 2 if tensors:
                tensors.pop(dice.randrange(len(tensors)))
            case 3 if tensors:
                lt.dispose(dice.choice(tensors))
            case 4 | 5 if scopes and tensors:
                t, scope = dice.choice(tensors), dice.choice(scopes)
                if not lt.is_disposed(t):
                    (scope.attach if dice.random() < 0.5 else scope.move_to_outer)(t)
            case 6 if tensors:
                t = dice.choice(tensors)
                if not lt.is_disposed(t):
                    lt.detach_from_dispose_scope(t)
            case _:
                tensors.append(torch.empty(1))
                made += 1
        t = None  # or it would live on under this name
        live = sum(not lt.is_disposed(t) for t in tensors)
        assert stats.thread_total_live == live
        assert stats.created_in_scope + stats.created_outside_scope == made
        owned = sum(scope.disposables_count for scope in scopes)
        assert owned <= live
    for scope in scopes:
        scope.dispose()
    assert all(count >= 0 for count in counts(stats))
