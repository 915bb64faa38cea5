"""The table of programs whose predicted peak is compared with the measured one; of some tens of MB.

A case is a function or a module, and a maker of its inputs. Floating inputs get `requires_grad` for
the run with gradients, unless the case has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Case:
    """`make` gives what is compiled; `inputs` its arguments; `grad`: whether it has gradients."""

    name: str
    make: Callable[[], object]
    inputs: Callable[[], tuple[object, ...]]
    grad: bool = True


CASES: list[Case] = []
N = 1500  # a square of floats is 9 MB


def square() -> tuple[Tensor, ...]:
    return (torch.rand(N, N),)


def two_squares() -> tuple[Tensor, ...]:
    return torch.rand(N, N), torch.rand(N, N)


def cube() -> tuple[Tensor, ...]:
    return (torch.rand(48, 256, 200),)


def images() -> tuple[Tensor, ...]:
    return (torch.rand(8, 16, 128, 128),)


def case(
    inputs: Callable[[], tuple[object, ...]] = square, grad: bool = True
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Adds a function to the table."""

    def add(fn: Callable[..., object]) -> Callable[..., object]:
        CASES.append(Case(name=fn.__name__, make=lambda: fn, inputs=inputs, grad=grad))
        return fn

    return add


def module(name: str, inputs: Callable[[], tuple[object, ...]]) -> Callable[..., object]:
    """Adds a maker of modules to the table."""

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES.append(Case(name=name, make=make, inputs=inputs))
        return make

    return add
