"""PyTorch's compiler, modes and subclasses inside a scope, and scopes inside what they run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import lowtide as lt
from lowtide.memory.scopes import constructed, watch


@pytest.mark.slow
def test_torch_compile_inside_a_scope() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def work(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sin()

    x = torch.ones(3)
    expected = (x * 2 + 1).sin()
    for _ in range(2):
        with lt.dispose_scope() as scope:
            y = scope.move_to_outer(work(x))
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(work(x), expected)


@pytest.mark.slow
def test_scopes_inside_functions_that_dynamo_compiles() -> None:
    """The graph breaks at the scope, whose own code runs as it is, under every backend."""
    kept: list[torch.Tensor] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        with lt.dispose_scope() as scope:
            kept.append((x * 2).relu())
            y = scope.move_to_outer(kept[-1].sum(0))
        return y + 1

    x = torch.randn(40, 50)
    expected = work(x)
    for backend in ("lowtide", "eager"):
        compiled = torch.compile(work, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected)
        with lt.dispose_scope():
            torch.testing.assert_close(compiled(x), expected)
    assert all(lt.is_disposed(t) for t in kept)
    assert lt.current_dispose_scope() is None


def test_default_devices_and_other_modes_are_left_in_peace() -> None:
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    with torch.device("meta"):
        scope = lt.dispose_scope().__enter__()
        with Counting():
            a = torch.ones(1)
            scope.dispose()
            b = torch.ones(1)
        assert b.device.type == "meta"
    assert lt.is_disposed(a)
    assert Counting.calls == 2
    with lt.dispose_scope(), torch.device("meta"):
        c = torch.ones(1)
    assert lt.is_disposed(c)
    assert torch.ones(1).device.type == "cpu"


def test_a_device_that_was_entered_before_is_left_after() -> None:
    """C takes whatever lies on top off the stack then."""
    with torch.device("meta"):
        scope = lt.dispose_scope().__enter__()
        a = torch.ones(1)
    b = torch.ones(1)
    assert scope.contains(a)
    assert scope.contains(b)
    assert b.device.type == "cpu"
    scope.dispose()
    with torch.device("meta"):
        stats = lt.scope_statistics()
    before = stats.created_outside_scope
    assert torch.ones(1).device.type == "cpu"
    assert stats.created_outside_scope == before + 1
    stats.stop()
    assert torch.ones(1).device.type == "cpu"
    assert not torch._C._len_torch_function_stack()


def test_a_default_device_stays_below() -> None:
    torch.set_default_device("meta")
    try:
        with lt.dispose_scope() as scope:
            a = torch.ones(1)
            assert scope.contains(a)
            with torch.device("cpu"):
                assert torch.ones(1).device.type == "cpu"
        assert torch.ones(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"


def test_fake_tensors_are_left_alone() -> None:
    with lt.dispose_scope() as scope, FakeTensorMode():
        t = torch.ones(3)
        assert not scope.contains(t)
    assert t.shape == (3,)


def test_subclasses_are_tracked() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Named)
    with lt.dispose_scope():
        y = x * 2
        assert type(y) is Named
    assert lt.is_disposed(y)


class Pair(torch.Tensor):
    """Two tensors under one handle, as PyTorch's jagged, distributed and quantized ones have."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Pair:
        pair = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        pair.a, pair.b = a, b
        return pair

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        pass

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        a, b = ([getattr(arg, name, arg) for arg in args] for name in "ab")
        return Pair(func(*a, **(kwargs or {})), func(*b, **(kwargs or {})))


