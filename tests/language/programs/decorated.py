"""Functions and methods under decorators, and what else a block around them turns on."""

import functools
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor, nn

from tests.language.support import call, module_program, program


def plus_one(fn: Any):
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any):
        return fn(*args, **kwargs) + 1

    return wrapper


@torch.no_grad()
def frozen(x: Tensor, k: int = 2) -> Tensor:
    return x * k


@torch.set_grad_enabled(True)
def recorded(x: Tensor) -> Tensor:
    return frozen(x) + x


@program(calls=lambda: [call(torch.ones(2, requires_grad=True)), call(torch.ones(2), k=3)])
@plus_one
def decorated_itself(x: Tensor, k: int = 2) -> Tensor:
    return x * k


@program(calls=lambda: [call(torch.ones(2, requires_grad=True), k=3)])
@plus_one
@torch.no_grad()
def decorated_twice(x: Tensor, *, k: int = 2) -> Tensor:
    return x * k


@program(args=lambda: (torch.ones(2, requires_grad=True),))
def calls_decorated(x: Tensor):
    y = frozen(x, k=5) + frozen(x)
    return y, y.requires_grad, recorded(x), recorded(x).requires_grad


@module_program(calls=lambda: [call(torch.ones(3), 3), call(torch.ones(3), 2, 0.1)])
class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)

    @torch.no_grad()
    def step(self, x: Tensor, scale: float = 0.5) -> Tensor:
        return self.out(x) * scale

    @torch.inference_mode()
    def forward(self, x: Tensor, steps: int, scale: float = 0.5) -> List[Tensor]:
        found: List[Tensor] = []
        for _ in range(steps):
            x = self.step(x, scale=scale)
            found.append(x)
        return found


@program(args=lambda: (torch.ones(3, 3),))
def autocast_in_a_block(x: Tensor):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        z = torch.nn.functional.linear(x, x)
    return y, z, x @ x


@program(calls=lambda: [call([1, 2]), call(None)], raises=ValueError)
def narrowed_by_a_raise(xs: Optional[List[int]]):
    if xs is None:
        raise ValueError("no numbers")
    total = 0
    for x in xs:
        total += x
    return total


@program(calls=lambda: [call({"a": [1, 2]}), call({})], raises=KeyError)
def narrowed_item_by_a_raise(d: Dict[str, List[int]]):
    xs = d.get("a")
    if xs is None:
        raise KeyError("a")
    return [x + 1 for x in xs]


@program(calls=lambda: [call([1, 2]), call(3)], raises=TypeError)
def narrowed_class_by_a_raise(x: Union[int, List[int]]):
    if isinstance(x, int):
        raise TypeError("a list")
    return sum(x)
