"""A tensor that is disposed while another thread is inside PyTorch with it."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import dis
import errno
import functools
import gc
import glob
import os
import queue
import select
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

import pytest
import torch

import lowtide as lt
from lowtide.memory.scopes import cpython, disposed, others, reading
from lowtide.memory.scopes.cpython import stack_depths

pytestmark = pytest.mark.skipif(not others.can_see(), reason="operands cannot be read here")

# A use of x, of a million elements, in another thread.
USES = {
    "in_place": "x.exp_()",
    "an argument": "x.add_(y)",
    "matmul": "x.view(1000, -1) @ x.view(-1, 1000)",
    "an operator": "x @ x",
    "an operator in place": "x += y",
    "a sum": "x.sum()",
    "a result": "x.exp()",
    "a view": "x.T.contiguous()",
    "a descriptor": "torch.Tensor.exp(x)",
    "map": "list(map(torch.Tensor.exp_, [x]))",
    "map of a dict": "list(map(torch.Tensor.exp_, {'a': x}.values()))",
    "map of a generator": "list(map(torch.Tensor.exp_, (t for t in [x])))",
    "partial": "functools.partial(torch.Tensor.exp_, x)()",
    "a class of partial": "P(torch.Tensor.exp_, x)()",
    "a class of map": "list(M(torch.Tensor.exp_, [x]))",
    "a static method": "staticmethod(x.exp_)()",
    "methodcaller": "operator.methodcaller('exp_')(x)",
    "a bound method": "f = x.exp_; f()",
    "star": "torch.Tensor.exp_(*(x,))",
    "item": "x[::2] = 1.0",
    "negation": "-x",
    "a comprehension": "[t.exp_() for t in (x, x)]",
    "a generator": "list(t.exp_() for t in (x, x))",
    "a coroutine": "asyncio.run(co(x))",
    "a function of autograd": "F.apply(x)",
    "an executor": "pool.submit(torch.Tensor.exp_, x).result()",
    "a thread": "t = threading.Thread(target=x.exp_); t.start(); t.join()",
    "for each": "for t in [x] * 3: t.exp_()",
    "a function": "torch.exp(x)",
    "out": "torch.exp(y.expand(n, n), out=x)",
    "a temporary": "x.t().exp()",
    "by name": "torch.add(input=x, other=x)",
    "cat": "torch.cat([x, x])",
    "stack of a dict": "torch.stack([*{'a': x}.values()])",
    "einsum": "torch.einsum('ij,jk->ik', [x, x])",
    "indexing": "x[x > 0.5]",
    "an index": "y.expand(n, n)[x > 0.5]",
    "setting by a mask": "x[x > 0.5] = 0.0",
    "a convolution": "torch.conv2d(x.view(1, 1, n, n), x[:3, :3].reshape(1, 1, 3, 3))",
    "a linear layer": "torch.nn.functional.linear(x, x)",
    "a module": "torch.nn.Linear(n, n)(x)",
    "backward": "x.requires_grad_().exp().sum().backward()",
    "a conversion": "x.double()",
    "a copy": "x.clone()",
    "copied into": "x.copy_(y.expand(n, n))",
    "numpy": "x.numpy().sum()",
    "a sum of a list": "sum([x, x])",
    "a sort": "x.sort()",
    "a scope": "with lt.dispose_scope(): x.exp_().exp()",
}
ENDS = {
    "with": "with lt.dispose_scope():\n        body()",
    "dispose": "body(); lt.dispose(xs)",
    "everything": "with lt.dispose_scope() as s:\n        body(); s.dispose_everything()",
    "by hand": "s = lt.dispose_scope().__enter__(); body(); s.dispose()",
    "a decorator": "lt.dispose_scope(body)()",
}
PROGRAM = """
import asyncio, concurrent.futures, functools, operator, sys, threading, time, torch
import lowtide as lt
from lowtide.memory.scopes import disposed
torch.set_num_threads(1)
pool = concurrent.futures.ThreadPoolExecutor(1)
n = 1000
y = torch.ones(())
async def co(x):
    x.exp_()
