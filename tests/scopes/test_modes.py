"""PyTorch's compiler, modes and subclasses inside a scope, and scopes inside what they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lowtide as lt


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


def test_fake_tensors_are_left_alone() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

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


def test_inference_mode_and_no_grad() -> None:
    for context in (torch.inference_mode, torch.no_grad):
        with context(), lt.dispose_scope():
            a = torch.ones(3) * 2
        assert lt.is_disposed(a)
        with lt.dispose_scope(), context():
            b = torch.ones(3) * 2
        assert lt.is_disposed(b)
