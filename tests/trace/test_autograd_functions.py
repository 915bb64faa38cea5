"""Functions with a backward of their own keep it in a trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agree import agree
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.torch_private.autograd import FUNCTION_OF_C

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


class Saved(Halves):
    @staticmethod
    def forward(x: Tensor) -> Any:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.saved_tensors[0] * 3


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return -grads[0]


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return fn(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, grads[0] * 7


spike: Any = Spike.apply  # as it is mostly kept
saved: Any = Saved.apply
same: Any = Same.apply
calling: Any = Called.apply
SINGLE: Any = vars(torch.autograd.function)["_SingleLevelFunction"]


def spikes(x: Tensor) -> Tensor:
    return spike(x * 3, 2.0) * x


def halves(x: Tensor) -> Tensor:
    in_halves: Any = Halves.apply
    a, nothing, b = in_halves(x.exp(), x.shape[0] // 2)
    assert nothing is None
    return a.sum() * 2 + b.sum()


def with_keywords(x: Tensor) -> Tensor:
    return spike(x * 3, slope=2.0) * x + at_the_call(slope=3.0, x=x)


def at_the_call(**kwargs: Any) -> Tensor:
    apply: Any = Spike.apply
    return apply(**kwargs)


def nested(x: Tensor) -> Tensor:
    return calling(lambda y: spike(y, 2.0), x) + calling(at_the_call_of_2, x)


def at_the_call_of_2(x: Tensor) -> Tensor:
    return at_the_call(x=x, slope=2.0)


def of_forward(x: Tensor) -> Tensor:
    return spike(x, 2.0) + Saved.forward(x)


def called(x: Tensor) -> Tensor:
    return calling(torch.tanh, x) + x


def recomputed(x: Tensor) -> Tensor:
    again: Any = checkpoint
    return again(lambda y: y.sin() * y, x * 2, use_reentrant=True)


@pytest.mark.parametrize(
    "fn",
    [spikes, halves, called, recomputed, with_keywords, nested, of_forward],
    ids=lambda fn: fn.__name__,
)
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


@pytest.mark.parametrize("fn", [saved, same])
def test_a_result_that_pytorch_replaces_is_seen_or_refused(fn: Any) -> None:
    """From 2.14 on an `apply` that was looked up before the trace is seen from inside of it."""

    def double(x: Tensor) -> Tensor:
        return fn(x * 2) * 2

    if FUNCTION_OF_C is not None:
        with pytest.raises(lt.CompileError, match="looked up before"):
            lt.trace(double, R(3))
        return
    ours = R(3).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    lt.trace(double, R(3))(ours).sum().backward()
    double(theirs).sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_parameter_that_is_only_a_keyword_is_refused() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *, slope: float) -> Tensor:
            return x * 2

    def fn(x: Tensor) -> Any:
        apply: Any = Scaled.apply
        return apply(x, slope=2.0)

    with pytest.raises(lt.CompileError, match="only a keyword"):
        lt.trace(fn, R(3))


def test_without_gradients_what_forward_calls_is_recorded() -> None:
    told = pytest.warns(Warning, match="Spike.apply is recorded without its backward")
    with torch.no_grad(), told:
        traced = lt.trace(spikes, R(4, 2))
    assert "py.call" not in str(traced.graph)
    agree(traced, spikes, (R(6, 2),))


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
    before = inspect.getattr_static(torch.autograd.Function, "apply")
    lt.trace(spikes, R(3))
    assert "apply" not in vars(SINGLE)
    assert inspect.getattr_static(torch.autograd.Function, "apply") is before
    assert "__getattribute__" not in vars(type(SINGLE))