class P(functools.partial):
    pass
class M(map):
    pass
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()
    @staticmethod
    def backward(ctx, g):
        return g
before = lt.scope_statistics().thread_total_live
def once(delay):
    xs, answers, is_on = [], [], threading.Event()
    def use():
        x = xs[0]
        is_on.set()
        try:
            {use}
            answers.append("right")
        except Exception as error:
            while not isinstance(error, lt.DisposedTensorError):
                error = error.__cause__ or error.__context__
                assert error is not None
            answers.append("disposed")
    thread = threading.Thread(target=use)
    def body():
        xs.append(torch.rand(n, n))
        thread.start()
        is_on.wait()
        time.sleep(delay)
    {end}
    gone = xs[0]
    assert lt.is_disposed(gone)
    thread.join()
    assert len(answers) == 1, answers
    with lt.dispose_scope():
        pass
    assert not disposed._pending
    try:
        gone.sum()
    except lt.DisposedTensorError:
        return
    raise AssertionError("it can be used")
for k in range({times}):
    once(0.0004 * (k % 8))
assert lt.scope_statistics().thread_total_live == before
pool.shutdown()
"""
TIMES = int(os.environ.get("LOWTIDE_TEST_TIMES", "4"))


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


CASES = {
    **{name: (use, ENDS["with"]) for name, use in USES.items()},
    **{f"ended by {name}": ("x.exp_()", end) for name, end in ENDS.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(CASES), 5))
def test_a_tensor_that_another_thread_is_using(first: int) -> None:
    """In a process of its own, which it would end."""
    cases = [*CASES.items()][first : first + 5]
    text = ""
    for name, (use, end) in cases:
        text += f"print({name!r}, flush=True)\n" + PROGRAM.format(use=use, end=end, times=TIMES)
    run(text)


def test_a_few_of_them() -> None:
    run(PROGRAM.format(use=USES["in_place"], end=ENDS["with"], times=TIMES))
    run(PROGRAM.format(use=USES["map"], end=ENDS["with"], times=TIMES))


class Making:
    def __init__(self, wait: Callable[[], object], *_: object) -> None:
        wait()


def wait_lock(event: threading.Event, x: torch.Tensor) -> None:
    lock = threading.Lock()
    threading.Timer(0.3, lock.release).start()
    lock.acquire()
    with lock:
        pass


def wait_queue(event: threading.Event, x: torch.Tensor) -> None:
    items: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Timer(0.3, items.put, (None,)).start()
    for _ in iter(items.get, None):
        pass


def wait_socket(event: threading.Event, x: torch.Tensor) -> None:
    here, there = socket.socketpair()
    threading.Timer(0.3, there.send, (b"x",)).start()
    select.select([here], [], [here], 60)
    here.recv(1)


def wait_loop(event: threading.Event, x: torch.Tensor) -> None:
    async def main() -> None:
        await asyncio.to_thread(lambda x: event.wait(), x)

    asyncio.run(main())


# How a thread may wait, with the tensor in a variable, or in a call of Python's around it.
WAITS: dict[str, Callable[[threading.Event, torch.Tensor], object]] = {
    "an event": lambda event, x: event.wait(),
    "with a time": lambda event, x: event.wait(timeout=60.0 + len(x)),
    "sleeping": lambda event, x: [time.sleep(0.001) for _ in iter(event.is_set, True)],
    "in a loop": lambda event, x: [event.wait() for _ in [x]],
    "after a call": lambda event, x: (torch.add(x, x, out=None), max(x, x, key=len), event.wait()),
    "in a context": lambda event, x: contextvars.copy_context().run(lambda x: event.wait(), x),
    "in a constructor": lambda event, x: Making(event.wait, x),
    "in a cached function": lambda event, x: functools.cache(lambda x: event.wait())(x),
    "by arguments": lambda event, x: event.wait(*x[:0], timeout=60.0),
    "a partial": lambda event, x: functools.partial(event.wait, timeout=60.0)(),
    "called back": lambda event, x: max([x], key=lambda x: event.wait()),
    "beside a long list": lambda event, x: [event.wait() for x in [x] * 100_000 if id(x) > 0][:0],
    "a lock": wait_lock,
    "a queue": wait_queue,
    "a socket": wait_socket,
    "an event loop": wait_loop,
}


def pending() -> list[torch.Tensor | None]:
    return [ref() for _, refs in disposed._pending.values() for ref in refs]


@pytest.mark.parametrize("wait", WAITS)
def test_threads_that_wait_keep_nothing(wait: str) -> None:
    event, is_on = threading.Event(), threading.Event()

    def work(x: torch.Tensor) -> None:
        is_on.set()
        WAITS[wait](event, x)

    kept: list[torch.Tensor] = []
    with lt.dispose_scope():
        kept.append(torch.ones(3))
        thread = threading.Thread(target=work, args=(kept[0],))
        thread.start()
        is_on.wait()
        time.sleep(0.1)
    is_pending = any(tensor is kept[0] for tensor in pending())
    event.set()
    thread.join()
    assert not is_pending


pairs = functools.partial(zip, strict=False)


@contextmanager
def in_c(work: Callable[[Iterator[bool]], object]) -> Iterator[None]:
    """A thread is in C code, which has taken from an iterator, while this is open."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lambda: work(map(lock.acquire, [True])))
    thread.start()
    time.sleep(0.1)
    yield
    lock.release()
    thread.join()


