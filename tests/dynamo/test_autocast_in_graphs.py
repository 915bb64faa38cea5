"""Autocast that begins and ends within a captured graph: the graph is compiled, and casts as
PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.api.compile import PlainGraph
from lowtide.diagnostics import faults

HALF = torch.bfloat16
LINEAR = nn.Linear(24, 24)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with faults.strict():
        yield
    torch._dynamo.reset()


def cast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", HALF):
        return LINEAR(x).relu()


def switched_off(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        z = (LINEAR(x).float() * 2).cumsum(0)
    return LINEAR(z)


def nested(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", HALF):
        y = LINEAR(x)
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ x.t()
        x = x + 1
        q = LINEAR(x) * 3
    return q, z.softmax(-1)


def written_in_place(x: Tensor) -> Tensor:
    y = x * 2
    with torch.autocast("cpu", HALF):
        y.mul_(3)
        z = LINEAR(y)
        y.add_(1)
    return y * z


def several_results(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", HALF):
        a, b = LINEAR(x).chunk(2, -1)
        with torch.no_grad():
            c = a * b
        found = {"sum": a + c}
    return found["sum"], b


def one_after_the_other(x: Tensor) -> Tensor:
    for _ in range(3):
        with torch.autocast("cpu", HALF):
            x = LINEAR(x).float().relu()
        x = x * 0.5
    return x


@torch.autocast("cpu", HALF)
def decorated(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(LINEAR(x))


def checkpointed(x: Tensor) -> Tensor:
    with torch.autocast("cpu", HALF):
        return checkpoint(lambda t: LINEAR(LINEAR(t).relu()), x, use_reentrant=False)


def unused(x: Tensor) -> Tensor:
    with torch.autocast("cpu", HALF):
        LINEAR(x)
    return x + 1


PROGRAMS = (
    *(cast, switched_off, nested, written_in_place, several_results, one_after_the_other),
    *(decorated, unused, checkpointed),
)


def results_and_gradients(fn: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    found = fn(x)
    results: tuple[Tensor, ...] = found if isinstance(found, tuple) else (found,)
    loss = sum((r.float() ** 2).sum() for r in results if r.requires_grad)
    grads = torch.autograd.grad(loss, [x, *LINEAR.parameters()], allow_unused=True)
    return [*results, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
def test_graphs_cast_as_pytorch_does(fn: Callable[..., Any], dynamic: bool | None) -> None:
    x = torch.rand(40, 24, requires_grad=True)
    compiled = lt.compile(fn, dynamic=dynamic)
    found = results_and_gradients(compiled, x)
    expected = results_and_gradients(fn, x)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        assert (a.float() - b.float()).norm() <= 0.02 * b.float().norm()
    graphs = lt.explain_compiled(compiled, x)
    assert graphs
    assert not any(isinstance(graph, PlainGraph) for graph in graphs)


def test_a_block_that_ends_in_another_graph() -> None:
    def broken(x: Tensor) -> Tensor:
        with torch.autocast("cpu", HALF):
            y = LINEAR(x)
            torch._dynamo.graph_break()
            return LINEAR(y.relu()) + y.dtype.itemsize

    x = torch.rand(40, 24)
    found = lt.compile(broken)(x)
    assert found.dtype is HALF
    torch.testing.assert_close(found, broken(x), rtol=0.02, atol=0.02)


def test_asking_leaves_no_cast_behind() -> None:
    """A later call in the same block of autocast would take weights without values from there."""
    x = torch.rand(40, 24)
    torch._dynamo.reset()
    compiled: Any = lt.compile(lambda x: LINEAR(x * 2).relu())
    with torch.autocast("cpu", HALF):
        expected = LINEAR(x * 2).relu()
        torch.clear_autocast_cache()
        assert compiled.memory(x).peak_bytes
        assert torch.equal(LINEAR(x * 2).relu(), expected)
        torch.testing.assert_close(compiled(x), expected, rtol=0.02, atol=0.02)
        assert torch.equal(LINEAR(x * 2).relu(), expected)


def test_asking_captures_nothing_anew() -> None:
    """The capture's guards look at PyTorch's state, which asking leaves as it is."""

    def doubled(x: Tensor) -> Tensor:
        return LINEAR(x * 2)

    x = torch.rand(40, 24)
    for casting in (False, True):
        torch._dynamo.reset()
        compiled: Any = lt.compile(doubled)
        with torch.autocast("cpu", HALF, enabled=casting):
            compiled(x)
            compiled.memory(x)
            with torch.compiler.set_stance("fail_on_recompile"):
                compiled(x)
