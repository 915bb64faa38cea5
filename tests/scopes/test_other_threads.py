"""A tensor that is disposed while another thread is inside PyTorch with it."""

from __future__ import annotations

import dis
import glob
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest
import torch

import lowtide as lt
from lowtide.memory.scopes import disposed, others
from lowtide.memory.scopes.cpython import stack_depths

pytestmark = pytest.mark.skipif(not others.can_see(), reason="operands cannot be read here")

# A use of x, of a million elements, in another thread. `cb` adds one, and takes its time.
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
    "a function called back": "x.apply_(cb)",
    "a lambda called back": "x.apply_(lambda v: cb(v))",
    "a method called back": "x.apply_(Work().cb)",
    "for each": "for t in [x] * 3: t.exp_()",
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
def cb(v):
    return v + 1
class Work:
    def cb(self, v):
        return cb(v)
async def co(x):
    x.exp_()
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
        except lt.DisposedTensorError:
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
    run(PROGRAM.format(use=USES["a function called back"], end=ENDS["with"], times=TIMES))


WAITS: dict[str, Callable[[threading.Event, torch.Tensor], object]] = {
    "an event": lambda event, x: event.wait(),
    "with a time": lambda event, x: event.wait(timeout=60.0 + len(x)),
    "sleeping": lambda event, x: [time.sleep(0.001) for _ in iter(event.is_set, True)],
    "in a loop": lambda event, x: [event.wait() for _ in [x]],
    "after a call": lambda event, x: (torch.add(x, x, out=None), max(x, x, key=len), event.wait()),
}


@pytest.mark.parametrize("wait", WAITS)
def test_threads_that_wait_keep_nothing(wait: str) -> None:
    """With the tensor in a local variable, an argument, a loop, or what a call has left behind."""
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
        time.sleep(0.05)
    is_pending = [one[0]() is kept[0] for one in disposed._pending.values()]
    event.set()
    thread.join()
    assert not any(is_pending)


def test_only_operands_are_kept_and_only_until_the_next_end() -> None:
    event, is_on = threading.Event(), threading.Event()

    def called_back(value: float) -> float:
        is_on.set()
        event.wait()
        return value + 1

    kept: list[torch.Tensor] = []

    def work() -> None:
        for x in kept:
            x.apply_(called_back)

    results: list[BaseException | None] = []

    def worker() -> None:
        try:
            work()
        except lt.DisposedTensorError as error:
            results.append(error)

    thread = threading.Thread(target=worker)
    with lt.dispose_scope():
        kept += [torch.zeros(2), torch.zeros(2), torch.zeros(2)]
        thread.start()
        is_on.wait()
    pending = [one[0]() for one in disposed._pending.values()]
    assert all(lt.is_disposed(t) for t in kept)
    assert any(t is kept[0] for t in pending)
    assert not any(t is kept[1] or t is kept[2] for t in pending)
    with lt.dispose_scope():  # not yet
        pass
    assert any(one[0]() is kept[0] for one in disposed._pending.values())
    del pending
    event.set()
    thread.join()
    assert len(results) == 1  # of the second tensor
    with lt.dispose_scope():
        pass
    assert not disposed._pending


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
assert not [one for one in disposed._pending.values() if one[0]() is not None]
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
            pending = [one[0]() for one in disposed._pending.values()]
            assert not any(t is kept[0] for t in pending), at
            kept.clear()
            del pending
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