def test_only_operands_are_kept_and_only_until_the_next_end() -> None:
    kept = [torch.zeros(2), torch.zeros(2), torch.zeros(2)]

    def work(waits: Iterator[bool]) -> None:
        for _ in kept:
            x, _y = kept[:2]
            dict.fromkeys(waits, x)

    with in_c(work):
        lt.dispose(kept)
        assert all(map(lt.is_disposed, kept))
        assert [t is kept[0] for t in pending()] == [True]
        with lt.dispose_scope():  # not yet
            pass
        assert [t is kept[0] for t in pending()] == [True]
    with lt.dispose_scope():
        pass
    assert not disposed._pending


@pytest.mark.parametrize("holds", [
    lambda waits, x: list(pairs(waits, [x])),
    lambda waits, x: list(pairs(waits, (None, x))),
    lambda waits, x: list(pairs(waits, {"a": x}.values())),
    lambda waits, x: list(pairs(waits, (t for t in [x]))),
    lambda waits, x: list(pairs(waits, [x] * 5_000)),
    lambda waits, x: list(pairs(waits, map(id, iter([x])))),
    lambda waits, x: list(pairs(waits, {x, None, *range(50)})),
    lambda waits, x: functools.partial(dict.fromkeys, waits, x)(),
    lambda waits, x: functools.partial(dict.fromkeys, waits)(x),
    lambda waits, x: dict.fromkeys(*[waits, x]),
    lambda waits, x: sorted(waits, key=lambda _: [x]) and sorted(waits),
])  # fmt: skip
def test_what_operands_lead_to_is_kept(holds: Callable[..., object]) -> None:
    x = torch.zeros(2)
    with in_c(lambda waits: holds(waits, x)):
        lt.dispose(x)
        is_kept = any(t is x for t in pending())
    with lt.dispose_scope():
        pass
    assert is_kept
    assert not disposed._pending


def test_long_containers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    items, sizes = [0] * 1_000_000, list[int]()
    plain = cpython.blocks

    def counting(parts: list[tuple[int, int]]) -> list[bytes | None]:
        sizes.append(sum(size for _, size in parts))
        return plain(parts)

    with in_c(lambda waits: list(pairs(waits, items))):
        monkeypatch.setattr(reading, "blocks", counting)
        monkeypatch.setattr(cpython, "blocks", counting)
        lt.dispose(torch.zeros(1))
        with lt.dispose_scope():
            _ = kept = torch.zeros(1)
    assert lt.is_disposed(kept)
    assert 0 < sum(sizes) < 20_000


