"""Without a budget, too, holes in the heap go back; what glibc says of them is made up here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide as lt
from lowtide.pipeline import holes
from lowtide.runtime import heap, libc

MB = 1 << 20


class Net(nn.Module):
    """PyTorch's ops between kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.second(self.first(x).sigmoid() * 2) + 1


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What watched the calls that were not just run."""
    found: list[Any] = []
    real = heap.trimming

    def trimming(made: Any) -> Any:
        found.append(made)
        return real(made)

    monkeypatch.setattr(heap, "trimming", trimming)
    monkeypatch.setattr(libc, "keeps_holes", lambda: True)
    monkeypatch.setattr(heap, "_LONG_NS", 1 << 62)  # however large this process' heap is
    monkeypatch.setattr(heap, "_ask_again_ns", 0)
    return found


def grown_to(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Each look at the process finds so much more than the one before."""
    now = [0]

    def resident_bytes() -> int:
        now[0] += nbytes
        return now[0]

    monkeypatch.setattr(libc, "resident_bytes", resident_bytes)


def test_a_call_that_has_grown_the_process_is_guarded_from_then_on(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown_to(monkeypatch, holes.LEAST_BYTES)
    monkeypatch.setattr(libc, "trim", lambda: False)
    net, x = Net(), torch.rand(2, 3, 40, 40)
    compiled: Any = lt.script(net)
    want = net(x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), want)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard, heap.Guard]
    assert watches[1]._most_bytes == compiled.memory(x).peak_bytes


@pytest.mark.parametrize("budget", [None, "16MB"])
def test_the_caller_finds_room_for_cotangents(
    budget: str | None, watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are predicted, and made outside of all ops."""
    grown_to(monkeypatch, holes.LEAST_BYTES)
    monkeypatch.setattr(libc, "trim", lambda: False)
    asked: list[Any] = []
    for kind in (heap.Trimmer, heap.Guard):
        monkeypatch.setattr(kind, "hand_out", lambda made: asked.append(made._growths))
    net, x = Net(), torch.rand(2, 3, 40, 40)
    compiled: Any = lt.script(net, budget=budget) if budget else lt.script(net)
    for _ in range(2):
        y = compiled(x)
    assert asked[-1][heap.COTANGENTS] >= y.nbytes
    with torch.no_grad():
        for _ in range(2):
            compiled(x)
    assert heap.COTANGENTS not in asked[-1]


def test_other_sizes_are_rehearsed_when_they_come_again(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there were many: each batch may have its own."""
    monkeypatch.setattr(holes, "_AT_ONCE", 2)
    grown_to(monkeypatch, holes.LEAST_BYTES)
    monkeypatch.setattr(libc, "trim", lambda: False)
    compiled: Any = lt.script(Net())
    with torch.no_grad():
        for n in (40, 44):
            compiled(torch.rand(2, 3, n, n))
        watches.clear()
        for n in (52, 52, 52):
            compiled(torch.rand(2, 3, n, n))
    assert [type(w) for w in watches] == [heap.Observer, heap.Observer, heap.Guard]


def test_a_view_has_a_gradient_that_leaves_holes(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call itself takes nothing of the heap, its backward pass does."""
    grown_to(monkeypatch, 1)

    def spread(x):
        y = x / 3
        return y.unsqueeze(1).expand(-1, 4, -1), y

    compiled: Any = lt.script(spread)
    x = torch.rand(500, 700, requires_grad=True)
    for _ in range(2):
        compiled(x)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard]
    watches.clear()
    with torch.no_grad():
        compiled(x)
    assert not watches


def test_small_calls_are_hardly_looked_at(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown_to(monkeypatch, 1)
    compiled: Any = lt.script(Net())
    x = torch.rand(2, 3, 10, 10)
    with torch.no_grad():
        compiled(x)
        watches.clear()
        for _ in range(holes._NOW_AND_THEN - 1):
            compiled(x)
        assert not watches
        compiled(x)
        assert [type(w) for w in watches] == [heap.Observer]


def decided(x: torch.Tensor) -> torch.Tensor:
    y = torch.sort(x * 2, -1).values
    if y.sum() > 0:
        y = torch.cumsum(y, 0)
    return y + 1


def test_where_the_data_decide_a_branch_no_more_is_held_than_in_the_larger_one(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown_to(monkeypatch, holes.LEAST_BYTES)
    monkeypatch.setattr(libc, "trim", lambda: False)
    compiled: Any = lt.script(decided)
    x = torch.rand(40, 50)
    for _ in range(3):
        compiled(x)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard, heap.Guard]
    assert watches[1]._most_bytes == compiled.memory(x).peak_bytes


def test_a_call_that_is_not_as_predicted_is_left_alone(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that the data end keeps more with each step than was shown."""
    grown_to(monkeypatch, holes.LEAST_BYTES)
    trims: list[None] = []
    monkeypatch.setattr(libc, "trim", lambda: trims.append(None) or True)

    def steps(x):
        kept = [torch.sort(x, -1).values]
        while len(kept) < int(x.sum()):
            kept.append(torch.cumsum(kept[-1], 0))
        return kept

    compiled: Any = lt.script(steps)
    x = torch.full((4, 5), 2.0)  # 40 steps
    for _ in range(4):
        assert len(compiled(x)) == 40
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard]
    assert len(trims) < 10
    for _ in range(heap._CALLS_ALONE):  # it may have been another thread's memory
        compiled(x)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard, heap.Guard]


