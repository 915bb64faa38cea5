"""Of `relu` the result is kept, as PyTorch does it, and not the operand, which may go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt


def alone(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.lgamma(x))  # a call into PyTorch: what it gives is the program's own


def added(x: Tensor, y: Tensor) -> Tensor:
    return F.relu(torch.lgamma(x) + torch.erfinv(y))


def shifted(x: Tensor, y: Tensor) -> Tensor:
    return F.relu(torch.lgamma(x) + torch.erfinv(y)[0])


def by_method(x: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(x).relu()


DROPPED: list[Callable[..., Tensor]] = [alone, added, shifted, by_method]


def read_twice(x: Tensor, y: Tensor) -> Tensor:
    z = torch.lgamma(x)
    return torch.relu(z) * z


def of_a_part(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.lgamma(x)[1:])


def turned(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.lgamma(x).t())


def of_a_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.lgamma(x) * torch.erfinv(y))


def sum_is_a_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.lgamma(x) + torch.erfinv(y)
    return torch.relu(z), z


def of_six(x: Tensor, y: Tensor) -> Tensor:
    return F.relu6(torch.lgamma(x))


def doubled(x: Tensor, y: Tensor) -> Tensor:
    z = torch.lgamma(x)
    return torch.relu(z + z)


OTHERS: list[Callable[..., Any]] = [
    read_twice, of_a_part, turned, of_a_product, sum_is_a_result, of_six, doubled,
]  # fmt: skip


def inputs(n: int = 40, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(n)
    x = torch.rand(n, n, generator=g, dtype=torch.float64) * 4
    y = torch.rand(n, n, generator=g, dtype=torch.float64) * 1.8 - 0.9
    return [z.to(dtype).requires_grad_() for z in (x, y)]


def gradients(f: Callable[..., Any], args: list[Tensor]) -> list[Tensor]:
    made = f(*args)
    z = made[0] + made[1] if isinstance(made, tuple) else made
    loss = (z**3).sum()
    first = torch.autograd.grad(loss, args, retain_graph=True, allow_unused=True)
    again = torch.autograd.grad(loss, args, create_graph=True, allow_unused=True)
    norm = sum(g.square().sum() for g in again if g is not None)
    second = torch.autograd.grad(norm, args, allow_unused=True)
    return [z.detach(), *(g for g in (*first, *again, *second) if g is not None)]


@pytest.mark.parametrize("fn", [*DROPPED, *OTHERS], ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_eager(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (40, 3, 1):
        found, expected = gradients(compiled, inputs(n)), gradients(fn, inputs(n))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_sum_of_half_types(dtype: torch.dtype) -> None:
    def sums(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(torch.frac(x) - 0.25 + torch.frac(y))

    x, y = inputs(dtype=dtype)
    args = [x, y]
    (found, *gs), (expected, *wanted) = gradients(added_halves, args), gradients(sums, args)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gs, wanted)


@lt.script
def added_halves(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.frac(x) - 0.25 + torch.frac(y))


def six(x: Tensor, y: Tensor) -> Tensor:
    x = alone(alone(alone(x, y), y), y)
    return alone(alone(alone(x, y), y), y)


def six_sums(x: Tensor, y: Tensor) -> Tensor:
    x = added(added(added(x, y), y), y)
    return added(added(added(x, y), y), y)


def six_shifted(x: Tensor, y: Tensor) -> Tensor:
    x = shifted(shifted(shifted(x, y), y), y)
    return shifted(shifted(shifted(x, y), y), y)


@pytest.mark.parametrize(
    ("fn", "most"), [(six, 10), (six_sums, 14), (six_shifted, 14)], ids=["alone", "sums", "shifted"]
)
def test_the_operand_goes(fn: Callable[..., Tensor], most: int) -> None:
    """Each of six results is kept, of which the next call into PyTorch takes the gradient; beside
    them there are gradients, and what is made of one at a time. Each operand would be one more."""
    n = 200
    plan = lt.script(fn).memory(*inputs(n))
    assert plan.peak_bytes < (most + 0.5) * 8 * n * n, str(plan)


def test_not_a_number() -> None:
    x, y = inputs()
    with torch.no_grad():
        x[0, :3] = torch.tensor([torch.nan, torch.inf, 0.0])
    found, expected = lt.script(alone)(x, y), alone(x, y)
    for z in (found, expected):
        x.grad = None
        z.sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(
            x.grad, torch.autograd.grad(alone(x, y).sum(), x)[0], equal_nan=True
        )


def test_a_result_that_is_changed_has_no_gradient_as_in_pytorch() -> None:
    for f in (alone, lt.script(alone)):
        z = f(*inputs())
        z.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()