def test_a_call_that_has_returned_works_on_nothing() -> None:
    """A busy thread that makes long lists keeps nothing, if it is met between two instructions."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            [*range(5_000)].copy()

    thread = threading.Thread(target=work)
    thread.start()
    count = 0
    for _ in range(100):
        kept: list[torch.Tensor] = []
        with lt.dispose_scope():
            kept.append(torch.zeros(1))
            time.sleep(0)
        count += any(t is kept[0] for t in pending())
    is_over.set()
    thread.join()
    assert count == 0


@pytest.mark.parametrize("error", [OSError, struct.error, RecursionError, MemoryError])
def test_a_search_that_fails_keeps_all_until_the_next_end(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(ids: list[int]) -> set[int]:
        raise error

    kept: list[torch.Tensor] = []
    with in_c(list):
        with monkeypatch.context() as patch:
            patch.setattr(others, "used_by_others", fail)
            with lt.dispose_scope():
                kept.append(torch.zeros(1))
        assert lt.is_disposed(kept[0])
        assert any(t is kept[0] for t in pending())
        with lt.dispose_scope():
            pass
        assert not disposed._pending


def test_a_process_that_may_read_no_more_crashes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a filter of system calls that is set late: all is kept, and then tried out anew."""

    def refused(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    kept: list[torch.Tensor] = []
    with in_c(list):
        with monkeypatch.context() as patch:
            patch.setattr(reading, "_process_vm_readv", refused)
            with lt.dispose_scope():
                kept.append(torch.zeros(1))
            assert any(t is kept[0] for t in pending())
            assert not others.can_see()
        others.can_see.cache_clear()
        assert others.can_see()
    with lt.dispose_scope():
        pass
    assert not disposed._pending


def test_an_interrupt_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gc.disable

    def interrupted() -> None:
        plain()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "disable", interrupted)
    with pytest.raises(KeyboardInterrupt):
        others._standing()
    assert gc.isenabled()


def test_what_is_no_address_is_not_read() -> None:
    parts = [(1 << 64, 8), (-8, 8), (3, 8), ((1 << 64) - 8, 8)]
    assert reading.blocks(parts) == [None] * 4


def test_a_tensor_that_is_disposed_by_what_its_method_calls() -> None:
    """On the same thread, and on another."""
    run("""
import threading, torch, lowtide as lt
x = torch.zeros(100, 100)
y = torch.zeros(100, 100)
def end(*values):
    lt.dispose(x)
    return 1.0
assert lt.is_disposed(x.apply_(end))
x = torch.zeros(100, 100)
assert lt.is_disposed(x.map_(y, end))
x = torch.zeros(100, 100)
assert lt.is_disposed(x.map2_(y, y, end))
is_on, is_over = threading.Event(), threading.Event()
def wait(value):
    is_on.set()
    is_over.wait()
    return value + 1
def work():
    x.apply_(wait)
thread = threading.Thread(target=work)
with lt.dispose_scope():
    x = torch.zeros(100, 100)
    thread.start()
    is_on.wait()
assert lt.is_disposed(x)
is_over.set()
thread.join()
try:
    x.apply_(wait)
except lt.DisposedTensorError:
    pass
else:
    raise AssertionError
""")


