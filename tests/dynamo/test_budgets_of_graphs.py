"""A budget of `lt.compile` is of each captured graph: kept, or refused before that graph runs."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.memory.contract import requested_bytes

SEVERAL = "several graphs in one call. Each has a budget"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def chunked(x: Tensor) -> Tensor:
    return (x[:, None] - x[None]).abs().cumsum(1).sum(1)


def twice(x: Tensor) -> Tensor:
    h = chunked(x)
    torch._dynamo.graph_break()
    return chunked(h) * 2


@pytest.mark.parametrize("f", [chunked, twice])
def test_each_graph_has_all_of_it(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(1200)
    most = lt.script(chunked).memory(x).peak_bytes
    budget = most // 3
    compiled: Any = lt.compile(f, budget=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = f(x)
        torch.testing.assert_close(compiled(x), expected)
        assert requested_bytes(lambda: compiled(x)) <= budget + x.nbytes
    assert compiled.memory(x).peak_bytes <= budget


def test_a_second_graph_is_told_once() -> None:
    x = torch.rand(300)
    compiled: Any = lt.compile(twice, budget="100MB")
    with pytest.warns(RuntimeWarning, match=SEVERAL) as told:
        compiled(x)
    assert told[0].filename == __file__
    assert "fullgraph=True" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled(x)
        lt.compile(chunked, budget="100MB")(x)
        lt.compile(twice)(x)


def test_one_that_is_too_small_is_refused_before_its_graph_runs() -> None:
    ran: list[int] = []

    def f(x: Tensor) -> Tensor:
        h = x * 2
        torch._dynamo.graph_break()
        ran.append(1)
        return chunked(h)

    x = torch.rand(1200)
    compiled: Any = lt.compile(f, budget=10_000)
    with pytest.raises(lt.BudgetError, match="needs at least"), pytest.warns(RuntimeWarning):
        compiled(x)
    assert not ran
    with pytest.raises(lt.BudgetError, match="needs at least"):
        lt.compile(chunked, budget=1_000).memory(x)  # pyright: ignore


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_the_error_names_what_the_user_compiled(entry: Any) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return chunked(x)

    x = torch.rand(1200)
    model = entry(Net(), budget=1_000)
    for call in (model, model.memory):
        with pytest.raises(lt.BudgetError, match=r"\ANet\.forward\(\) needs at least"):
            call(x)
    with pytest.raises(lt.BudgetError, match=r"\Achunked\(\) needs at least"):
        entry(chunked, budget=1_000)(x)


def test_a_smaller_budget_gives_no_larger_peak() -> None:
    x = torch.rand(1200)
    most = lt.script(chunked).memory(x).peak_bytes
    peaks = [
        lt.compile(chunked, budget=most // k).memory(x).peak_bytes  # pyright: ignore
        for k in (1, 2, 4, 8)
    ]
    assert peaks == sorted(peaks, reverse=True)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x).relu()


class OwnCopies(Layers):
    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCopies:
        made = OwnCopies()
        made.load_state_dict(self.state_dict())
        return made


@pytest.mark.parametrize("make", [Layers, OwnCopies])
def test_copies_have_the_budget(make: type[nn.Module]) -> None:
    compiled: Any = lt.compile(make(), budget=100)
    x = torch.rand(500, 40)
    for made in (compiled, copy.copy(compiled), copy.deepcopy(compiled)):
        with pytest.raises(lt.BudgetError):
            made.memory(x)
    with pytest.raises(lt.BudgetError):
        pickle.loads(pickle.dumps(compiled))(x)


def test_by_name_the_budget_is_of_each_graph() -> None:
    x = torch.rand(1200)
    compiled = torch.compile(chunked, backend="lowtide", options={"budget": 1_000})
    lt.compile(lambda x: x)  # pyright: ignore
    with pytest.raises(lt.BudgetError):
        compiled(x)
