"""The memory is back when the scope ends, whoever still refers to the handles."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.memory.measure import measure_peak
from lowtide.memory.scopes.tensor_log import Bag
from lowtide.torch_private.profiler import quiet_kineto

MIB = 1 << 20
CPU = [torch.profiler.ProfilerActivity.CPU]


def left_bytes(call: Callable[[], object]) -> int:
    """What `call` has asked PyTorch's allocator for and not given back by its end."""
    with quiet_kineto(), torch.profiler.profile(activities=CPU, profile_memory=True) as profile:
        call()
    results: Any = profile.profiler.kineto_results  # type: ignore[union-attr]
    return sum(event.nbytes() for event in results.events() if event.name() == "[memory]")


class Ring:
    """Refers to itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.other = tensor, [self]


def _make(holder: str, kept: list[object], weight: torch.Tensor) -> None:
    tensors: list[torch.Tensor] = []
    for _ in range(16):
        t = torch.ones(MIB // 4)
        if holder == "list":
            kept.append(t)
        elif holder == "cycle":
            Ring(t)
        elif holder == "closure":
            kept.append(lambda t=t: t)
        elif holder == "graph":
            kept.append((t * weight).exp())
        else:
            tensors.append(t)
    if holder == "traceback":
        raise ValueError(len(tensors))


@pytest.mark.parametrize("holder", ["cycle", "graph", "list", "closure", "traceback"])
def test_all_that_was_made_is_given_back(holder: str) -> None:
    """Whoever holds it; garbage is not collected meanwhile."""
    kept: list[object] = []
    weight = torch.ones(1, requires_grad=True)
    held: list[int] = []

    def call() -> None:
        with lt.dispose_scope() as scope:
            try:
                _make(holder, kept, weight)
            except ValueError as error:
                kept.append(error)
            held.append(scope.disposables_count)

    gc.collect()
    gc.disable()
    try:
        assert left_bytes(call) <= MIB // 16
    finally:
        gc.enable()
    assert held[0] >= 16


def test_many_small_ones_are_given_back() -> None:
    kept: list[torch.Tensor] = []

    def call() -> None:
        with lt.dispose_scope():
            kept.extend(torch.ones(MIB // 256) for _ in range(2_000))

    assert left_bytes(call) == 0
    assert len(kept) == 2_000


def test_by_hand_at_once_and_what_an_alias_shares_later() -> None:
    rows: list[torch.Tensor] = []

    def by_hand() -> None:
        t = torch.ones(MIB)
        lt.dispose(t)
        rows.append(t)

    def alias() -> None:
        with lt.dispose_scope() as scope:
            u = torch.ones(MIB)
            rows.append(scope.move_to_outer(u[:2]))
        assert lt.is_disposed(u)

    assert left_bytes(by_hand) == 0
    assert left_bytes(alias) == 4 * MIB
    assert rows[1].tolist() == [1, 1]
    assert left_bytes(rows.clear) == -4 * MIB


def test_a_scope_adds_nothing_to_the_peak() -> None:
    def work() -> None:
        x = torch.ones(4 * MIB)
        for _ in range(10):
            x = x + 1

    def scoped() -> None:
        with lt.dispose_scope():
            work()

    plain, _ = measure_peak(work)
    ours, _ = measure_peak(scoped)
    assert ours.peak_bytes <= plain.peak_bytes + MIB // 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_of_the_device_is_back() -> None:
    before = torch.cuda.memory_allocated()
    kept = []
    with lt.dispose_scope():
        for _ in range(8):
            kept.append(torch.ones(MIB, device="cuda"))
        assert torch.cuda.memory_allocated() - before >= 32 * MIB
    assert torch.cuda.memory_allocated() == before
    assert all(lt.is_disposed(t) for t in kept)


def lines_run(work: Callable[[], object]) -> int:
    """Lines of the scopes' own code that run while `work` does."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal lines
        if "/memory/scopes/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("holding", [True, False])
def test_the_work_grows_with_the_number_of_tensors(
    stats: lt.ScopeStatistics, holding: bool
) -> None:
    def work(count: int) -> None:
        kept: list[torch.Tensor] = []
        with lt.dispose_scope():
            for _ in range(count):
                made = torch.empty(0)
                if holding:
                    kept.append(made)

    stats.stop()
    assert lines_run(lambda: work(20_000)) <= 12 * lines_run(lambda: work(2_000))


def test_moving_one_by_one_out_of_a_large_scope_is_linear() -> None:
    def lines(count: int) -> int:
        with lt.dispose_scope() as scope:
            tensors = [torch.empty(0) for _ in range(count)]
            return lines_run(lambda: [scope.move_to_outer(t) for t in tensors])

    assert lines(5_000) <= 12 * lines(500)


def test_a_hundred_thousand_tensors_in_one_scope(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope() as scope:
        kept = [torch.empty(0) for _ in range(100_000)]
        assert scope.disposables_count == 100_000
    assert all(lt.is_disposed(t) for t in kept)
    assert stats.disposed_in_scope == 100_000


def test_a_tensor_of_a_weak_dict_is_looked_for_in_no_other_scope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lt.scope_statistics().stop()
    others = [lt.dispose_scope() for _ in range(50)]
    x, asked = torch.ones(2), list[Bag]()
    known = weakref.WeakSet([x])
    find = Bag.find

    def counted(bag: Bag, tensor: torch.Tensor) -> Any:
        asked.append(bag)
        return find(bag, tensor)

    monkeypatch.setattr(Bag, "find", counted)
    with lt.dispose_scope() as scope:
        lt.detach_from_dispose_scope(x)
        assert not asked
        mine = torch.ones(2)
        known.add(mine)
        lt.detach_from_dispose_scope(mine)
        assert not scope.contains(mine)
    assert len(asked) < 5
    assert mine.sum() + x.sum() == 4
    for other in others:
        other.dispose()
