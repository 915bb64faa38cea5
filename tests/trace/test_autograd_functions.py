"""Functions with a backward of their own keep it in a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agree import agree
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import lowtide as lt

R = torch.randn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.slope / (1 + x.abs()).square(), None


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, n: int) -> Any:
        return x[:n] * 1, None, x[n:] * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.cat([grads[0] * 3, grads[2] * 5]), None


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return fn(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, grads[0] * 7


spike: Any = Spike.apply  # as it is mostly kept
in_halves: Any = Halves.apply
calling: Any = Called.apply
SINGLE: Any = vars(torch.autograd.function)["_SingleLevelFunction"]


def spikes(x: Tensor) -> Tensor:
    return spike(x * 3, 2.0) * x


def halves(x: Tensor) -> Tensor:
    a, nothing, b = in_halves(x.exp(), x.shape[0] // 2)
    assert nothing is None
    return a.sum() * 2 + b.sum()


def called(x: Tensor) -> Tensor:
    return calling(torch.tanh, x) + x


def recomputed(x: Tensor) -> Tensor:
    again: Any = checkpoint
    return again(lambda y: y.sin() * y, x * 2, use_reentrant=True)


@pytest.mark.parametrize("fn", [spikes, halves, called, recomputed], ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_backward(fn: Callable[..., Tensor]) -> None:
    traced = lt.trace(fn, R(4, 2))
    agree(traced, fn, (R(4, 2),), (R(6, 2),))
    for n in (4, 6):
        ours = R(n, 2).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        traced(ours).sum().backward()
        fn(theirs).sum().backward()
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_it_can_be_saved_where_it_is_traced_without_gradients(tmp_path: Path) -> None:
    file = tmp_path / "halves.lt"
    with pytest.raises(lt.CompileError, match=r"lt\.trace under torch\.no_grad"):
        lt.save(lt.trace(halves, R(4, 2)), file)
    told = pytest.warns(Warning, match="Halves.apply is recorded without its backward")
    with torch.no_grad(), told:
        traced = lt.trace(halves, R(4, 2))
    lt.save(traced, file)
    x = R(6, 2)
    torch.testing.assert_close(lt.load(file)(x), halves(x))


def test_a_function_around_a_tensor_of_the_run_is_refused() -> None:
    def fn(x: Tensor) -> Tensor:
        h = x * 2
        return calling(lambda y: y + h, x)

    with pytest.raises(lt.CompileError, match="holds a tensor of the traced run"):
        lt.trace(fn, R(3))


def test_pytorch_is_as_it_was() -> None:
    lt.trace(spikes, R(3))
    assert "apply" not in vars(SINGLE)
