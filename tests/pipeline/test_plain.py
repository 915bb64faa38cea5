"""When a call runs as plain Python."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide as lt
from lowtide import config


def f(x):
    return (x * 2).sum(-1)


scripted = lt.script(f)


def is_plain(call: Callable[[], Any]) -> bool:
    before = lt.cache_stats()
    call()
    return (lt.cache_stats() - before).calls_eager == 1


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[override]
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[override]
        return func(*args, **(kwargs or {}))


class Sub(torch.Tensor):
    pass


def test_compiled_by_default() -> None:
    assert not is_plain(lambda: scripted(torch.rand(40)))
    assert not is_plain(lambda: scripted(torch.nn.Parameter(torch.rand(40), requires_grad=False)))


def test_gradients() -> None:
    x = torch.rand(40, requires_grad=True)
    assert not is_plain(lambda: scripted(x))
    scripted(x).backward()
    assert x.grad is not None
    assert "backward" in str(scripted.explain(x))
    with torch.no_grad():
        assert not is_plain(lambda: scripted(x))
    with torch.inference_mode():
        assert not is_plain(lambda: scripted(torch.rand(40)))


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(40, device="meta"),
        torch.rand(4, 40).to_sparse(),
        torch.rand(40).as_subclass(Sub),
        torch.rand(40, dtype=torch.complex64),
        torch.rand(40, dtype=torch.complex64).conj().imag,
        torch.ones(40, dtype=torch.int16),
        torch._efficientzerotensor((40,)),
    ],
    ids=["meta", "sparse", "subclass", "complex", "negated", "int16", "zeros without memory"],
)
def test_other_tensors(x: torch.Tensor) -> None:
    assert is_plain(lambda: scripted(x))


def test_modes_and_transforms() -> None:
    x = torch.rand(5, 40)
    with Functions():
        assert is_plain(lambda: scripted(x))
    with Dispatch():
        assert is_plain(lambda: scripted(x))
    assert torch.allclose(torch.vmap(scripted)(x), f(x))
    assert torch.allclose(torch.func.grad(lambda v: scripted(v).sum())(x), torch.full_like(x, 2))


@pytest.mark.parametrize("wants", [False, True])
def test_what_a_transform_left_behind_has_no_memory_and_is_pytorchs(wants: bool) -> None:
    left: list[torch.Tensor] = []

    def leaks(x: torch.Tensor) -> torch.Tensor:
        left.append(x * 2)
        return x.sum()

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.tanh() * w).sum(0)

    torch.func.grad(leaks)(torch.rand(3, 4))
    x = torch.rand(3, 4, requires_grad=wants)
    got = lt.script(f)(x, left[0])
    assert torch.allclose(got, f(x, left[0]))
    with config.override(disable=True):
        assert is_plain(lambda: scripted(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_in_a_trace_of_torch_jits() -> None:
    x = torch.rand(40)
    traced = torch.jit.trace(scripted, x)
    torch.testing.assert_close(traced(x[:7]), scripted(x[:7]))


def test_forward_mode() -> None:
    import torch.autograd.forward_ad as fwad

    x = torch.rand(40)
    with fwad.dual_level():
        out = scripted(fwad.make_dual(x, torch.ones(40)))
        assert float(fwad.unpack_dual(out).tangent) == 80


def test_is_scripting() -> None:
    assert not lt.is_scripting()


@lt.script
def tells():
    return lt.is_scripting()


def test_is_scripting_in_compiled_code() -> None:
    assert tells() is True


def test_it_is_a_function() -> None:
    assert scripted.__name__ == "f"
    assert scripted.__wrapped__ is f
    assert copy.deepcopy(scripted) is scripted
    assert lt.script(scripted) is scripted
    assert lt.script()(f)(torch.ones(40)) == 80
    assert isinstance(scripted, lt.ScriptFunction)


def chain(x, y):
    z = (x[:, None] - y[None]).abs().sum(-1)
    if z.min() > 100:
        return z
    return z.min(1).values


def test_threads() -> None:
    g = lt.script(chain)
    wrong: list[object] = []

    def work(seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        for k in range(30):
            x = torch.rand(20 + (seed * 7 + k) % 40, 3, generator=gen)
            y = torch.rand(35 + k, 3, generator=gen)
            if not torch.allclose(g(x, y), chain(x, y), atol=1e-5):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_inside_torch_compile() -> None:
    x = torch.rand(40)
    compiled = torch.compile(lambda v: scripted(v) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), f(x) + 1)
