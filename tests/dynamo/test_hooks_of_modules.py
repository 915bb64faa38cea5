"""`lt.compile`: a module's hooks count as they are at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config

import lowtide as lt


def _doubled(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> Tensor:
    return result * 2 + 1


def _shifted(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] - 3,)


def _tripled(module: nn.Module, given: Any, got: Any) -> tuple[Tensor, ...]:
    return (given[0] * 3,)


_REGISTER: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(_doubled),
    "forward_pre": lambda m: m.register_forward_pre_hook(_shifted),
    "backward": lambda m: m.register_full_backward_hook(_tripled),
}


def _run(fn: Any, model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    y = fn(x)
    y.square().sum().backward()
    return [y, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", _REGISTER)
@pytest.mark.parametrize("path", ["0", "1.0"])
def test_hooks_that_come_and_go(kind: str, path: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
    compiled = lt.compile(model)
    plain = _run(compiled, model)
    handle = _REGISTER[kind](model.get_submodule(path))
    hooked = _run(compiled, model)
    torch.testing.assert_close(hooked, _run(model, model))
    assert not all(map(torch.equal, hooked, plain))
    handle.remove()
    torch.testing.assert_close(_run(compiled, model), plain)


def test_other_backends_keep_the_default() -> None:
    torch._dynamo.reset()
    before = config.skip_nnmodule_hook_guards
    model = nn.Linear(4, 4)
    lt.compile(model)(torch.randn(2, 4))
    assert config.skip_nnmodule_hook_guards == before
