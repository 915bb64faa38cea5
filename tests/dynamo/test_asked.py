"""`c.memory`, `c.explain` and `c.stages` of what `lt.compile` gives: answered without a run."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.execute.driver import Driver


def pairs(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y[None]) ** 2).sum(-1).min(1).values


class Broken(nn.Module):
    """Two graphs, with Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 40))
        self.register_buffer("count", torch.zeros(()))
        self.drop = nn.Dropout(0.1)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.tanh(x @ self.w))
        self.seen.append(len(h))
        self.count += 1
        torch._dynamo.graph_break()
        self.seen.append(random.randrange(9))
        return torch.cat([h * 2, h * 3, h.exp()])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One item for each graph that runs."""
    seen: list[Any] = []
    run = Driver.__call__
    monkeypatch.setattr(Driver, "__call__", lambda self, a: seen.append(1) or run(self, a))
    return seen


def test_memory_and_explain_of_one_graph(runs: list[Any]) -> None:
    compiled: Any = lt.compile(pairs)
    x, y = torch.rand(400, 3), torch.rand(300, 3)
    plan = compiled.memory(x.to("meta"), y.to("meta"))
    assert plan.peak_bytes == lt.script(pairs).memory(x, y).peak_bytes
    assert compiled.memory(x, y).peak_bytes == plan.peak_bytes
    told = compiled.explain(x, y)
    assert "1 kernel, 0 ops left to PyTorch" in str(told)
    assert told.peak_bytes == plan.peak_bytes
    assert [len(g.kernels) for g in told.graphs] == [1]
    assert told.to_dict()["graphs"][0]["memory"]["peak_bytes"] == plan.peak_bytes
    assert compiled.stages(x, y)[-1][0] == "C"
    assert not runs
    torch.testing.assert_close(compiled(x, y), pairs(x, y))
    assert runs


def test_gradients_are_counted() -> None:
    compiled: Any = lt.compile(pairs)
    x, y = torch.rand(4000, 3), torch.rand(3000, 3)
    without = compiled.memory(x, y).peak_bytes
    with_gradients = compiled.memory(x.requires_grad_(), y).peak_bytes
    assert with_gradients > without + x.nbytes


def test_asking_runs_and_writes_nothing(runs: list[Any]) -> None:
    model = Broken()
    called: list[int] = []
    model.register_forward_pre_hook(lambda *_: called.append(1))
    compiled: Any = lt.compile(model)
    x = torch.randn(500, 6)
    torch.manual_seed(0)
    random.seed(0)
    state, python_state = torch.get_rng_state(), random.getstate()
    compiled.memory(x)
    compiled.explain(x)
    compiled.stages(x.to("meta"))
    assert not runs
    assert not called
    assert not model.seen
    assert not model.count
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert model.w.grad is None
    torch._dynamo.reset()


def test_sizes_that_were_asked_about_are_forgotten() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).sum(0)

    torch._dynamo.reset()
    found: list[Any] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        found.extend(type(x) for x in examples)
        return module.forward

    compiled: Any = lt.compile(f)
    for n in (100, 200):
        compiled.memory(torch.rand(n, 5))
    torch.compile(f, backend=backend)(torch.rand(300, 5))
    assert torch.SymInt not in found


def test_the_first_graph_before_a_call_and_each_after_one(runs: list[Any]) -> None:
    torch._dynamo.reset()
    model = Broken().eval()
    compiled: Any = lt.compile(model)
    x = torch.randn(500, 6)
    with torch.no_grad():
        plan = compiled.memory(x)
        assert 500 * 40 * 4 <= plan.peak_bytes < 2 * 500 * 40 * 4
        assert any("there is a graph break after this graph" in note for note in plan.notes)
        assert any("later graphs are known only after a call" in note for note in plan.notes)
        assert len(compiled.explain(x)) == 1
        assert not runs
        compiled(x)
        later = compiled.memory(x)
        graphs = compiled.explain(x)
        assert len(graphs) == 2
        assert later.peak_bytes == max(g.peak_bytes for g in graphs.graphs) == graphs.peak_bytes
        assert any("the largest of 2 graphs" in note for note in later.notes)
        assert not any("later graphs" in note for note in later.notes)
        compiled(torch.randn(900, 6))
        assert compiled.memory(x).peak_bytes > later.peak_bytes
    assert compiled.memory(x).peak_bytes > plan.peak_bytes  # what is kept for gradients


def test_a_copy_knows_its_own_graphs() -> None:
    torch._dynamo.reset()
    model = Broken().eval()
    compiled: Any = lt.compile(model)
    x = torch.randn(500, 6)
    with torch.no_grad():
        compiled(x)
        copied = copy.deepcopy(compiled)
        assert len(compiled.explain(x)) == 2
        assert len(copied.explain(x)) == 1
        torch.testing.assert_close(copied(x), model(x), rtol=1e-4, atol=1e-4)
        assert len(copied.explain(x)) == 2


def test_what_pytorch_runs_is_said() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.vmap(lambda row: row.sin().cumsum(0))(x)

    compiled: Any = lt.compile(f)
    plan = compiled.memory(torch.rand(400, 300))
    assert plan.peak_bytes == 0
    assert any("PyTorch runs" in note for note in plan.notes)
    assert "PyTorch runs the captured graph as it is" in str(compiled.explain(torch.rand(40, 30)))


def test_where_no_graph_is_captured_it_is_said() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    compiled: Any = lt.compile(f)
    assert any("no first graph" in note for note in compiled.memory(torch.rand(40)).notes)
    assert "no first graph" in str(compiled.explain(torch.rand(40)))
    with pytest.raises(TypeError):
        compiled.memory(torch.rand(40), 3)


def test_names_of_the_users_stay() -> None:
    class Remembers(nn.Module):
        def memory(self) -> str:
            return "mine"

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    compiled: Any = lt.compile(Remembers())
    assert compiled.memory() == "mine"
    assert compiled.explain(torch.ones(40)).peak_bytes >= 160
    assert torch.equal(compiled(torch.ones(40)), torch.full((40,), 2.0))


def test_shapes_that_do_not_fit_are_asked_after_a_call() -> None:
    def distances(points: Tensor, centres: Tensor) -> Tensor:
        return ((points[:, None] - centres) ** 2).sum(-1)

    compiled: Any = lt.compile(distances)
    compiled(torch.rand(50, 3), torch.rand(40, 3))
    plan = compiled.memory(torch.rand(50, 4), torch.rand(40, 3))
    assert "no first graph is captured (TorchRuntimeError" in plan.notes[0]
