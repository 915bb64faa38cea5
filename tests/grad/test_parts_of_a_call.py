"""Backward passes one after the other, and inputs that change before them, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.run.names_and_writes import MODES

AGAIN = "backward through the graph a second time"
CHANGED = "modified by an inplace operation"


def values(*shape: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def apart(a, b):
    return (a * a).sum(), (b.exp() * 2).sum()


def detached(a, b):
    h = torch.sin(a * b)
    return (h * a).sum(), (h.detach() * b).sum()


def linear_in_common(a, b):
    h = a + b
    return (h * 2).sum(), (h * 3).sum(), (h - a).sum()


def common(a, b):
    h = a * b
    return (h * a).sum(), (h * b).sum()


def three(a, b):
    h = a.exp()
    return (h * b.detach()).sum(), h.sum(), (b * b).sum()


def compiled(f: Any, mode: str, *args: Tensor) -> Any:
    torch.compiler.reset()
    return MODES[mode](f, lambda: args)


def in_turn(f: Callable[..., Any], order: list[int], retained: tuple[int, ...] = ()) -> Any:
    """Gradients after each loss, or the error that PyTorch raises."""
    a, b = values(3, 4), values(4, 3).detach().t().requires_grad_()
    losses, found = f(a, b), list[Any]()
    for k in order:
        try:
            losses[k].backward(retain_graph=k in retained)
        except RuntimeError as error:
            found.append(AGAIN if AGAIN in str(error) else str(error))
        found += [x.grad if x.grad is None else x.grad.clone() for x in (a, b)]
    return found


def same(found: Any, expected: Any) -> None:
    """Gradients, None and words."""
    assert [type(x) for x in found] == [type(x) for x in expected]
    for x, y in zip(found, expected, strict=True):
        if isinstance(y, Tensor):
            torch.testing.assert_close(x, y)
        else:
            assert x == y


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("f", "order", "retained"),
    [
        (apart, [0, 1], ()),
        (apart, [1, 0, 1], ()),
        (apart, [1, 0, 1], (1,)),
        (detached, [0, 1], ()),
        (detached, [1, 0, 0], ()),
        (linear_in_common, [2, 0, 1], ()),
        (common, [0, 1], ()),
        (common, [0, 1], (0,)),
        (three, [2, 0, 1], ()),
        (three, [0, 2, 1], ()),
    ],
)
def test_losses_in_turn(f: Any, order: list[int], retained: tuple[int, ...], mode: str) -> None:
    c = compiled(f, mode, values(3, 4), values(3, 4))
    same(in_turn(c, order, retained), in_turn(f, order, retained))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.tanh(self.one(z))
        fooled = F.softplus(torch.tanh(self.other(made))).mean()
        seen = F.softplus(-torch.tanh(self.other(made.detach()))).mean()
        return fooled, seen + F.softplus(torch.tanh(self.other(x))).mean()


@pytest.mark.parametrize("mode", MODES)
def test_two_losses_of_adversaries(mode: str) -> None:
    z, x = values(3, 4, grad=False), values(4, 4, grad=False)
    gradients: list[list[Tensor]] = []
    for wrap in (lambda m: m, lambda m: compiled(m, mode, z, x)):
        module = Adversaries()
        fooled, seen = wrap(module)(z, x)
        fooled.backward()
        seen.backward()
        gradients.append([p.grad for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0])


def squares(a, b):
    return (a * a).sum(), (b * b).sum()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_may_not_change(mode: str) -> None:
    a, b = values(3, 4), values(4, 4)
    first, second = compiled(squares, mode, a, b)(a, b)
    first.backward()
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match=CHANGED):
        second.backward()


def copied(x, q):
    return x @ q.clone().detach()


def doubled(x, q):
    return x @ (q * 2)


def through_double(x, q):
    return x @ q.to(torch.float64).float()


def compared(x, q):
    return torch.where(q > 0.5, x.t(), 2 * x.t())


def masked(x, q):
    return x.t().masked_fill(q == 0, -1.0).softmax(0)


def read_alone(x, q):
    return x @ q


def in_a_list(x, q):
    both = [q, q + 1]
    return x @ (both[0] + both[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "f", [copied, doubled, through_double, compared, masked, in_a_list, read_alone]
)
def test_inputs_that_change_before_the_backward_pass(f: Any, mode: str) -> None:
    def gradient(g: Callable[..., Tensor]) -> Any:
        x, q = values(3, 4), values(4, 3, grad=False)
        y = g(x, q)
        q.add_(1)
        try:
            (y * y.detach()).sum().backward()
        except RuntimeError as error:
            return CHANGED if CHANGED in str(error) else str(error)
        return x.grad

    want = gradient(f)
    c = compiled(f, mode, values(3, 4), values(4, 3, grad=False))
    for _ in range(2):
        same([gradient(c)], [want])
