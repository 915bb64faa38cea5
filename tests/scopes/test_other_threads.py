"""A scope ends while other threads run: what they may be computing with goes late, and no earlier.

A thread that waits inside `map` for a lock stands for one that computes inside PyTorch: both are in
a call of which nothing is known.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from queue import SimpleQueue
from typing import Any, ClassVar

import pytest
import torch

import lowtide as lt
from lowtide.memory.scopes import other_threads, stacks
from tests.scopes.test_interrupts import Interrupter

PATIENCE_S = 60.0


class Slotted(torch.Tensor):
    __slots__ = ("mark",)


class Named(torch.Tensor):
    label: str


def holders(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore
    return count


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_nothing_late() -> bool:
    return not other_threads._late  # pyright: ignore


def is_in_call(thread: threading.Thread) -> bool:
    """Whether it stands in `call`, in the call there."""
    stack = stacks.stack_of(thread.ident or 0)
    return stack is not None and stack.codes[0] is call.__code__ and stack.call() is not None


def reads_outside(thread: threading.Thread) -> bool:
    stack = stacks.stack_of(thread.ident or 0)
    place = None if stack is None else stack.call()
    return stack is not None and place is not None and stacks.waits_outside(stack, place)


def place_of(thread: threading.Thread) -> tuple[int, int] | None:
    assert thread.ident is not None
    stack = stacks.stack_of(thread.ident)
    return None if stack is None else stack.call()


def call(steps: Iterator[Any]) -> None:
    tuple(steps)


_acquire: Any = type(threading.Lock()).acquire


class Busy:
    """A thread that is in a call, from `enter` to `leave`."""

    def __init__(self) -> None:
        self.lock, self.go = threading.Lock(), threading.Event()
        self.lock.acquire()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        self.go.wait()
        call(map(_acquire, (self.lock,)))

    def enter(self) -> None:
        self.go.set()
        wait_for(lambda: is_in_call(self.thread))

    def leave(self) -> None:
        self.go.set()
        with suppress(RuntimeError):  # it has left already
            self.lock.release()
        self.thread.join()


@pytest.fixture
def busy() -> Iterator[Busy]:
    thread = Busy()
    yield thread
    thread.leave()
    wait_for(is_nothing_late)


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
    for _ in range(3):
        with lt.dispose_scope():  # looks, too
            pass
    other_threads.catch_up()
    assert holders(storage) == 2
    busy.leave()
    wait_for(lambda: holders(storage) == 1)
    assert lt.is_disposed(x)
    with pytest.raises(lt.DisposedTensorError, match=r"test_other_threads\.py"):
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


def test_dispose_of_many_looks_at_other_threads_once(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def counted(ident: int) -> stacks.Stack | None:
        looked.append(ident)
        return stacks.stack_of(ident)

    monkeypatch.setattr(other_threads, "stack_of", counted)
    xs = [torch.ones(3) for _ in range(500)]
    lt.dispose(xs)
    assert all(map(lt.is_disposed, xs))
    assert looked.count(busy.thread.ident or 0) == 1


def test_the_next_scope_empties_without_anybody_else(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_threads, "_see_to_it", lambda: None)
    with scope_with_a_tensor() as (_, storage):
        busy.enter()
    busy.leave()
    assert holders(storage) == 2
    with lt.dispose_scope():
        assert holders(storage) == 1


def test_what_waits_for_one_long_call_is_kept_in_one_place(busy: Busy) -> None:
    busy.enter()
    kept: list[torch.Tensor] = []
    for _ in range(50):
        with lt.dispose_scope():
            kept.append(torch.ones(10))
    other_threads.catch_up()
    assert len(other_threads._late) <= 2  # pyright: ignore
    assert all(map(lt.is_disposed, kept))


def wait_with(lock: Any) -> None:
    with lock:
        pass


def run_python(is_over: list[bool]) -> None:
    for _ in iter(int, 1):
        if is_over:
            break


@pytest.mark.parametrize("how", ["event", "lock", "with", "queue", "loop"])
def test_one_that_waits_or_runs_only_python_is_not_waited_for(how: str) -> None:
    event, lock, queue, is_over = threading.Event(), threading.Lock(), SimpleQueue[int](), [False]
    lock.acquire()
    is_over.clear()
    work = {
        "event": event.wait,
        "lock": lambda: lock.acquire(),
        "with": lambda: wait_with(lock),
        "queue": lambda: queue.get(),
        "loop": lambda: run_python(is_over),
    }[how]
    with scope_with_a_tensor() as (_, storage):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        wait_for(lambda: place_of(thread) is None)
        time.sleep(0.05)
    freed = holders(storage)
    event.set()
    lock.release()
    queue.put(0)
    is_over.append(True)
    thread.join()
    assert freed == 1


def test_nor_is_a_pool_that_has_worked_inside() -> None:
    with ThreadPoolExecutor(1) as pool:
        with scope_with_a_tensor() as (x, storage):
            assert pool.submit(torch.Tensor.sum, x).result() == 1000
            (thread,) = pool._threads  # pyright: ignore
            wait_for(lambda: place_of(thread) is None)
        assert holders(storage) == 1


def test_no_method_of_a_tensor_is_named_as_one_that_waits() -> None:
    assert not [name for name in stacks.WAITS if hasattr(torch.Tensor, name)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_nor_one_that_waits_for_the_world() -> None:
    reader, writer = os.pipe()
    with scope_with_a_tensor() as (_, storage):
        thread = threading.Thread(target=lambda: call(map(os.read, [reader], [1])), daemon=True)
        thread.start()
        wait_for(lambda: reads_outside(thread))
    assert holders(storage) == 1
    os.write(writer, b"x")
    thread.join()
    os.close(reader)
    os.close(writer)


def test_a_call_that_calls_python_back_is_not_over_then() -> None:
    inside, back, lock = threading.Event(), threading.Event(), threading.Lock()
    lock.acquire()

    def step(_: object) -> None:
        inside.set()
        back.wait()

    with scope_with_a_tensor() as (_, storage):
        both = chain(map(_acquire, [lock]), map(step, [None]))
        thread = threading.Thread(target=call, args=(both,), daemon=True)
        thread.start()
        wait_for(lambda: is_in_call(thread))
    lock.release()
    inside.wait()
    other_threads.catch_up()
    assert holders(storage) == 2
    back.set()
    thread.join()
    wait_for(lambda: holders(storage) == 1)


def test_a_method_that_is_calling_python_back_is_not_over_either() -> None:
    inside, back, expected = threading.Event(), threading.Event(), 1000.0

    def step(value: float) -> float:
        inside.set()
        back.wait()
        return value + 1

    def work(box: list[torch.Tensor]) -> None:
        x = box[0]
        x.apply_(step)

    with lt.dispose_scope():
        x = torch.zeros(1000)
        array, storage = x.numpy(), x.untyped_storage()
        before = holders(storage)
        thread = threading.Thread(target=work, args=([x],), daemon=True)
        thread.start()
        inside.wait()
    assert holders(storage) == before
    back.set()
    thread.join()
    wait_for(is_nothing_late)
    assert array.sum() == expected


class Slow(torch.Tensor):
    """Its operators wait, inside PyTorch, until they may go on."""

    inside, back = threading.Event(), threading.Event()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.mul:
            Slow.inside.set()
            Slow.back.wait()
        return super().__torch_function__(func, types, args, kwargs or {})  # pyright: ignore


def test_nor_is_an_operator_of_a_class_of_ones_own() -> None:
    found: list[torch.Tensor] = []

    def work(box: list[torch.Tensor]) -> None:
        with suppress(lt.DisposedTensorError):
            found.append(box[0] * 2)

    with lt.dispose_scope():
        x = Slow([1.0, 2.0])
        thread = threading.Thread(target=work, args=([x],), daemon=True)
        thread.start()
        Slow.inside.wait()
    assert lt.is_disposed(x)
    assert not is_nothing_late()
    Slow.back.set()
    thread.join()
    wait_for(is_nothing_late)
    assert [x.tolist() for x in found] in ([], [[2.0, 4.0]])


def test_one_that_runs_one_line_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always found at the same place."""
    monkeypatch.setattr(other_threads, "_LONGEST_CALL_NS", 1_000_000)
    is_over, has_begun = [False], threading.Event()
    numbers = torch.rand(100_000)

    def work() -> None:
        has_begun.set()
        while not is_over[0]:
            numbers.sort()

    thread = threading.Thread(target=work, daemon=True)
    with scope_with_a_tensor() as (_, storage):
        thread.start()
        has_begun.wait()
    wait_for(lambda: holders(storage) == 1)
    is_over[0] = True
    thread.join()


