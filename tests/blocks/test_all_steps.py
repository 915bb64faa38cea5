"""Loops whose programs keep to places of their own are one launch; others are one for each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.runtime.block_kernels import BlockKernel, Form
from tests.blocks.stand_in import Gpu

LONG = 2100  # several programs
STEPS = 40


def filtered(x: Tensor, a: Tensor) -> Tensor:
    """x: [T, N], a: [N]"""
    y = torch.zeros_like(a)
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        y = y * a + x[t]
        out.append(y)
    return torch.stack(out)


def last_only(x: Tensor, a: Tensor) -> Tensor:
    low, high = a, a * 2
    for t in range(x.shape[0]):
        low, high = torch.minimum(low, x[t] * t), torch.maximum(high, low + x[t])
    return low + high


def backwards(x: Tensor, a: Tensor) -> Tensor:
    y = a
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        y = torch.tanh(y + x[x.shape[0] - 1 - t])
        out.append(y)
    return torch.stack(out)


def shifted(x: Tensor, a: Tensor) -> Tensor:
    y = a
    for t in range(x.shape[0]):
        y = y.roll(1) * 0.5 + x[t]
    return y


def mixed(x: Tensor, a: Tensor) -> Tensor:
    y = a
    for t in range(x.shape[0]):
        y = x[t] + y.mean()
    return y


def turned(x: Tensor, a: Tensor) -> Tensor:
    """Places change along another axis than that of the programs."""
    y = a.reshape(-1, 2)
    for t in range(x.shape[0]):
        y = y.flip(1) * 0.5 + x[t].reshape(-1, 2)
    return y


def neighbours(x: Tensor, a: Tensor) -> Tensor:
    y = a
    for t in range(x.shape[0]):
        y = torch.cat([y[1:], y[:1]]) + y * 0.5 + x[t]
    return y


def check(fn: Callable[[Tensor, Tensor], Tensor], n: int) -> None:
    torch.manual_seed(0)
    x, a = torch.randn(STEPS, n), torch.rand(n)
    torch.testing.assert_close(lt.script(fn)(x, a), fn(x, a), rtol=1e-4, atol=1e-4)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Kernels that were launched, with how many programs."""
    found: list[tuple[str, int]] = []
    real = BlockKernel.launch

    def launch(self: BlockKernel, programs: int, form: Form, handed: list[float]) -> None:
        name = str(self.function.fn.__name__)
        found.append((name, programs))
        real(self, programs, form, handed)

    monkeypatch.setattr(BlockKernel, "launch", launch)
    return found


@pytest.mark.parametrize("n", [42, LONG])
@pytest.mark.parametrize("fn", [filtered, last_only, backwards, turned])
def test_each_to_its_own_places(
    fn: Callable[[Tensor, Tensor], Tensor], n: int, launched: list[tuple[str, int]]
) -> None:
    check(fn, n)
    (programs,) = [p for name, p in launched if name == "k0_steps"]
    assert (programs > 1) == (n == LONG)


@pytest.mark.parametrize("n", [42, LONG])
@pytest.mark.parametrize("fn", [shifted, neighbours])
def test_places_of_others(
    fn: Callable[[Tensor, Tensor], Tensor], n: int, launched: list[tuple[str, int]]
) -> None:
    check(fn, n)
    steps = [p for name, p in launched if name == "k0"]
    assert [p for name, p in launched if name == "k0_steps"] == ([1] if n == 42 else [])
    assert sum(p > 1 for p in steps) == (STEPS if n == LONG else 0)


def test_several_kernels(launched: list[tuple[str, int]]) -> None:
    check(mixed, LONG)
    assert {name for name, _ in launched} == {"k0", "k1"}
    assert len(launched) == 2 * STEPS


def test_gradients(launched: list[tuple[str, int]]) -> None:
    x = torch.randn(STEPS, LONG, requires_grad=True)
    a = torch.rand(LONG, requires_grad=True)
    found = torch.autograd.grad(lt.script(filtered)(x, a).square().sum(), (x, a))
    want = torch.autograd.grad(filtered(x, a).square().sum(), (x, a))
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    assert sum(name == "k0_steps" for name, _ in launched) == 2


def test_on_a_gpu(gpu: Gpu) -> None:
    """What is compiled, and what is handed over; unevenly lying rows among them."""
    for n in (LONG, LONG + 1):
        check(filtered, n)
        assert gpu.launched[-1].source.fn.__name__ == "k0_steps"