def test_what_a_tensor_is_made_of_goes_with_it() -> None:
    def pair() -> Pair:
        return Pair(torch.ones(2), torch.ones(2))

    module = torch.nn.Module()
    moved = lt.wrapped_dispose_scope(pair)()
    with lt.dispose_scope() as outer:
        with lt.dispose_scope() as scope:
            kept = [
                scope.detach(pair()),
                lt.detach_from_dispose_scope(pair()),
                lt.move_to_other_dispose_scope(pair(), None),
            ]
            module.weight = torch.nn.Parameter(pair())
            module.register_buffer("buffer", pair())
            spared = pair()
            scope.dispose_everything_but(spared)
            assert scope.disposables == (spared.a, spared.b)
            scope.move_to_outer(spared)
            kept.append(lt.move_to_outer_dispose_scope(lt.move_to_outer_dispose_scope(pair())))
        assert not outer.contains(spared)
        assert outer.disposables == (spared.a, spared.b)
        left = pair()
    assert lt.is_disposed(spared.a)
    assert lt.is_disposed(left.b)
    assert not lt.is_disposed(left)
    with pytest.raises(lt.DisposedTensorError):
        left + 1
    for other in (moved, *kept, module.weight, module.buffer):
        assert other.a.sum() + other.b.sum() == 4

    (x, y), z = (torch.ones(2), torch.ones(3)), torch.ones(5)
    with lt.dispose_scope():
        jagged = torch.nested.nested_tensor([x, y], layout=torch.jagged)
        alone = torch.nested.nested_tensor_from_jagged(z, torch.tensor([0, 2, 5])) * 2
    assert jagged.values().sum() == 5
    assert alone.values().sum() == 10
    lt.dispose(jagged)
    assert x.sum() + y.sum() + z.sum() == 10


def test_what_was_there_before_is_not_the_scopes(stats: lt.ScopeStatistics) -> None:
    stats.stop()  # so that nobody knows the tensors made outside
    table, tangent, x = [torch.ones(2)], torch.ones(3), torch.ones(3)

    @torch.overrides.wrap_torch_function(lambda key: (key,))
    def looked_up(key: torch.Tensor) -> Any:
        return table[0]

    @torch.overrides.wrap_torch_function(lambda key: (key,))
    def all_looked_up(key: torch.Tensor) -> Any:
        return [*table, key * 2]

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        with lt.dispose_scope() as scope:
            seen = [looked_up(x), *all_looked_up(x)]
            primal, found = forward_ad.unpack_dual(dual)
            assert scope.disposables == (seen[-1], primal)
        assert lt.is_disposed(seen[-1])
        assert forward_ad.unpack_dual(dual).tangent.sum() == 3
    assert found is tangent
    assert not lt.is_disposed(tangent)
    assert table[0].sum() == 2


def test_a_base_of_which_only_its_view_is_left_is_not_the_scopes(
    stats: lt.ScopeStatistics,
) -> None:
    stats.stop()
    view = torch.ones(4).view(2, 2)
    with lt.dispose_scope() as scope:
        base = view._base
        assert base is not None
        assert scope.disposables == ()
    assert base.sum() == view.sum() == 4


def test_inference_mode_and_no_grad() -> None:
    for context in (torch.inference_mode, torch.no_grad):
        with context(), lt.dispose_scope():
            a = torch.ones(3) * 2
        assert lt.is_disposed(a)
        with lt.dispose_scope(), context():
            b = torch.ones(3) * 2
        assert lt.is_disposed(b)


def counted_anew() -> tuple[dict[str, int], int]:
    """What is counted when the modules are loaded: at the first scope of a process."""

    def loaded(module: ModuleType) -> ModuleType:
        spec = importlib.util.spec_from_file_location(module.__name__, module.__file__)
        assert spec is not None
        assert spec.loader is not None
        again = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
        return again

    found = vars(loaded(watch))
    counts = {name: found[name] for name in ("FRESH", "FRESH_SHARED", "_FRESH_IN_NEST", "_BY_CPP")}
    return counts, loaded(constructed)._Plain.it.numel()


def in_a_mode(mode: Any) -> Any:
    with mode:
        return counted_anew()


def in_a_trace(traced: Callable[..., Any]) -> Any:
    found: list[Any] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        if not found:
            found.append(counted_anew())
        return x + 1

    traced(work, torch.ones(3))
    return found[0]


FIRST: dict[str, Callable[[], Any]] = {
    "inference": lambda: in_a_mode(torch.inference_mode()),
    "FlopCounterMode": lambda: in_a_mode(FlopCounterMode(display=False)),
    "FakeTensorMode": lambda: in_a_mode(FakeTensorMode()),
    "functionalize": lambda: in_a_trace(lambda work, x: torch.func.functionalize(work)(x)),
    "make_fx": lambda: in_a_trace(lambda work, x: make_fx(work)(x)),
    "lt.trace": lambda: in_a_trace(lambda work, x: lt.trace(work, (x,))),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_scope_of_a_process_may_be_opened_inside_a_mode(name: str) -> None:
    assert FIRST[name]() == counted_anew()