def test_little_time_goes_into_a_heap_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that may not be as predicted."""
    now_ns, looks = [0], [0]

    def resident_bytes() -> int:
        looks[0] += 1
        now_ns[0] += 10_000_000  # slow
        return 1

    monkeypatch.setattr(libc, "resident_bytes", resident_bytes)
    monkeypatch.setattr(heap.time, "monotonic_ns", lambda: now_ns[0])
    guard = heap.Guard(most_bytes=0, growths={"op": 1 << 20}, strays=heap.Strays())
    for _ in range(100):
        now_ns[0] += 1_000_000
        guard.check("op")
    assert looks[0] < 10


def test_a_number_that_an_op_checks_inside_decides_nothing(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown_to(monkeypatch, holes.LEAST_BYTES)
    monkeypatch.setattr(libc, "trim", lambda: False)

    def loss(x, y, v):
        return nn.functional.gaussian_nll_loss(x * 2, y, v.exp())  # raises where v < 0

    compiled = lt.script(loss)
    args = [torch.rand(40, 50) for _ in range(3)]
    for _ in range(3):
        compiled(*args)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard, heap.Guard]


def test_a_call_that_finds_free_pages_is_guarded_too(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process does not grow, but much of the heap is in use between two ops."""
    grown_to(monkeypatch, 1)
    used = [0]

    def used_bytes() -> int:
        used[0] += holes.LEAST_USED_BYTES
        return used[0]

    monkeypatch.setattr(libc, "used_bytes", used_bytes)
    compiled: Any = lt.script(Net())
    x = torch.rand(2, 3, 40, 40)
    for _ in range(2):
        compiled(x)
    assert [type(w) for w in watches] == [heap.Observer, heap.Guard]


class Clock:
    """It goes on where the heap is asked, each time by so much, and by a little elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, asking_ns: int) -> None:
        self.asked = self.now_ns = 0
        self.asking_ns = asking_ns
        monkeypatch.setattr(heap, "time", SimpleNamespace(monotonic_ns=self.read))
        monkeypatch.setattr(libc, "used_bytes", self.ask)
        monkeypatch.setattr(heap, "_LONG_NS", 500_000)

    def read(self) -> int:
        self.now_ns += heap._FRESH_NS
        return self.now_ns

    def ask(self) -> int:
        self.asked += 1
        self.now_ns += self.asking_ns
        return 0


def test_a_heap_of_many_pieces_is_hardly_asked(
    watches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes glibc as long as there are pieces; a loop has thousands of ops."""

    def steps(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = torch.sort(x * 2).values
        return x

    grown_to(monkeypatch, 1)
    compiled: Any = lt.script(steps)
    x = torch.rand(40)
    times: dict[int, int] = {}
    for asking_ns in (0, 10_000_000):
        clock = Clock(monkeypatch, asking_ns)
        compiled(x, 3000 + asking_ns % 7)
        times[asking_ns] = clock.asked
    assert times[0] > 3000
    assert times[10_000_000] < 20


@pytest.mark.skipif(not libc.keeps_holes(), reason="needs glibc")
def test_what_is_in_use_of_the_heap_is_told() -> None:
    before = libc.used_bytes()
    x = torch.empty(MB)
    assert 4 * MB <= libc.used_bytes() - before < 5 * MB
    del x
    assert libc.used_bytes() - before < MB


class Sorts(TorchDispatchMode):
    """Counts what is sorted."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is torch.ops.aten.sort.stable
        return func(*args, **(kwargs or {}))


def test_a_mode_around_a_driver_sees_no_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "keeps_holes", lambda: True)
    grown_to(monkeypatch, holes.LEAST_BYTES)

    def ranked(x):
        return torch.cumsum(torch.sort(x * 2, dim=-1, stable=True).values, 0) + 1

    free: Any = lt.script(ranked)
    driver, values = free.resolve(free.bind((torch.rand(40, 50),), {}))
    with Sorts() as sorts:
        driver(values)
    assert sorts.calls <= 1
