"""A scope ends while other threads run: what they may be computing with goes late, and no earlier.

A thread that waits for a lock it asked for itself stands for one that is inside PyTorch: to who
looks from outside, both are in a call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

import lowtide as lt
from lowtide.memory.scopes import other_threads

PATIENCE_S = 60.0


class Slotted(torch.Tensor):
    __slots__ = ("mark",)


def holders(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore
    return count


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


class Busy:
    """A thread that is in a call, from `enter` to `leave`."""

    def __init__(self) -> None:
        self.lock, self.inside, self.is_asked = threading.Lock(), threading.Event(), False
        self.go = threading.Event()
        self.lock.acquire()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        self.go.wait()
        self.inside.set()
        self.lock.acquire()
        self.lock.release()

    def enter(self) -> None:
        self.go.set()
        self.inside.wait()
        time.sleep(0.05)  # now it is in `acquire`

    def leave(self) -> None:
        self.lock.release()
        self.thread.join()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr(other_threads, "_IDLE_NS", 1 << 62)
    thread = Busy()
    yield thread
    thread.go.set()
    if thread.lock.locked():
        thread.lock.release()
    thread.thread.join()


@contextmanager
def scope_with_a_tensor() -> Generator[tuple[torch.Tensor, torch.UntypedStorage]]:
    """What it yields has one holder when its memory is free: the storage itself."""
    with lt.dispose_scope():
        x = torch.ones(1000)
        yield x, x.untyped_storage()


def test_it_is_closed_at_once_and_emptied_late(busy: Busy) -> None:
    with scope_with_a_tensor() as (x, storage):
        busy.enter()
    assert lt.is_disposed(x)
    for use in (lambda: x + 1, lambda: x.shape, lambda: torch.exp(x), lambda: x.numpy()):
        with pytest.raises(lt.DisposedTensorError, match=r"test_other_threads\.py"):
            use()
    assert "disposed tensor" in repr(x)
    time.sleep(0.2)  # somebody looks meanwhile
    assert holders(storage) == 2
    busy.leave()
    wait_for(lambda: holders(storage) == 1)
    assert lt.is_disposed(x)
    with pytest.raises(lt.DisposedTensorError):
        x.sum()


def test_dispose_waits_too(busy: Busy) -> None:
    x = torch.ones(1000)
    storage = x.untyped_storage()
    busy.enter()
    lt.dispose(x)
    assert lt.is_disposed(x)
    assert holders(storage) == 2
    busy.leave()
    wait_for(lambda: holders(storage) == 1)


def test_a_thread_that_has_not_run_since_the_scope_opened_is_not_waited_for(busy: Busy) -> None:
    busy.enter()
    with scope_with_a_tensor() as (x, storage):
        pass
    assert lt.is_disposed(x)
    assert holders(storage) == 1


def test_unless_it_may_have_been_handed_the_tensor_before(busy: Busy) -> None:
    x, y = torch.ones(1000), torch.ones(1000)
    storages = x.untyped_storage(), y.untyped_storage()
    busy.enter()
    with lt.dispose_scope() as scope:
        scope.attach(x)
    with lt.dispose_scope(), lt.dispose_scope() as inner:
        lt.move_to_other_dispose_scope(y, inner)
    assert [lt.is_disposed(x), lt.is_disposed(y)] == [True, True]
    assert [*map(holders, storages)] == [2, 2]
    busy.leave()
    wait_for(lambda: [*map(holders, storages)] == [1, 1])


def test_nor_one_that_a_later_scope_was_given(busy: Busy) -> None:
    with lt.dispose_scope() as outer:
        x = torch.ones(1000)
        storage = x.untyped_storage()
        busy.enter()
        with lt.dispose_scope() as inner:
            outer.move_to_other(inner, x)
        assert lt.is_disposed(x)
        assert holders(storage) == 2
        busy.leave()
        wait_for(lambda: holders(storage) == 1)


def test_what_an_inner_scope_made_may_move_out(busy: Busy) -> None:
    busy.enter()
    with lt.dispose_scope():
        with lt.dispose_scope() as inner:
            x = inner.move_to_outer(torch.ones(1000))
            storage = x.untyped_storage()
        assert holders(storage) == 2
    assert holders(storage) == 1


def test_one_that_waits_in_pythons_library_is_not_waited_for() -> None:
    go, has_begun = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        go.wait()

    with scope_with_a_tensor() as (_, storage):
        thread = threading.Thread(target=work)
        thread.start()
        has_begun.wait()
        time.sleep(0.05)
    assert holders(storage) == 1
    go.set()
    thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_nor_one_that_waits_for_the_world() -> None:
    inside, (reader, writer) = threading.Event(), os.pipe()

    def read() -> None:
        inside.set()
        os.read(reader, 1)

    def sleep() -> None:
        inside.set()
        time.sleep(0.5)

    for wait in (read, sleep):
        inside.clear()
        thread = threading.Thread(target=wait)
        with scope_with_a_tensor() as (_, storage):
            thread.start()
            inside.wait()
            time.sleep(0.1)
        assert holders(storage) == 1
        os.write(writer, b"x")
        thread.join()
    os.close(reader)
    os.close(writer)


def test_one_that_is_idle_is_not_waited_for_long(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scope_with_a_tensor() as (_, storage):
        busy.enter()
    assert holders(storage) == 2
    monkeypatch.setattr(other_threads, "_IDLE_NS", 1_000_000)
    wait_for(lambda: holders(storage) == 1)


def test_one_that_runs_one_line_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always found at the same place."""
    monkeypatch.setattr(other_threads, "_LONGEST_CALL_NS", 1_000_000)
    is_over = threading.Event()
    numbers = torch.rand(100_000)

    def work() -> None:
        while not is_over.is_set():
            numbers.sort()

    thread = threading.Thread(target=work)
    try:
        with scope_with_a_tensor() as (_, storage):
            thread.start()
            time.sleep(0.05)
        wait_for(lambda: holders(storage) == 1)
    finally:
        is_over.set()
        thread.join()


