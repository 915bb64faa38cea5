"""A profile's begin and end: what it puts back, what it refuses, what others do meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import TorchFunctionMode

import lowtide as lt
from lowtide.tools.profiler import watch
from tests.profiler.programs import Block, row_of


def _patched() -> tuple[object, ...]:
    return (
        torch.nn.Module.__call__,
        threading.Thread.start,
        torch.compile,
        torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        "apply" in vars(torch.autograd.function._SingleLevelFunction),
    )


def test_everything_is_put_back() -> None:
    before = _patched()
    with lt.profile():
        assert _patched() != before
        Block()(torch.rand(2, 32))
    assert _patched() == before
    assert watch.current() is None
    assert not torch._C._is_torch_function_mode_enabled()


def test_an_exception_passes_through_and_ends_the_profile() -> None:
    before = _patched()
    with pytest.raises(ZeroDivisionError), lt.profile() as prof:  # noqa: PT012
        torch.ones(100)
        raise ZeroDivisionError
    assert _patched() == before
    assert row_of(prof, "aten::ones").self_bytes == 400
    with lt.profile() as again:
        torch.ones(100)
    assert again.peak_bytes == 400


def test_an_operator_that_raises() -> None:
    with lt.profile() as prof:
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        torch.zeros(5)
    assert row_of(prof, "aten::zeros").self_bytes == 20


def test_a_profile_inside_a_profile_is_refused() -> None:
    with lt.profile() as outer:
        with pytest.raises(lt.LowtideError, match="already running"), lt.profile():
            pass
        torch.ones(10)
    assert outer.peak_bytes == 40


def test_pytorchs_profiler_is_not_disturbed() -> None:
    with (
        torch.profiler.profile() as theirs,
        pytest.raises(lt.LowtideError, match="PyTorch's own"),
        lt.profile(),
    ):
        pass
    assert theirs is not None
    with lt.profile() as prof:
        torch.ones(10)
    assert prof.peak_bytes == 40


def test_a_profile_runs_once() -> None:
    with lt.profile() as prof:
        torch.ones(1)
    with pytest.raises(lt.LowtideError, match="run only once"), prof:
        pass
    with pytest.raises(lt.LowtideError, match="call it inside"):
        prof.step()


def test_it_can_be_asked_while_it_runs() -> None:
    with lt.profile() as prof:
        kept = torch.ones(100)
        assert prof.peak_bytes == 400
        more = torch.ones(200)
        assert prof.peak_bytes == 1200
        del kept
    assert prof.peak_bytes == 1200
    assert [one.nbytes for one in prof.live_at_peak()] == [800, 400]
    del more


def test_other_modes_of_the_user_work_on() -> None:
    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with lt.profile() as prof, Counting() as mode, torch.device("cpu"):
        torch.ones(100).exp()
    assert mode.calls >= 2
    assert row_of(prof, "aten::exp").self_bytes == 400


def test_results_are_the_same() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.rand(9, 32)
    expected = model(x)
    expected.sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    with lt.profile():
        result = model(x)
        result.sum().backward()
    assert torch.equal(result, expected)
    assert all(map(torch.equal, grads, (parameter.grad for parameter in model.parameters())))


def test_a_thread_that_outlives_the_profile() -> None:
    go, done = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def work() -> None:
        try:
            torch.ones(100)
            done.set()
            go.wait(10)
            for _ in range(100):
                torch.ones(1000).exp()
            assert watch.current() is None
        except BaseException as fault:
            problems.append(fault)

    with lt.profile() as prof:
        thread = threading.Thread(target=work)
        thread.start()
        done.wait(10)
    go.set()
    thread.join()
    assert not problems
    assert prof.peak_bytes == 400


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return (x @ x).tanh()


@torch.jit.script
def scripted_products(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = (x @ x).tanh()
    return x


def _in_a_range(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("products"):
        return (x @ x).tanh()


def _backward(x: torch.Tensor) -> torch.Tensor:
    weight = x.clone().requires_grad_()
    torch.autograd.backward([(weight @ weight).tanh().sum()])
    return x


@pytest.mark.parametrize(
    "work",
    [lambda x: (x @ x).tanh(), Product.apply, scripted_products, _in_a_range, _backward],
    ids=["calls", "function", "script", "range", "backward"],
)
def test_threads_in_the_middle_of_work_when_it_ends(
    work: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """PyTorch frees what it recorded into: no event may be open then, or begin."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def run() -> None:
        x = torch.rand(64, 64)
        while not stop.is_set():
            x = work(x)

    before = _patched()
    for _ in range(5):
        with lt.profile() as prof:
            started = [threading.Thread(target=run) for _ in range(2)]
            for thread in started:
                thread.start()
            threads += started
            torch.ones(1000).exp()
        assert prof.peak_bytes >= 8000
    stop.set()
    for thread in threads:
        thread.join()
    assert _patched() == before