def test_threads_start_and_end_all_the_time() -> None:
    run("""
import threading, torch, lowtide as lt
from lowtide.memory.scopes import disposed
is_over = False
def short():
    with lt.dispose_scope():
        (torch.rand(8) * 2).exp_()
def starting():
    while not is_over:
        threads = [threading.Thread(target=short) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
starters = [threading.Thread(target=starting) for _ in range(2)]
[starter.start() for starter in starters]
lt.scope_statistics()
for _ in range(400):
    kept = []
    with lt.dispose_scope():
        kept += [torch.rand(4) for _ in range(3)]
    assert all(map(lt.is_disposed, kept))
is_over = True
[starter.join() for starter in starters]
assert lt.scope_statistics().thread_total_live == 0
with lt.dispose_scope():
    pass
assert not disposed._pending and not disposed._kept
""")


def test_busy_threads_lose_none_of_their_own_tensors() -> None:
    """Their frames are read while they run, and nothing in them is held."""
    run("""
import threading, torch, lowtide as lt
from torch.nn import functional
is_over, live = False, []
def busy():
    stats = lt.scope_statistics()
    while not is_over:
        with lt.dispose_scope() as scope:
            x = torch.rand(4, 4)
            kept = [functional.normalize(x), *x.split(2)]
            kept.append(torch.stft(torch.rand(64), 16, return_complex=True))
            assert scope.disposables_count >= 5, scope.disposables_count
        assert all(map(lt.is_disposed, kept))
    live.append(stats.thread_total_live)
threads = [threading.Thread(target=busy) for _ in range(3)]
[thread.start() for thread in threads]
for _ in range(300):
    kept = []
    with lt.dispose_scope():
        kept += [torch.rand(4) for _ in range(3)]
is_over = True
[thread.join() for thread in threads]
assert live == [0, 0, 0], live
""")


def test_a_forked_process_goes_on() -> None:
    run("""
import os, threading, torch, lowtide as lt
event = threading.Event()
threading.Thread(target=event.wait, daemon=True).start()
def scope():
    kept = []
    with lt.dispose_scope():
        kept.append(torch.ones(1))
    assert lt.is_disposed(kept[0])
scope()
pid = os.fork()
scope()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""")


def test_an_interrupt_among_threads_loses_no_tensor(stats: lt.ScopeStatistics) -> None:
    from test_interrupts import Interrupter, a_scope

    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    try:
        a_scope([])
        at, is_interrupted = 0, True
        while is_interrupted and at < 3_000:
            at += 1
            stats.reset()
            kept: list[torch.Tensor] = []
            is_interrupted = False
            try:
                with Interrupter(at).on():
                    a_scope(kept)
            except KeyboardInterrupt:
                is_interrupted = True
            assert all(lt.is_disposed(t) for t in kept[:4]), at
            assert not any(t is kept[0] for t in pending()), at
            kept.clear()
            assert stats.thread_total_live == 0, at
        assert 100 < at < 3_000
    finally:
        event.set()
        thread.join()


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_of(const)


def test_depths_of_stacks_are_those_of_the_compiler() -> None:
    """Each function of some of the standard library returns with one value, and needs no more than
    its code says."""
    files = glob.glob(os.path.join(sysconfig.get_path("stdlib"), "[a-d]*.py"))
    files += glob.glob(os.path.join(sysconfig.get_path("stdlib"), "asyncio", "*.py"))
    count = 0
    for file in files:
        for code in codes_of(compile(Path(file).read_bytes(), file, "exec")):
            depths = stack_depths(code)
            count += 1
            assert 0 <= min(depths.values()) <= max(depths.values()) <= code.co_stacksize
            ends = [i.offset for i in dis.get_instructions(code) if i.opname == "RETURN_VALUE"]
            assert all(depths.get(offset, 1) == 1 for offset in ends), code
    assert count > 1_000


def test_the_scan_is_linear() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()

    def cost_ns(count: int) -> int:
        kept: list[torch.Tensor] = []
        with lt.dispose_scope():
            kept += [torch.ones(1) for _ in range(count)]
            begin = time.thread_time_ns()
        return (time.thread_time_ns() - begin) // count

    few = min(cost_ns(1_000) for _ in range(3))
    many = cost_ns(50_000)
    event.set()
    thread.join()
    assert many < 5 * few