def sort(box: list[torch.Tensor], has_begun: threading.Event, found: list[torch.Tensor]) -> None:
    has_begun.set()
    with suppress(lt.DisposedTensorError):
        found.append(box[0].sort().values)


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.005, 0.01, 0.02])
def test_what_the_other_thread_computes_is_right(pause_s: float) -> None:
    torch.manual_seed(0)
    has_begun = threading.Event()
    found: list[torch.Tensor] = []
    with lt.dispose_scope() as scope:
        x = torch.rand(300_000)
        expected = scope.move_to_outer(x.sort().values)
        thread = threading.Thread(target=sort, args=([x], has_begun, found))
        thread.start()
        has_begun.wait()
        time.sleep(pause_s)
    thread.join()
    torch.testing.assert_close(found, [expected] * len(found))


def test_statistics_and_attributes_do_not_wait(busy: Busy) -> None:
    class Mark:
        pass

    stats = lt.scope_statistics()
    stats.reset()
    try:
        with lt.dispose_scope():
            x = torch.ones(1000)
            x.mark = Mark()  # pyright: ignore
            gone = weakref.ref(x.mark)  # pyright: ignore
            slotted = torch.ones(3).as_subclass(Slotted)
            busy.enter()
        assert gone() is None
        assert not lt.is_disposed(slotted)
        before = stats.to_dict()
        assert before["created_in_scope"] - before["disposed_in_scope"] <= 1  # the slotted one
        busy.leave()
        wait_for(lambda: not other_threads._late)  # pyright: ignore
        assert stats.to_dict() == before
    finally:
        stats.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_only_one_thread(busy: Busy) -> None:
    with scope_with_a_tensor() as (_, storage):
        busy.enter()
    assert holders(storage) == 2
    child = os.fork()
    if not child:
        os._exit(0 if holders(storage) == 1 and not other_threads._late else 1)  # pyright: ignore
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert holders(storage) == 2


def test_all_kinds_of_use_survive_it() -> None:
    """In a process of its own, which a tensor without memory would kill."""
    command = [sys.executable, "-m", "tests.scopes.threads_alone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 11
