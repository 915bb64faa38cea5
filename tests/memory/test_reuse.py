"""Results that are written over operands: where that happens, and where somebody would see it.

Sizes here are small, so the least size from which operands are asked for is 0, and what PyTorch has
allocated counts as within a budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.ops import convolutions
from lowtide.runtime import arena, ownership
from tests.memory.chains import SHAPE, source
from tests.written import function_of

f64 = torch.float64


@pytest.fixture(autouse=True)
def reused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements each tensor has that was written over."""
    found: list[int] = []
    over = ownership.in_memory_of

    def counted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        found.append(x.numel())
        return over(x, shape)

    monkeypatch.setattr(ownership, "in_memory_of", counted)
    monkeypatch.setattr(convolutions, "FEW", 0)  # all are PyTorch's
    monkeypatch.setattr(ownership, "LEAST_BYTES", 0)
    return found


def tensors(grad: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(SHAPE, dtype=f64), torch.randn(4, 4, 3, dtype=f64) / 4
    return x.requires_grad_(grad), w.requires_grad_(grad)


def agrees(fn: Callable[..., Any], *args: Tensor) -> Any:
    """The compiled function, which gives what eager PyTorch gives, and leaves the arguments."""
    compiled: Any = lt.script(fn)
    before = [a.detach().clone() for a in args]
    for _ in range(2):
        expected, found = fn(*args), compiled(*args)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([a.detach() for a in args], before, rtol=0, atol=0)
    return compiled


# ---- where it happens ---------------------------------------------------------------------------


def chain(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    y = torch.relu(y * 2)
    y = F.conv1d(y, w, padding=1)
    return F.layer_norm(y, (y.shape[-1],))


def test_what_a_convolution_gave(reused: list[int]) -> None:
    agrees(chain, *tensors())
    assert len(reused) == 4  # of two calls


def test_the_account_is_that_of_the_run(reused: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(4, 16, 200_000), torch.randn(16, 16, 3)  # mapped by themselves: 51 MB
    compiled: Any = lt.script(chain)
    peak_bytes = compiled.memory(x, w).peak_bytes
    text = str(compiled.explain(x, w))
    assert "over `y`" in text or "over y" in text
    monkeypatch.setattr(ownership, "is_alone", lambda *_: False)
    assert compiled.memory(x, w).peak_bytes - peak_bytes >= 0
    assert "over y" not in str(compiled.explain(x, w))


def test_small_ones_are_not_asked_for(monkeypatch: pytest.MonkeyPatch, reused: list[int]) -> None:
    monkeypatch.setattr(ownership, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(ownership, "is_alone", None)  # would fail
    agrees(chain, *tensors())
    assert not reused


# ---- who else may have it -----------------------------------------------------------------------


def other_name(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    z = torch.resolve_conj(y)
    u = torch.tanh(z * 2)
    return F.conv1d(u, w, padding=1) + y


def other_view(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    z = torch.swapdims(y, 1, 1)
    u = torch.tanh(z * 2)
    return F.conv1d(u, w, padding=1) + y


def of_the_caller(x: Tensor, w: Tensor) -> Tensor:
    z = torch.resolve_conj(x)
    return torch.relu(z * 2)


def given_back(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv1d(x, w, padding=1)
    return torch.relu(y * 2), y


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv1d(x, w, padding=1)
    return torch.relu(y * 2), y.view(-1)


def twice(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    z = torch.resolve_conj(y)
    return y * torch.roll(z, 1, -1)


def shifted(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    return y + torch.roll(y, 1, -1)


def in_a_branch(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    if bool(y.sum() > 1e9):
        y = torch.tanh(y * 2)
    else:
        z = torch.relu(y * 2)
        y = F.conv1d(z, w, padding=1) - y
    return y * 3


def in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    kept = [x]
    y = x
    while bool(y.abs().sum() > 1):
        z = F.conv1d(y, w, padding=1)
        y = torch.tanh(z) * 0.5
        kept.append(y)
    return torch.stack(kept).sum(0)


def changed(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    z = torch.resolve_conj(y)
    y.add_(1)
    return torch.relu(F.conv1d(torch.relu(z * 2), w, padding=1) * y)


ALIASES = (
    *(other_name, other_view, of_the_caller, given_back, viewed, twice, shifted),
    *(in_a_branch, in_a_loop, changed),
)


@pytest.mark.parametrize("fn", ALIASES, ids=lambda f: f.__name__)
def test_other_names_of_the_operand(fn: Any) -> None:
    agrees(fn, *tensors())


def test_only_the_count_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "is_alone", lambda *_: True)
    with pytest.raises(AssertionError):
        agrees(other_name, *tensors())


_seen: list[Tensor] = []


class See(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _seen.append(x)
        return x * 3


def test_what_python_was_handed(monkeypatch: pytest.MonkeyPatch, reused: list[int]) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv1d(x, w, padding=1)
        s = See.apply(y)
        return torch.relu(y * 2) + s

    monkeypatch.setattr(ownership, "is_alone", lambda *_: True)  # a rehearsal does not call Python
    x, w = tensors()
    found = lt.script(fn)(x, w)
    torch.testing.assert_close(_seen.pop(), F.conv1d(x, w, padding=1))
    torch.testing.assert_close(found, fn(x, w))
    assert not reused


@pytest.mark.parametrize("keep", [Tensor.detach, Tensor.numpy, Tensor.untyped_storage, Tensor.t])
def test_whoever_keeps_it_is_counted(keep: Callable[[Tensor], object]) -> None:
    held = [torch.empty(3, 4)]
    assert ownership.is_alone(held, 0)
    kept = keep(held[0])
    assert not ownership.is_alone(held, 0)
    del kept
    assert ownership.is_alone(held, 0) is (
        keep is not Tensor.numpy
    )  # of which PyTorch takes a note


def test_memory_of_others(tmp_path: Path) -> None:
    array = np.ones(4)
    file = torch.from_file(str(tmp_path / "x"), shared=True, size=4)
    others = [torch.from_numpy(array), torch.from_dlpack(torch.ones(4)), file]
    others += [torch.ones(4).share_memory_(), torch.ones(8)[:4], torch.nn.Parameter(torch.ones(4))]
    assert not any(ownership.is_alone(others, k) for k in range(len(others)))


def test_what_numpy_makes_of_the_arenas_is_not_the_arenas() -> None:
    held = [arena.empty((1 << 20,), torch.float32)]
    assert ownership.is_alone(held, 0)
    held.append(torch.from_numpy(held[0].numpy()))
    assert held[0].data_ptr() == held[1].data_ptr()
    assert not ownership.is_alone(held, 1)


# ---- gradients ----------------------------------------------------------------------------------


def gradients(fn: Callable[..., Any], x: Tensor, w: Tensor) -> list[Tensor]:
    y = fn(x, w)
    weights = torch.linspace(0, 1, y.numel(), dtype=f64).view(y.shape)
    return list(torch.autograd.grad((y * weights).sin().sum(), (x, w)))


def saves(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv1d(x, w, padding=1)
    s = torch.digamma(y)
    return F.conv1d(y * 2 + 1, w, padding=1) + s


@pytest.mark.parametrize("fn", [chain, saves, other_name, other_view, shifted, twice])
def test_gradients(fn: Any) -> None:
    compiled, args = lt.script(fn), tensors(grad=True)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled, *args), gradients(fn, *args))


def test_what_autograd_has_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    args = tensors(grad=True)
    monkeypatch.setattr(ownership, "is_alone", lambda *_: True)
    wrong = gradients(lt.script(saves), *args)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(wrong, gradients(saves, *args))


def point(x: Tensor) -> Tensor:
    return torch.tanh(x * 2)


def through(use: Callable[[Callable[[Tensor], Tensor], Tensor], object]) -> tuple[Any, Any]:
    """What `use` gives of the compiled function and of the plain one."""
    compiled: Any = lt.script(point)
    compiled(tensors(grad=True)[0]).sum().backward()
    return use(compiled, tensors(grad=True)[0]), use(point, tensors(grad=True)[0])


def test_a_cotangent_that_the_engine_has_made(reused: list[int]) -> None:
    def use(fn: Any, x: Tensor) -> object:
        (fn(x) * 3).sin().sum().backward()
        return x.grad

    torch.testing.assert_close(*through(use))
    assert reused


def callers(fn: Any, x: Tensor) -> object:
    g = torch.ones(SHAPE, dtype=f64)
    fn(x).backward(g)
    return x.grad, g


def hooks(fn: Any, x: Tensor) -> object:
    kept: list[Tensor] = []
    y = fn(x)
    y.register_hook(kept.append)
    (y * 3).sin().sum().backward()
    return x.grad, kept


def detaching_hooks(fn: Any, x: Tensor) -> object:
    kept: list[Tensor] = []
    y = fn(x)
    y.register_hook(lambda g: kept.append(g.detach()))
    (y * 3).sin().sum().backward()
    return x.grad, kept


def hooks_of_storages(fn: Any, x: Tensor) -> object:
    kept: list[Any] = []
    y = fn(x)
    y.register_hook(lambda g: kept.append(g.untyped_storage()))
    (y * 3).sin().sum().backward()
    return x.grad, torch.empty(0, dtype=f64).set_(kept[0])


def hooks_with_memory_of_others(fn: Any, x: Tensor) -> object:
    array = np.full(SHAPE, 2.0)
    y = fn(x)
    y.register_hook(lambda _: torch.from_numpy(array))
    (y * 3).sin().sum().backward()
    return x.grad, array


def node_hooks(fn: Any, x: Tensor) -> object:
    kept: list[Any] = []
    y = fn(x)
    y.grad_fn.register_hook(lambda _, given: kept.append(given[0].clone()))
    (y * 3).sin().sum().backward()
    return x.grad, kept


def shared(fn: Any, x: Tensor) -> object:
    a, b = fn(x), fn(x * 2)
    ((a + b) * 3).sin().sum().backward()
    return x.grad


def retained(fn: Any, x: Tensor) -> object:
    y = fn(x)
    y.retain_grad()
    (y * 3).sin().sum().backward()
    return x.grad, y.grad


def asked_for(fn: Any, x: Tensor) -> object:
    y = fn(x)
    return torch.autograd.grad((y * 3).sin().sum(), (x, y))


def again(fn: Any, x: Tensor) -> object:
    y = (fn(x) * 3).sin().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    return first, torch.autograd.grad(y, x)


def second_derivative(fn: Any, x: Tensor) -> object:
    (g,) = torch.autograd.grad((fn(x) * 3).sin().sum(), x, create_graph=True)
    return g.detach().clone(), torch.autograd.grad(g.square().sum(), x), g


class Keeps(torch.autograd.Function):
    """Hands on a gradient that it keeps."""

    kept: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        Keeps.kept = cotangents[0] * 2
        return Keeps.kept


def keeping_node(fn: Any, x: Tensor) -> object:
    (Keeps.apply(fn(x)) * 3).sin().sum().backward()
    return x.grad, Keeps.kept


SEEN = (
    *(callers, hooks, detaching_hooks, hooks_of_storages, hooks_with_memory_of_others, node_hooks),
    *(shared, retained, asked_for, again, second_derivative, keeping_node),
)


@pytest.mark.parametrize("use", SEEN, ids=lambda f: f.__name__)
def test_a_cotangent_that_others_see(use: Any) -> None:
    torch.testing.assert_close(*through(use))


@pytest.mark.parametrize(
    "use", [callers, hooks, detaching_hooks, shared, keeping_node], ids=lambda f: f.__name__
)
def test_only_the_counts_tell_of_them(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "is_alone_in_backward", lambda g, k, *_: g[k] is not None)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*through(use))


# ---- programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_chains(seed: int, grad: bool, tmp_path: Path) -> None:
    name = f"chain_{seed}_{grad}"
    fn = function_of(source(seed, changes=not grad), tmp_path / f"{name}.py", "f")
    torch.manual_seed(seed)
    args = [torch.randn(SHAPE, dtype=f64), torch.randn(SHAPE, dtype=f64), tensors()[1]]
    args = [a.requires_grad_(grad) for a in args]
    compiled: Any = lt.script(fn)
    for _ in range(2):
        expected, found = fn(*args), compiled(*args)
        torch.testing.assert_close(found, expected)
        if grad:
            ways = [sum(torch.tanh(r).sum() for r in results) for results in (found, expected)]
            for keeps in (True, False):
                both = [
                    torch.autograd.grad(y, args, retain_graph=keeps, allow_unused=True)  # pyright: ignore
                    for y in ways
                ]
                torch.testing.assert_close(*both)


def test_threads() -> None:
    compiled: Any = lt.script(chain)
    x, w = tensors()
    inputs = [x * k for k in range(1, 7)]
    found: dict[int, Tensor] = {}

    def run(k: int) -> None:
        for _ in range(20):
            found[k] = compiled(inputs[k], w)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, x in enumerate(inputs):
        torch.testing.assert_close(found[k], chain(x, w))


def test_measured_tilings_write_over_nothing() -> None:
    compiled: Any = lt.script(chain, tune=True)
    args = tensors()
    torch.testing.assert_close(compiled(*args), chain(*args))


def test_indices_that_are_checked_write_over_nothing(reused: list[int]) -> None:
    def fn(x: Tensor, w: Tensor, at: Tensor) -> Tensor:
        y = F.conv1d(x, w, padding=1)
        return torch.relu(y * 2) + x[at]

    x, w = tensors()
    compiled: Any = lt.script(fn)
    at = torch.tensor([1, 0, 2])
    torch.testing.assert_close(compiled(x, w, at), fn(x, w, at))
    assert not reused


def test_cotangents_of_a_transform_have_no_memory() -> None:
    x = torch.rand(512, 1024, requires_grad=True)
    g = torch.rand(2, 512, 1024)
    compiled: Any = lt.script(_bent)
    (found,) = torch.autograd.grad(compiled(x), x, g, is_grads_batched=True)
    (wanted,) = torch.autograd.grad(_bent(x), x, g, is_grads_batched=True)
    torch.testing.assert_close(found, wanted)


def _bent(x: Tensor) -> Tensor:
    return torch.tanh(x * 2) + x
