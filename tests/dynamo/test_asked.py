"""`c.memory`, `c.explain` and `c.stages` of what `lt.compile` gives: answered without a run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.pipeline.driver import Driver


def pairs(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y[None]) ** 2).sum(-1).min(1).values


class Broken(nn.Module):
    """Two graphs, with Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 40))
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.w)
        torch._dynamo.graph_break()
        self.seen.append(len(h))
        return (h * 2).sum(0)


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


def test_several_graphs(runs: list[Any]) -> None:
    model = Broken()
    compiled: Any = lt.compile(model)
    x = torch.randn(500, 6)
    with torch.no_grad():
        plan = compiled.memory(x)
        assert len(compiled.explain(x)) == 2
        assert not runs
        assert plan.peak_bytes >= 500 * 40 * 4
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert compiled.memory(x).peak_bytes > plan.peak_bytes
    torch.testing.assert_close(copy.deepcopy(compiled)(x), model(x), rtol=1e-4, atol=1e-4)


def test_what_a_graph_has_made_may_be_changed() -> None:
    def changes(x: Tensor, y: Tensor) -> Tensor:
        x += y
        return x.relu_().sum(0)

    def f(x: Tensor, y: Tensor) -> Tensor:
        h = x * y
        torch._dynamo.graph_break()
        return changes(h, y)

    x, y = torch.rand(400, 500, requires_grad=True), torch.rand(400, 500)
    scripted = lt.script(changes)
    compiled: Any = lt.compile(f)
    of_leaf = scripted.memory(x, y)
    assert any("a leaf Variable" in note for note in of_leaf.notes)
    plan = scripted.memory(x * 2, y)
    assert plan.peak_bytes >= 2 * x.nbytes
    assert not any("nothing after it is counted" in note for note in plan.notes)
    assert compiled.memory(x, y).peak_bytes >= plan.peak_bytes


def test_what_pytorch_runs_is_counted() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.vmap(lambda row: row.sin().cumsum(0))(x)

    compiled: Any = lt.compile(f)
    plan = compiled.memory(torch.rand(400, 300))
    assert 2 * 4 * 400 * 300 <= plan.peak_bytes < 1_000_000
    assert any("PyTorch runs" in note for note in plan.notes)
    assert "PyTorch runs the captured graph as it is" in str(compiled.explain(torch.rand(40, 30)))


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
