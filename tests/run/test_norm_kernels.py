"""Batch norm in training as a kernel: results, gradients and running statistics are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16


def normed(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(x, mean, var, w, b, training=True, momentum=0.3))


def smooth(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(F.batch_norm(x, mean, var, w, b, training=True))


def read_before(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x * mean.sum()
    return F.batch_norm(y, mean, var, w, b, training=True)


def read_afterwards(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.batch_norm(x, mean, var, w, b, training=True)
    return y * mean.sum() + torch.einsum("i->i", var).sum()


def viewed_before(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    part = mean[1:]
    y = F.batch_norm(x, mean, var, w, b, training=True)
    return y * part.sum()


def twice(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.tanh(F.batch_norm(x, mean, var, w, b, training=True))
    return F.batch_norm(y, mean, var, w, b, training=True)


def in_turns(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    for _ in range(3):
        x = F.batch_norm(x, mean, var, w, b, training=True) + 0.5
    return x


def of_mean_alone(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, None, training=True)


def one_for_both(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, var, var, w, b, training=True)


def scaled_by_them(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var, var.view(-1), mean, training=True)


def detached(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, mean.detach(), var.detach(), w, b, training=True)


ALIKE = (one_for_both, scaled_by_them)
PROGRAMS = (
    normed, read_before, read_afterwards, viewed_before, twice, in_turns, of_mean_alone, detached,
)  # fmt: skip


def inputs(shape: tuple[int, ...], dtype: torch.dtype = f64) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype) * 2 + 1
    n = shape[1]
    mean, var = torch.randn(n, dtype=dtype), torch.rand(n, dtype=dtype) + 0.5
    w, b = (torch.randn(n, dtype=dtype) for _ in range(2))
    return [x.requires_grad_(), mean, var, w.requires_grad_(), b.requires_grad_()]


def trained(call: Callable[..., Tensor], args: list[Tensor]) -> list[Tensor]:
    """Two calls, then the gradients; the statistics afterwards."""
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    first, second = call(*given), call(*given)
    torch.manual_seed(1)
    (first * torch.randn_like(first)).sum().backward()
    (second * torch.randn_like(second)).sum().backward()
    grads = [a.grad for a in given if a.grad is not None]
    return [first.detach(), second.detach(), *grads, *given[1:3]]


SHAPES = [(6, 4), (5, 3, 7), (4, 6, 5, 5), (2, 3, 3, 4, 2)]


def variants() -> list[Any]:
    """Every program in 4 dimensions, one norm and two in any number of them."""
    return [
        pytest.param(p, s, marks=() if p in (normed, twice) or len(s) == 4 else pytest.mark.long)
        for p in PROGRAMS
        for s in SHAPES
    ]


@pytest.mark.parametrize(("program", "shape"), variants())
def test_as_eager(program: Any, shape: tuple[int, ...]) -> None:
    args = inputs(shape)
    expected = trained(program, args)
    torch.testing.assert_close(trained(lt.script(program), args), expected)


@pytest.mark.parametrize("program", ALIKE)
def test_statistics_that_are_another_operand_too(program: Any) -> None:
    args, others = inputs((5, 3, 4, 4)), inputs((5, 3, 4, 4))
    with torch.no_grad():
        torch.testing.assert_close(lt.script(program)(*args), program(*others))
    torch.testing.assert_close(args, others)


def test_an_output_that_is_changed_is_not_read_again() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, torch.sigmoid(y)

    for how in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 4, 4, dtype=f64).contiguous(memory_format=how).requires_grad_()
        y, z = lt.script(both)(x)
        z.detach().mul_(3)  # shares the version
        (g,) = torch.autograd.grad((y + z).sum(), x)  # where eager raises
        s = torch.sigmoid(2 * x.detach())
        torch.testing.assert_close(g, 2 + 2 * s * (1 - s))


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("last", [False, True])
def test_dtypes_and_formats(dtype: torch.dtype, last: bool) -> None:
    """As near to what float64 gives as eager is."""
    args = inputs((4, 24, 9, 9), dtype)
    how = torch.channels_last if last else torch.contiguous_format
    args[0] = args[0].detach().contiguous(memory_format=how).requires_grad_()
    exact = trained(smooth, [a.detach().double().requires_grad_(a.requires_grad) for a in args])
    compiled: Any = lt.script(smooth)
    found, eager = trained(compiled, args), trained(smooth, args)
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        room = 8 * torch.finfo(dtype).eps * wanted.abs().max()  # sums of gradients are f32
        assert (ours - wanted).abs().max() <= 2 * (theirs - wanted).abs().max() + room
        assert ours.stride() == theirs.stride()
    assert "batch_norm" not in str(compiled.explain(*args).torch_ops)


def test_without_gradients_the_statistics_are_written_too() -> None:
    args, others = inputs((8, 4, 5, 5)), inputs((8, 4, 5, 5))
    with torch.no_grad():
        torch.testing.assert_close(lt.script(normed)(*args), normed(*others))
    torch.testing.assert_close(args, others)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e18])
def test_extreme_values(value: float) -> None:
    args, others = inputs((4, 3, 6, 6), f32), inputs((4, 3, 6, 6), f32)
    with torch.no_grad():
        for x in (args[0], others[0]):
            x[0, 1, 2, 2] = value
        found, expected = lt.script(normed)(*args), normed(*others)
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(args[1:3], others[1:3], equal_nan=True)


def test_a_single_value_per_channel_raises_as_ever() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        lt.script(normed)(*inputs((1, 4)))


def test_mixed_dtypes_are_pytorchs() -> None:
    args = inputs((6, 4, 3, 3), f32)
    args[0] = args[0].detach().bfloat16().requires_grad_()
    torch.testing.assert_close(trained(lt.script(normed), args), trained(normed, args))


def test_double_backward_writes_no_statistics() -> None:
    args = inputs((6, 4, 3, 3))

    def second(call: Callable[..., Tensor]) -> list[Tensor]:
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        (g,) = torch.autograd.grad(call(*given).square().sum(), given[0], create_graph=True)
        return [*torch.autograd.grad(g.square().sum(), [given[0], given[3]]), *given[1:3]]

    torch.testing.assert_close(second(lt.script(normed)), second(normed))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("entry", [lt.script, pytest.param(lt.compile, marks=pytest.mark.slow)])
def test_modules(entry: Any, momentum: float | None) -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(inplace=True)
    ).double()
    ours = copy.deepcopy(theirs)
    compiled = entry(ours)
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8, dtype=f64)
        torch.testing.assert_close(compiled(x), theirs(x))
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    torch.testing.assert_close(compiled.eval()(x), theirs.eval()(x))