class Waiting(torch.autograd.Function):
    inside, go_on = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        Waiting.inside.set()
        Waiting.go_on.wait(60)
        return x.exp()


def test_an_apply_that_was_taken_hold_of_before_is_waited_for() -> None:
    """As in `spike = Spike.apply` beside the class; the trace beside it has its own layer there."""
    threads = [
        threading.Thread(target=Waiting.apply, args=(torch.ones(100),)),
        threading.Timer(0.2, Waiting.go_on.set),
    ]
    with lt.profile() as prof:
        lt.trace(torch.exp, (torch.ones(3),))
        for thread in threads:
            thread.start()
        assert Waiting.inside.wait(60)
    assert Waiting.go_on.is_set()
    for thread in threads:
        thread.join()
    assert len([row for row in prof.rows() if row.op == "aten::exp"]) == 2  # the trace's, and this


def test_a_call_that_was_dispatched_before_the_end_is_not_recorded() -> None:
    """The end looks whether a thread is inside a call: one that has not said so yet stays out."""
    watcher = watch.ThreadWatcher(1)
    watcher.end()
    assert watcher.__torch_function__(torch.exp, (), (torch.zeros(1),)).item() == 1.0
    assert not watcher.notes
    assert not watcher.is_busy


def test_a_pool_of_threads() -> None:
    with lt.profile() as prof, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: torch.ones(n).exp(), [10, 20, 30]))
    assert sum(row.calls for row in prof.rows() if row.op == "aten::exp") == 3


def test_a_nested_tensor_is_alive_meanwhile() -> None:
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 3)])
    with lt.profile() as prof:
        kept = torch.rand(1000)
    assert prof.peak_bytes >= 4000
    assert kept.numel() == 1000
    assert nested.size(0) == 2


def test_another_thread_cannot_end_or_ask_it() -> None:
    faults: list[BaseException] = []

    def elsewhere() -> None:
        for use in (lambda: prof.__exit__(None, None, None), lambda: prof.peak_bytes):
            try:
                use()
            except lt.LowtideError as fault:
                faults.append(fault)

    with lt.profile() as prof:
        torch.ones(100)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.ones(200)
    assert ["on the thread that began it" in str(fault) for fault in faults] == [True, True]
    assert prof.peak_bytes == 800
    with lt.profile() as again:
        torch.ones(10)
    assert again.peak_bytes == 40


def test_pytorchs_profiler_inside_is_refused() -> None:
    """It would take over the recording, and all that was seen would be lost."""
    with lt.profile() as prof:
        torch.ones(100)
        with pytest.raises(lt.LowtideError, match="is running"):
            torch.profiler.profile().start()
        with pytest.raises(lt.LowtideError, match="is running"), torch.autograd.profiler.profile():
            pass
        torch.ones(10)
    assert prof.peak_bytes == 400
    with torch.profiler.profile() as theirs:
        torch.ones(3)
    assert any(event.name == "aten::ones" for event in theirs.events() or ())


def test_a_pool_of_threads_that_were_there_before() -> None:
    with ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2)
        list(pool.map(lambda _: barrier.wait(10), range(2)))  # both threads run
        for n in (10, 20):
            with lt.profile() as prof:
                list(pool.map(lambda n: torch.ones(n).exp(), [n, n, n]))
            (row,) = [row for row in prof.rows() if row.op == "aten::exp"]
            assert (row.calls, row.self_bytes) == (3, 3 * n * 4)
        left = pool.map(lambda _: (watch.current(), torch._C._len_torch_function_stack()), range(4))
        assert list(left) == [(None, 0)] * 4


def test_a_pool_whose_threads_were_started_in_an_earlier_profile() -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            with lt.profile() as prof:
                pool.submit(torch.ones, 10).result()
            assert row_of(prof, "aten::ones").self_bytes == 40
        depth = pool.submit(lambda: torch._C._len_torch_function_stack()).result()
        assert depth <= 1  # the last one's, until the next work or the thread's end


def test_what_is_put_around_a_profiles_patches_stays() -> None:
    """The first dispose scope of a process opens within a profile."""
    script = """
import torch, lowtide as lt
norms, layer = [], torch.nn.Linear(2, 2)
layer.weight.register_hook(lambda g: norms.append(g.norm()))
with lt.profile(), lt.dispose_scope():
    torch.ones(3)
with lt.dispose_scope():
    layer(torch.ones(1, 2)).sum().backward()
assert lt.is_disposed(norms[0])
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_one_that_nobody_has_any_more_is_over() -> None:
    lt.profile().__enter__()
    gc.collect()
    with lt.profile() as prof:
        torch.ones(10)
    assert prof.peak_bytes == 40


def test_one_that_never_ran_has_nothing_to_tell() -> None:
    with pytest.raises(lt.LowtideError, match="nothing was profiled"):
        lt.profile().table()
