"""What surrounds a training step: checkpoints, autocast, hooks, frozen parameters, accumulation.

Each test differentiates `Recurrent`, whose loop is one region, compiled and in eager mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import close


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


class Recurrent(nn.Module):
    """A recurrent layer, and how often it was above zero, which carries no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 35 * 4, dtype=torch.float64).view(35, 4))
        self.u = nn.Parameter(torch.linspace(-0.5, 0.7, 16, dtype=torch.float64).view(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros_like(x[0] @ self.w)
        states = []
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] @ self.w + h @ self.u)
            states.append(h)
        result = torch.stack(states)
        return result, (result > 0).sum(0)


MODEL = Recurrent()
COMPILED = lt.script(copy.deepcopy(MODEL))


@pytest.fixture
def models() -> list[nn.Module]:
    """Compiled, and not: with equal parameters, which want gradients and have none."""
    for model in (COMPILED, MODEL):
        for p in model.parameters():
            p.grad = None
            p.requires_grad_(True)
    return [COMPILED, MODEL]


def x(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(40, 6, 35, generator=generator, dtype=torch.float64)


def agree(models: list[nn.Module], step: Callable[[nn.Module], Any]) -> None:
    """`step` gives tensors; they and all `.grad`s are those of eager mode."""
    got, want = ([*step(m), *(p.grad for p in m.parameters())] for m in models)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_around(models: list[nn.Module], reentrant: bool) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        given = x().requires_grad_()
        y, count = checkpoint(m, given * 2, use_reentrant=reentrant)
        assert not count.requires_grad
        (y[::2] ** 2).sum().backward()
        return [y, count, given.grad]  # type: ignore[list-item]

    agree(models, step)


def test_checkpoint_beside_and_twice(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        wide = checkpoint(m, x(), use_reentrant=False)[0] @ torch.ones(4, 35, dtype=torch.float64)
        y = checkpoint(m, wide, use_reentrant=False)[0] + m(wide)[0]
        y.sum().backward()
        return [y]

    agree(models, step)


def test_gradients_accumulate(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        for seed in range(3):
            (m(x(seed))[0].sum() / 3).backward()
        return []

    agree(models, step)


def test_the_graph_is_retained(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        y = m(x())[0]
        y[-1].sum().backward(retain_graph=True)
        y[0].prod().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        return [y]

    agree(models, step)


@pytest.mark.parametrize("frozen", ["w", "u"])
def test_a_parameter_is_frozen_and_thawed(models: list[nn.Module], frozen: str) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        getattr(m, frozen).requires_grad_(False)
        m(x())[0].sum().backward()
        assert getattr(m, frozen).grad is None
        getattr(m, frozen).requires_grad_(True)
        m(x(1))[0].sum().backward()
        return []

    agree(models, step)


def test_modes_take_turns(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            before = m(x())[0]
        with torch.inference_mode():
            assert m(x())[0].is_inference()
        y = m(x())[0]
        assert y.requires_grad
        assert not before.requires_grad
        with torch.set_grad_enabled(False):
            assert not m(x())[0].requires_grad
        y.sum().backward()
        return [before, y]

    agree(models, step)


def test_autocast(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.nn.functional.linear(m(x())[0].float(), torch.ones(3, 4))
        assert y.dtype is torch.bfloat16
        y.sum().backward()
        return [y]

    agree(models, step)


def test_hooks(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        seen: list[Tensor] = []
        handles = [
            m.u.register_hook(lambda g: g * 2),  # type: ignore[operator,union-attr]
            m.w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())),  # type: ignore[operator,union-attr]
        ]
        y = m(x())[0]
        y.register_hook(lambda g: g.clamp(max=0.5))
        y.retain_grad()
        y.sum().backward()
        for handle in handles:
            handle.remove()
        return [y.grad, *seen]  # type: ignore[list-item]

    agree(models, step)


def test_parameters_changed_between_forward_and_backward(models: list[nn.Module]) -> None:
    for m in models:
        y = m(x())[0].sum()
        with torch.no_grad():
            m.u.mul_(1)  # type: ignore[operator,union-attr]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_result_changed_in_place(models: list[nn.Module]) -> None:
    """Eager's tanh keeps its result too, but not the stack of them."""

    def step(m: nn.Module) -> list[Tensor]:
        y = m(x())[0] * 1
        y[3:5] *= 2
        y.relu_()
        y.sum().backward()
        return [y]

    agree(models, step)


def test_the_gradient_is_penalised(models: list[nn.Module]) -> None:
    def step(m: nn.Module) -> list[Tensor]:
        given = x().requires_grad_()
        (g,) = torch.autograd.grad(m(given)[0].sin().sum(), given, create_graph=True)
        (g**2).sum().backward()
        return [g]

    agree(models, step)


def changed(a: Tensor, b: Tensor) -> Tensor:
    a *= 2
    for i in range(a.shape[0]):
        a[i] += b[i].sin()
    return (a * b).sum()


def test_an_input_is_changed() -> None:
    found: list[list[Tensor]] = []
    for f in (lt.script(changed), changed):
        leaf, b = x(0).requires_grad_(), x(1).requires_grad_()
        a = leaf * 1
        loss = f(a, b)
        loss.backward()
        assert leaf.grad is not None
        assert b.grad is not None
        found.append([loss, a, leaf.grad, b.grad])
    for got, want in zip(*found, strict=True):
        close(got, want)


def test_gradcheck() -> None:
    model = COMPILED
    given = x()[:33, :2].requires_grad_()

    def f(given: Tensor, w: Tensor, u: Tensor) -> Tensor:
        return torch.func.functional_call(model, {"w": w, "u": u}, (given,))[0]

    parameters = [p.detach().clone().requires_grad_() for p in MODEL.parameters()]
    assert torch.autograd.gradcheck(f, (given, *parameters), fast_mode=True)
    assert torch.autograd.gradcheck(lambda given: model(given)[0], (given,), fast_mode=True)
