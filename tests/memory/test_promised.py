"""What `memory()` has told of a call of several graphs, later calls hold; nothing else changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide as lt
from lowtide.memory.measure import can_measure_resident
from lowtide.runtime import heap, libc
from tests.memory.test_virtual import check

pytestmark = pytest.mark.skipif(not can_measure_resident(), reason="needs Linux's /proc")


def _in_a_loop(x: Tensor) -> Tensor:
    """Which PyTorch's capture leaves to Python altogether."""
    for _ in range(5):
        x = torch.softmax(x.sin(), 1) * x.exp()
        torch._dynamo.graph_break()
    return x


def _written(x: Tensor) -> Tensor:
    a = x.sin()
    torch._dynamo.graph_break()
    a.mul_(2)
    torch._dynamo.graph_break()
    b = a.exp()
    torch._dynamo.graph_break()
    b.add_(1)
    return b * b


def _hooked(x: Tensor) -> Tensor:
    a = x.sin()
    torch._dynamo.graph_break()
    if a.requires_grad:
        a.register_hook(lambda g: (g * 2).sin() * g.cos())
    b = a.exp()
    torch._dynamo.graph_break()
    return b * a


@torch._dynamo.disable
def _outside(x: Tensor) -> Tensor:
    return torch.softmax((x + 1).cumsum(0).sin() * x, 1)


def _between(x: Tensor) -> Tensor:
    return _outside(torch.cumsum(x * 2, 1)).exp() * x


PROGRAMS: list[Callable[[Tensor], Tensor]] = [_in_a_loop, _written, _hooked, _between]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_is_kept(program: Callable[[Tensor], Tensor], grad: bool) -> None:
    x = torch.rand(1024, 1024, requires_grad=grad)
    check(lt.compile(program), x)


def test_is_kept_by_a_module() -> None:
    layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(4)])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor, *, scales: dict[str, float]) -> Tensor:
            for layer in self.layers:
                x = torch.softmax(layer(x), 1) * scales["one"]
                torch._dynamo.graph_break()
            return x

    compiled: Any = lt.compile(Net())
    x = torch.rand(2048, 512)

    class Called:
        def __call__(self, x: Tensor) -> Tensor:
            return compiled(x, scales={"one": 2.0})

        def memory(self, x: Tensor) -> Any:
            return compiled.memory(x, scales={"one": 2.0})

    check(Called(), x, weights=list(layers.parameters()))


def _guards(monkeypatch: pytest.MonkeyPatch) -> list[heap.Guard]:
    """Those that calls are made under."""
    made: list[heap.Guard] = []
    before = heap.trimming

    def trimming(guard: Any) -> Any:
        made.append(guard)
        return before(guard)

    monkeypatch.setattr(heap, "trimming", trimming)
    return made


def test_only_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    if not libc.keeps_holes():
        pytest.skip("no holes of this C library are known")
    made = _guards(monkeypatch)
    compiled: Any = lt.compile(_in_a_loop)
    x = torch.rand(512, 1024)
    compiled(x)
    assert not made
    compiled.memory(torch.empty(512, 1024, device="meta"))
    compiled(torch.rand(300, 1024))
    assert not made
    compiled(x)
    assert len(made) == 1


def test_results_and_graphs_stay_the_same() -> None:
    for program in PROGRAMS:
        torch._dynamo.reset()
        compiled: Any = lt.compile(program)
        x = torch.rand(512, 1024, requires_grad=True)
        compiled(x).sum().backward()
        before, x.grad = x.grad, None
        compiled.memory(x)
        counters.clear()
        for _ in range(2):
            x.grad = None
            result = compiled(x)
            torch.testing.assert_close(result, program(x))
            result.sum().backward()
            torch.testing.assert_close(x.grad, before)
        assert not counters["stats"], f"{program.__name__} was captured anew"


def test_draws_stay_the_same() -> None:
    def dropped(x: Tensor) -> Tensor:
        y = _outside(torch.dropout(x, 0.5, True))
        return torch.dropout(y, 0.5, True) * 2

    compiled: Any = lt.compile(dropped)
    x = torch.rand(512, 1024)
    torch.manual_seed(0)
    before = compiled(x)
    compiled.memory(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), before)


def test_graphs_are_compiled_still() -> None:
    compiled: Any = lt.compile(_between)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    compiled(x)
    before = lt.cache_stats()
    with lt.dispose_scope():
        compiled(x)
    assert (lt.cache_stats() - before).calls_eager == 0


def test_to_pytorch_it_is_what_it_was() -> None:
    compiled: Any = lt.compile(_written)
    x = torch.rand(512, 1024)
    again = torch.compile(compiled, backend="eager")
    torch.testing.assert_close(again(x), _written(x))
    compiled.memory(x)
    torch.testing.assert_close(again(x), _written(x))
    torch.testing.assert_close(torch.compiler.disable(compiled)(x), _written(x))


def test_a_mode_of_the_users_sees_every_op() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    compiled: Any = lt.compile(_between)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    with Seen() as seen:
        compiled(x)
    assert {"cumsum", "mul", "exp", "_softmax"} <= {*seen.names}


def test_errors_are_the_users_and_end_it() -> None:
    fails = False

    @torch._dynamo.disable
    def maybe(x: Tensor) -> Tensor:
        if fails:
            raise KeyError("mine")
        return (x + 1).sin() * x

    compiled: Any = lt.compile(lambda x: maybe(x * 2) + 1)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    fails = True
    with pytest.raises(KeyError, match="mine"):
        compiled(x)
    assert heap.trimmer() is None
    fails = False
    torch.testing.assert_close(compiled(x), maybe(x * 2) + 1)


def test_within_what_is_compiled_again() -> None:
    inner: Any = lt.compile(_between)
    x = torch.rand(512, 1024)
    inner.memory(x)
    outer: Any = lt.compile(lambda x: inner(x + 1) * 2)
    torch.testing.assert_close(outer(x), _between(x + 1) * 2)
    outer.memory(x)
    torch.testing.assert_close(outer(x), _between(x + 1) * 2)


def test_is_the_function_still() -> None:
    compiled: Any = lt.compile(_written)
    assert compiled.__name__ == "_written"
    assert compiled.__module__ == sys.modules[__name__].__name__
    assert compiled.__doc__ == _written.__doc__
