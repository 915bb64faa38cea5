"""Compiled functions and modules inside a scope: kernels run as they do outside, and the scope has
what a call gave; nothing of Lowtide's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt


def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - y[None]).abs().sum(1)


class Counting(nn.Module):
    """Gives a new tensor, its buffer and its attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.shift = torch.ones(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.layer(x))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0))
        return h + self.shift, self.mean, self.shift


WAYS: dict[str, Callable[..., Any]] = {
    "script": lambda f, args: lt.script(f),
    "trace": lambda f, args: lt.trace(f, args),
    "compile": lambda f, args: lt.compile(f),
    "budget": lambda f, args: lt.script(f, budget="30MB"),
}


def eager_runs(before: lt.CacheStats) -> int:
    since = lt.cache_stats() - before
    return since.calls_eager + since.regions_eager


@pytest.mark.parametrize("way", WAYS)
def test_kernels_run_and_results_are_the_scopes(way: str) -> None:
    x, y = torch.randn(300, requires_grad=True), torch.randn(200)
    compiled = WAYS[way](distances, (x, y))
    expected = distances(x, y)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    before = lt.cache_stats()
    for _ in range(2):
        with lt.dispose_scope() as scope:
            found = compiled(x, y)
            assert list(map(id, scope.disposables)) == [id(found)]
            torch.testing.assert_close(found, expected)
            loss = scope.move_to_outer(found.sum())
        assert lt.is_disposed(found)
        x.grad = None
        loss.backward()  # with what the call has saved
        torch.testing.assert_close(x.grad, expected_grad)
    torch.testing.assert_close(compiled(x, y), expected)
    assert eager_runs(before) == 0


@pytest.mark.parametrize("way", ["script", "trace", "compile"])
def test_a_modules_tensors_stay_its_own(way: str) -> None:
    module, other = Counting(), Counting()
    other.load_state_dict(module.state_dict())
    x = torch.randn(5, 4)
    compiled = WAYS[way](module, (x,))
    module.load_state_dict(other.state_dict())  # a trace has run it
    for _ in range(2):
        expected = other(x)
        with lt.dispose_scope() as scope:
            found, mean, shift = compiled(x)
            assert scope.contains(found)
            assert not scope.contains(mean)
            assert not scope.contains(shift)
            torch.testing.assert_close((found, mean, shift), expected)
        torch.testing.assert_close(module.mean, other.mean)


def test_backward_within_a_scope() -> None:
    compiled = lt.script(distances)
    x, y = torch.randn(30, requires_grad=True), torch.randn(20)
    for _ in range(2):  # the backward pass is compiled within the first
        with lt.dispose_scope():
            compiled(x, y).sum().backward()
    distances(x, y).sum().mul(-2).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros(30), atol=1e-5, rtol=0)


def test_lists_and_results_of_several_regions() -> None:
    @lt.script
    def several(x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        half = x * 0.5
        ordered = half.sort().values  # PyTorch's
        return [half, ordered + 1], x

    x = torch.randn(40)
    with lt.dispose_scope() as scope:
        (half, ordered), same = several(x)
        assert same is x
        assert set(map(id, scope.disposables)) == {id(half), id(ordered)}
    assert not lt.is_disposed(x)


def test_what_is_asked_of_a_compiled_function() -> None:
    compiled = lt.script(distances)
    x, y = torch.randn(30), torch.randn(20)
    outside = str(compiled.explain(x, y))
    with lt.dispose_scope() as scope:
        assert str(compiled.explain(x, y)) == outside
        assert compiled.memory(x, y).peak_bytes > 0
        assert scope.disposables == ()
    torch.testing.assert_close(compiled(x, y), distances(x, y))


def with_its_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x * 2
    return z, z.t()


def with_what_it_got(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x * 2
    return x, z.view(-1)


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
@pytest.mark.parametrize("records", [False, True])
def test_a_result_and_a_view_of_it(entry: Callable[..., Any], records: bool) -> None:
    compiled = entry(with_its_view)
    x = torch.randn(30, 40, requires_grad=records)
    compiled(x)
    with lt.dispose_scope() as scope:
        whole, view = compiled(x)
        assert set(map(id, scope.disposables)) == {id(whole), id(view)}
    assert lt.is_disposed(whole)
    assert lt.is_disposed(view)
    assert not lt.is_disposed(x)


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_an_argument_that_has_views_is_nobody_elses(entry: Callable[..., Any]) -> None:
    compiled = entry(with_what_it_got)
    x = torch.randn(30, 40)
    row = x[0]
    compiled(x)
    with lt.dispose_scope() as scope:
        same, flat = compiled(x)
        assert set(map(id, scope.disposables)) == {id(flat)}
    assert not lt.is_disposed(same)
    assert row.sum().isfinite()


class Averaged(nn.Module):
    """A layer, a norm with statistics, and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.shift = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)) + self.shift


@pytest.mark.parametrize("way", ["load", "load traced", "freeze"])
def test_what_a_loaded_or_frozen_model_holds_is_its_own(way: str, tmp_path: Path) -> None:
    x = torch.rand(3, 4)
    model = Averaged().eval()
    made: Any = lt.trace(model, (x,)) if way == "load traced" else lt.script(model)
    lt.save(made, tmp_path / "model.lt")
    expected = model(x)
    with lt.dispose_scope() as scope:
        got: Any = lt.freeze(made) if way == "freeze" else lt.load(tmp_path / "model.lt")
        inside = got(x)
        assert scope.disposables_count == 1
    assert lt.is_disposed(inside)
    torch.testing.assert_close(got(x), expected)
    assert not any(map(lt.is_disposed, [*got.parameters(), *got.buffers()]))
