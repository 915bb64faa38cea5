"""A tensor that is disposed while another thread may be inside PyTorch with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lowtide as lt
from lowtide.memory.scopes import disposed, threads

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


def run(program: str, **environment: str) -> None:
    environment = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600, env=environment)


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


@contextmanager
def waiting_thread() -> Iterator[None]:
    """Another thread runs Python while this is open."""
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    try:
        yield
    finally:
        event.set()
        thread.join()


def weak(tensor: torch.Tensor) -> torch.multiprocessing.reductions.StorageWeakRef:
    return torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())


def test_threads_use_tensors_while_their_scope_is_closed() -> None:
    """Each use gives the right value or raises DisposedTensorError; nothing crashes, though freed
    memory is not mapped any more."""
    run(
        """
import threading, time, torch, lowtide as lt
torch.set_num_threads(1)
n = 500
shared, is_over, counts, wrong = [(0.0, torch.zeros(n, n))], False, [0, 0], []
USES = (
    lambda x, v: x.sum().item() == n * n * v,
    lambda x, v: x.add_(0.0).max().item() == v,
    lambda x, v: x.cumsum(0).max().item() == n * v,
    lambda x, v: x.sort().values.min().item() == v,
    lambda x, v: torch.cat([x, x]).min().item() == v,
    lambda x, v: (x @ x).max().item() == n * v * v,
    lambda x, v: x.double().mean().item() == v,
)
def work(k):
    while not is_over:
        k += 1
        value, x = shared[0]
        try:
            if not USES[k % len(USES)](x, value):
                wrong.append((k % len(USES), value))
            counts[0] += 1
        except lt.DisposedTensorError:
            counts[1] += 1
workers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
[worker.start() for worker in workers]
for k in range(1, 120):
    with lt.dispose_scope():
        kept = shared[0] = float(k), torch.full((n, n), float(k))
        time.sleep(0.0005 * (k % 7))
    assert lt.is_disposed(kept[1])
is_over = True
[worker.join() for worker in workers]
assert min(counts) > 0 and not wrong, (counts, wrong)
""",
        MALLOC_MMAP_THRESHOLD_="65536",
    )


def test_beside_another_thread_memory_goes_with_the_last_reference() -> None:
    with waiting_thread():
        with lt.dispose_scope():
            kept = [torch.zeros(2)]
            memory = weak(kept[0])
        assert lt.is_disposed(kept[0])
        assert not memory.expired()
        kept.clear()
        assert memory.expired()


def test_on_another_thread_memory_goes_with_the_last_reference() -> None:
    found: list[bool] = []

    def work() -> None:
        with lt.dispose_scope():
            kept = [torch.zeros(2)]
            memory = weak(kept[0])
        found.extend((lt.is_disposed(kept[0]), memory.expired()))
        kept.clear()
        found.append(memory.expired())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, False, True]


def test_after_the_last_thread_memory_goes_at_the_end() -> None:
    with waiting_thread():
        pass
    with lt.dispose_scope():
        kept = [torch.zeros(2)]
        memory = weak(kept[0])
    assert lt.is_disposed(kept[0])
    assert memory.expired()


def test_threads_of_a_loader_do_not_count() -> None:
    """Of its queues and, where there is a GPU, for pinned memory: they use no tensors of ours."""
    data = TensorDataset(torch.arange(8.0))
    memories: list[torch.multiprocessing.reductions.StorageWeakRef] = []
    kept: list[torch.Tensor] = []
    for (batch,) in DataLoader(data, batch_size=4, num_workers=1):
        assert not threads.is_alone()
        with lt.dispose_scope():
            kept.append(batch * 2)
            memories.append(weak(kept[-1]))
    assert [memory.expired() for memory in memories] == [True, True]


def test_a_thread_of_the_same_class_as_one_that_does_not_count_does() -> None:
    """By name: a class of the user's that derives from it is not known."""

    class TMonitor(threading.Thread):
        pass

    TMonitor.__module__, TMonitor.__qualname__ = "tqdm._monitor", "TMonitor"

    class Derived(TMonitor):
        pass

    event = threading.Event()
    for kind, is_counted in ((TMonitor, False), (Derived, True)):
        event.clear()
        thread = kind(target=event.wait)
        thread.start()
        assert threads.may_share() == is_counted
        event.set()
        thread.join()


def test_where_threads_cannot_be_counted_tensors_may_be_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Near the limit of recursion, say."""

    def fail() -> int:
        raise RecursionError

    monkeypatch.setattr(threads, "count_of_threads", fail)
    assert threads.may_share()


def test_retained_gradients_wait_for_an_end_without_other_threads() -> None:
    x = torch.ones(2, requires_grad=True)
    with lt.dispose_scope():
        kept = [x * 2]
        kept[0].retain_grad()
        memory = weak(kept[0])
        loss = lt.detach_from_dispose_scope((kept[0] * kept[0]).sum())
    assert lt.is_disposed(kept[0])
    del loss
    with waiting_thread():
        with lt.dispose_scope():
            pass
        assert not memory.expired()
    with lt.dispose_scope():
        pass
    assert memory.expired()
    assert not disposed._pending


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
""")


def test_busy_threads_lose_none_of_their_own_tensors() -> None:
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
            kept.clear()
            assert stats.thread_total_live == 0, at
        assert 100 < at < 3_000
    finally:
        event.set()
        thread.join()