def test_our_own_kernels_have_addresses_until_their_driver_returns() -> None:
    lock = threading.Lock()
    lock.acquire()
    space: dict[str, Any] = {"call": call, "steps": map(_acquire, [lock]), "go": threading.Event()}
    text = "def run():\n    call(steps)\n    go.wait()\n"
    exec(compile(text, "<lowtide driver>", "exec"), space)
    with scope_with_a_tensor() as (_, storage):
        thread = threading.Thread(target=space["run"], daemon=True)
        thread.start()
        wait_for(lambda: is_in_call(thread))
    lock.release()
    wait_for(lambda: not is_in_call(thread))
    other_threads.catch_up()
    assert holders(storage) == 2
    space["go"].set()
    thread.join()
    wait_for(lambda: holders(storage) == 1)


def test_no_frame_is_held_once_it_was_looked_at(busy: Busy) -> None:
    """Or what a function had would live on after its end."""
    gone: list[weakref.ref[torch.Tensor]] = []
    go = threading.Event()

    def work() -> None:
        local = torch.ones(3)
        gone.append(weakref.ref(local))
        go.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_for(lambda: bool(gone) and place_of(thread) is None)
    kept = [stacks.stack_of(thread.ident or 0) for _ in range(10)]
    go.set()
    thread.join()
    assert kept
    assert gone[0]() is None


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.005, 0.01, 0.02])
def test_what_the_other_thread_computes_is_right(pause_s: float) -> None:
    torch.manual_seed(0)
    has_begun, found = threading.Event(), list[torch.Tensor]()

    def sort(box: list[torch.Tensor]) -> None:
        has_begun.set()
        with suppress(lt.DisposedTensorError):
            found.append(box[0].sort().values)

    with lt.dispose_scope() as scope:
        x = torch.rand(300_000)
        expected = scope.move_to_outer(x.sort().values)
        thread = threading.Thread(target=sort, args=([x],), daemon=True)
        thread.start()
        has_begun.wait()
        time.sleep(pause_s)
    thread.join()
    torch.testing.assert_close(found, [expected] * len(found))


