"""The memory is back when the scope ends, whoever still refers to the handles."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.memory.measure import can_measure_resident, measure_peak
from lowtide.memory.scopes.bag import Bag

MIB = 1 << 20
needs_proc = pytest.mark.skipif(not can_measure_resident(), reason="no /proc/self/clear_refs")


def run(script: str) -> None:
    """Run it in a process whose heap nobody has used before."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


HOLDERS = """
import gc, sys, threading
import torch
import lowtide as lt
from lowtide.memory.measure import resident_bytes

MIB, COUNT, BYTES = 1 << 20, int(sys.argv[2]), int(sys.argv[3])
holder, kept = sys.argv[1], []
weight = torch.ones(1, requires_grad=True)

class Ring:
    def __init__(self, tensor):
        self.tensor, self.other = tensor, [self]

def make():
    tensors = []
    for _ in range(COUNT):
        t = torch.ones(BYTES // 4)
        if holder in ("list", "beside a thread"):
            kept.append(t)
        elif holder == "cycle":
            Ring(t)
        elif holder == "closure":
            kept.append(lambda t=t: t)
        elif holder == "graph":
            kept.append((t * weight).exp())
        else:
            tensors.append(t)
    if holder == "list":  # malloc gives back by itself only what lies above all that is in use
        kept.append(lt.detach_from_dispose_scope(torch.ones(64)))
    if holder == "traceback":
        raise ValueError(len(tensors))

if holder == "beside a thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
with lt.dispose_scope():
    torch.ones(MIB) * weight
gc.disable()
before = resident_bytes()
with lt.dispose_scope():
    try:
        make()
    except ValueError as error:
        kept.append(error)
    made = resident_bytes() - before
left = resident_bytes() - before
assert made >= 0.95 * COUNT * BYTES, (made, COUNT * BYTES)
assert left <= made / 10, (made, left)
"""


@needs_proc
@pytest.mark.parametrize(
    ("holder", "count", "size"),
    [
        *((holder, 16, 8 * MIB) for holder in ("cycle", "graph", "list")),
        *(pytest.param(h, 16, 8 * MIB, marks=pytest.mark.long) for h in ("closure", "traceback")),
        ("list", 2_000, MIB // 16),  # too small for malloc to map each
        ("list", 20_000, MIB // 64),  # of which some share a page with what stays
        ("beside a thread", 20_000, MIB // 64),
        pytest.param("list", 2, 64 * MIB, marks=pytest.mark.long),
    ],
)
def test_resident_size_falls_by_what_was_made(holder: str, count: int, size: int) -> None:
    run(f"import sys; sys.argv[1:] = [{holder!r}, '{count}', '{size}']\n{HOLDERS}")


BY_HAND = """
import torch
import lowtide as lt
from lowtide.memory.measure import resident_bytes

MIB = 1 << 20
torch.ones(1) + 1
before = resident_bytes()
t = torch.ones(32 * MIB)
assert resident_bytes() - before >= 120 * MIB
lt.dispose(t)
assert resident_bytes() - before <= 13 * MIB
with lt.dispose_scope() as scope:
    u = torch.ones(32 * MIB)
    row = scope.move_to_outer(u[:2])
assert lt.is_disposed(u)
assert resident_bytes() - before >= 120 * MIB
assert row.tolist() == [1, 1]
del row
assert resident_bytes() - before <= 13 * MIB
"""


@needs_proc
def test_by_hand_at_once_and_what_an_alias_shares_later() -> None:
    run(BY_HAND)


def test_a_scope_adds_nothing_to_the_peak() -> None:
    def work() -> None:
        x = torch.ones(4 * MIB)
        for _ in range(10):
            x = x + 1

    def scoped() -> None:
        with lt.dispose_scope():
            work()

    plain, _ = measure_peak(work, allocations_only=True)
    ours, _ = measure_peak(scoped, allocations_only=True)
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
