"""Assertions about tensors do not end a region; where they fail, the program raises as in Python.

PYTEST_DONT_REWRITE: the messages of the programs' assertions are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults


def asserted(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    assert d.min() >= 0.5, "too near"
    return (d * torch.exp(-d)).sum(1)


def several(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    assert not torch.isnan(d).any()
    assert torch.isfinite(d).all(), "infinite"
    return d.mean(1)


def raised(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    if (d < 0.5).any():
        raise ValueError("too near")
    return d.sqrt().sum(1)


def raised_else(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    if not (d < 0.5).any():
        pass
    else:
        raise ValueError("too near")
    return d.sqrt().sum(1)


def number(a: Tensor, b: Tensor) -> Tensor:
    total = (a[:, None] * b[None]).sum()
    assert total, "zero"
    return a / total


def shape_behind(a: Tensor, b: Tensor) -> Tensor:
    assert a.shape[0] == b.shape[0] or a.sum() > 0
    d = (a[:, None] - b[None]).abs()
    assert d.max() < 1e6, "large"
    return d.sum(1) @ torch.ones(7)  # does not fit


FUNCTIONS = [asserted, several, raised, raised_else, number]
INPUTS = {
    "far": torch.arange(1.0, 181.0).view(60, 3) * 50,
    "near": torch.rand(60, 3, generator=torch.Generator().manual_seed(0)),
    "zero": torch.zeros(60, 3),
    "nan": torch.full((60, 3), math.nan),
    "infinite": torch.full((60, 3), math.inf),
}
B = torch.rand(40, 3, generator=torch.Generator().manual_seed(1))


def outcome(fn: Callable[[Tensor, Tensor], Tensor], a: Tensor) -> Tensor | tuple[type, str]:
    try:
        return fn(a, B)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_raises_as_in_python(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    f = lt.script(fn)
    with faults.strict():
        for a in (*INPUTS.values(), INPUTS["far"]):
            expected, found = outcome(fn, a), outcome(f, a)
            if isinstance(expected, Tensor):
                assert isinstance(found, Tensor)
                torch.testing.assert_close(found, expected, equal_nan=True)
            else:
                assert found == expected


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_stays_one_region(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    found = lt.script(fn).explain(INPUTS["far"], B)
    assert len(found.regions) == 1
    assert not found.torch_ops


def test_the_first_error_is_raised() -> None:
    """The assertion comes before the product whose sizes do not fit."""
    f = lt.script(shape_behind)
    assert outcome(f, torch.full((60, 3), 1e7)) == (AssertionError, "large")
    with pytest.raises(RuntimeError, match=r"size|shape"):
        f(torch.ones(60, 3), B)


def test_under_compile() -> None:
    f = lt.compile(asserted)
    torch.testing.assert_close(f(INPUTS["far"], B), asserted(INPUTS["far"], B))
    assert ", 0 ops left to PyTorch" in str(f.explain(INPUTS["far"], B))
    with pytest.raises(RuntimeError, match="too near"):  # as torch.compile raises it
        f(INPUTS["near"], B)


def test_gradients() -> None:
    a = INPUTS["far"].clone().requires_grad_()
    lt.script(raised)(a, B).sum().backward()
    other = INPUTS["far"].clone().requires_grad_()
    raised(other, B).sum().backward()
    torch.testing.assert_close(a.grad, other.grad)


def kept(a: Tensor) -> tuple[Tensor, bool]:
    is_small = bool(a.max() < 1)
    assert is_small or a.min() > 0
    return a * 2, is_small


def test_a_bool_that_is_read_again_is_a_bool() -> None:
    assert lt.script(kept)(torch.full((3,), 0.5))[1] is True
    assert lt.script(kept)(torch.full((3,), 5.0))[1] is False


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        assert x.max() < 10, "large"
        self.count += 1
        return x * self.count


def test_what_is_written_before_and_after() -> None:
    """A failed assertion keeps what was written before it, and nothing after it."""
    module = Counting()
    compiled = lt.script(module)
    compiled(torch.ones(50))
    with pytest.raises(AssertionError, match="large"):
        compiled(torch.full((50,), 20.0))
    assert module.count.item() == 3