def test_counts_do_not_wait(busy: Busy, stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope():
        kept = [torch.ones(10) for _ in range(20)]
        slotted = torch.ones(3).as_subclass(Slotted)
        busy.enter()
    assert all(map(lt.is_disposed, kept))
    assert not lt.is_disposed(slotted)
    before = stats.to_dict()
    assert before["created_in_scope"] - before["disposed_in_scope"] <= 1  # the slotted one
    busy.leave()
    wait_for(is_nothing_late)
    assert stats.to_dict() == before


def two_tensors(kept: list[torch.Tensor], storages: list[torch.UntypedStorage]) -> None:
    with lt.dispose_scope():
        for x in (torch.ones(3), Named([1.0, 2.0])):
            kept.append(x)
            storages.append(torch.Tensor.untyped_storage(x))


def test_an_interrupt_loses_nothing_that_is_late(
    busy: Busy, stats: lt.ScopeStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_threads, "_see_to_it", lambda: None)
    stats.stop()
    two_tensors([], [])
    busy.enter()
    storages: list[torch.UntypedStorage] = []
    at, is_interrupted = 0, True
    while is_interrupted and at < 2_000:
        at += 1
        stats.reset()
        kept: list[torch.Tensor] = []
        is_interrupted = False
        try:
            with Interrupter(at).on():
                two_tensors(kept, storages)
        except KeyboardInterrupt:
            is_interrupted = True
        assert lt.current_dispose_scope() is None, at
        assert stats.created_in_scope == stats.disposed_in_scope, at
        assert all(map(lt.is_disposed, kept)), at
    assert 100 < at < 2_000
    busy.leave()
    other_threads.catch_up()
    assert is_nothing_late()
    assert {*map(holders, storages)} == {1}


def test_attributes_and_classes_stay_with_what_autograd_holds(busy: Busy) -> None:
    """As they do where nobody has to be waited for."""
    Saves.seen.clear()
    with lt.dispose_scope() as scope:
        x = torch.ones(10, requires_grad=True)
        h = (x * 2).as_subclass(Named)
        scope.attach(h)
        h.label = "h"
        loss: torch.Tensor = Saves.apply(h)  # pyright: ignore
        scope.move_to_outer(loss)  # pyright: ignore
        scope.move_to_outer(x)
        busy.enter()
    assert lt.is_disposed(h)
    busy.leave()
    wait_for(is_nothing_late)
    loss.sum().backward()
    assert Saves.seen == [(Named, "h")]


class Saves(torch.autograd.Function):
    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.as_subclass(torch.Tensor) * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Saves.seen.append((type(x), getattr(x, "label", None)))
        return grad_outputs[0] * 2


def test_a_backward_waits_a_moment_for_what_it_would_be_handed(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_threads, "_see_to_it", lambda: None)
    monkeypatch.setattr(other_threads, "_LONGEST_WAIT_S", PATIENCE_S)
    Saves.seen.clear()
    with lt.dispose_scope() as scope:
        h = torch.ones(10, requires_grad=True) * 2
        loss: torch.Tensor = Saves.apply(h)  # pyright: ignore
        scope.move_to_outer(loss)  # pyright: ignore
        busy.enter()
    leaves = threading.Timer(0.05, busy.leave)
    leaves.start()
    loss.sum().backward()
    leaves.join()
    assert Saves.seen == [(torch.Tensor, None)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_only_one_thread(busy: Busy) -> None:
    with scope_with_a_tensor() as (_, storage):
        busy.enter()
    assert holders(storage) == 2
    child = os.fork()
    if not child:
        with lt.dispose_scope():
            pass
        os._exit(0 if holders(storage) == 1 and is_nothing_late() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert holders(storage) == 2


ENDING = """
import threading, torch, lowtide as lt
from tests.scopes.test_other_threads import Busy
busy = Busy()
with lt.dispose_scope():
    kept = [torch.ones(100) for _ in range(20_000)]
    busy.enter()
busy.leave()
"""


@pytest.mark.parametrize("module", [("-c", ENDING), ("-m", "tests.scopes.threads_alone")])
def test_in_a_process_of_its_own(module: tuple[str, str]) -> None:
    """That ends while handles are emptied; that a tensor without memory would kill."""
    command = [sys.executable, *module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
