"""Loops that are called again with the same memory are CUDA graphs, on a stand-in for a GPU."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton import steps
from lowtide.codegen.triton.driver import BlockDialect
from lowtide.runtime import graphs
from lowtide.runtime.graphs import GRAPHS, Graphs
from lowtide.tile import block_arrangement
from tests.blocks.stand_in import Gpu, Graph, Launched

STEPS, ROWS, WIDTH = 8, 40, 36  # several programs
CPU = torch.device("cpu")


@dataclass(slots=True)
class Memory:
    """As PyTorch's allocator for a GPU, it hands calls what earlier ones have given `back`."""

    kept: dict[tuple[object, ...], list[Tensor]] = field(
        default_factory=dict[tuple[object, ...], list[Tensor]]
    )
    taken: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        key = shape, dtype
        of_its_kind, place = self.kept.setdefault(key, []), self.taken.count(key)
        self.taken.append(key)
        if place == len(of_its_kind):
            of_its_kind.append(torch.empty(shape, dtype=dtype))
        return of_its_kind[place]

    def back(self) -> None:
        self.taken.clear()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    found = Memory()
    real = BlockDialect.scope

    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: object) -> Tensor:
        return found.empty(shape, dtype)

    monkeypatch.setattr(BlockDialect, "scope", lambda *x: {**real(*x), "empty": empty})
    # else one program would go through all steps
    monkeypatch.setattr(block_arrangement, "LAUNCH_NS", 0)
    GRAPHS.clear()
    yield found
    GRAPHS.clear()


def rnn(x: Tensor, u: Tensor, h: Tensor, by: float) -> Tensor:
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u * by)
        out.append(h)
    return torch.stack(out)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, h = torch.randn(STEPS, ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    return x, torch.randn(WIDTH, WIDTH) * 0.1, h


class Calls:
    """One program and its inputs."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.compiled = lt.script(rnn)
        self.given = inputs()

    def check(self, by: float = 0.5) -> None:
        found = self.compiled(*self.given, by)
        torch.testing.assert_close(found, rnn(*self.given, by), rtol=1e-4, atol=1e-4)
        self.memory.back()

    def change(self) -> None:
        self.given[0].normal_()


def test_the_second_call_is_a_graph(gpu: Gpu, memory: Memory) -> None:
    calls = Calls(memory)
    calls.check()
    assert (len(gpu.launched), len(gpu.graphs)) == (STEPS, 0)
    for k in range(3):
        calls.change()
        calls.check()
        (graph,) = gpu.graphs
        assert (len(gpu.launched), len(graph.launches), graph.replays) == (STEPS, STEPS, k + 1)


def test_other_memory(gpu: Gpu, memory: Memory) -> None:
    calls = Calls(memory)
    for _ in range(3):
        calls.given = inputs()
        kept = calls.given
        calls.check()
        memory.kept.clear()
        assert kept
    assert len(gpu.launched) == 3 * STEPS - sum(len(g.launches) * g.replays for g in gpu.graphs)


def test_numbers_are_part_of_the_key(gpu: Gpu, memory: Memory) -> None:
    calls = Calls(memory)
    for by in (0.5, 2.0, 0.0, -0.0):
        calls.check(by)
    assert not gpu.graphs
    calls.check(2.0)
    calls.check(0.5)
    assert [graph.replays for graph in gpu.graphs] == [1, 1]


def test_the_precision_is_part_of_the_key(
    gpu: Gpu, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(memory)
    calls.check()
    monkeypatch.setattr(steps, "precision", lambda: "tf32")
    calls.check()
    assert not gpu.graphs
    calls.check()
    assert len(gpu.graphs) == 1


class Refusing(Graph):
    """It is not begun."""

    def capture_begin(self, capture_error_mode: str) -> None:
        raise RuntimeError("operation not permitted")


class Launches(list[Launched]):
    """No launch is recorded."""

    def append(self, _: Launched) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("at", ["begin", "launch"])
def test_a_driver_that_records_none(
    at: str, gpu: Gpu, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Graph] = []

    def graph() -> Graph:
        tried.append(Refusing(gpu=gpu) if at == "begin" else Graph(gpu=gpu, launches=Launches()))
        return tried[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(GRAPHS, "_refused", False)
    calls = Calls(memory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            calls.change()
            calls.check()
    assert (len(gpu.launched), len(tried)) == (3 * STEPS, 1)


def test_a_graph_of_the_users(gpu: Gpu, memory: Memory) -> None:
    calls = Calls(memory)
    calls.check()
    gpu.capturing = True
    calls.check()
    gpu.capturing = False
    assert (len(gpu.launched), len(gpu.graphs)) == (2 * STEPS, 0)


def test_beside_other_threads_none_is_recorded(gpu: Gpu, memory: Memory) -> None:
    calls, done = Calls(memory), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        calls.check()
        calls.check()
    finally:
        done.set()
        other.join()
    assert not gpu.graphs
    calls.check()
    assert len(gpu.graphs) == 1


def test_gradients(gpu: Gpu, memory: Memory) -> None:
    compiled, (x, u, h) = lt.script(rnn), inputs()
    leaves = [t.requires_grad_() for t in (x, u, h)]
    cotangent = torch.randn(STEPS, ROWS, WIDTH)
    for _ in range(2):
        found = torch.autograd.grad(compiled(x, u, h, 0.5), leaves, cotangent)
        want = torch.autograd.grad(rnn(x, u, h, 0.5), leaves, cotangent)
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
        memory.back()
    assert any(graph.replays for graph in gpu.graphs)


def test_what_all_graphs_hold_is_limited(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 100)
    monkeypatch.setattr(graphs, "REMEMBERED", 3)
    found, done = Graphs(), list[str]()

    def call(key: str, launches: int = 40) -> None:
        found.launch(key, CPU, launches, lambda: done.append(key))

    for key in ("a", "b", "c"):
        call(key)
        call(key)
    assert (len(gpu.graphs), done) == (3, ["a", "a", "b", "b", "c", "c"])
    call("b")
    call("c")
    assert [graph.replays for graph in gpu.graphs] == [1, 2, 2]
    call("a")  # given back
    call("a")
    assert (len(gpu.graphs), done[6:]) == (4, ["a", "a"])
    for key in ("few", "few"):
        call(key, graphs.FEWEST - 1)
    for key in ("many", "many"):
        call(key, 101)
    assert len(gpu.graphs) == 4
