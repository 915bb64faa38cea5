"""lt.trace refuses modules with backward hooks, since a program would run without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt


def scaled(*args: Any) -> tuple[torch.Tensor]:
    return (args[-1][0] * 3,)


@pytest.mark.parametrize("part", ["", "1"])
@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_of_a_module(kind: str, part: str):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    getattr(net.get_submodule(part), kind)(scaled)
    x = torch.rand(3, 4)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(lt.CompileError, match="backward hook"):
            lt.trace(net, (x,))


def test_of_a_module_that_a_function_calls():
    net = nn.Linear(4, 4)
    net.register_full_backward_hook(scaled)

    def f(x: torch.Tensor):
        return torch.tanh(net(x))

    with pytest.raises(lt.CompileError, match="backward hook"):
        lt.trace(f, (torch.rand(3, 4),))


def test_a_removed_hook_is_none():
    net = nn.Linear(4, 4)
    net.register_full_backward_hook(scaled).remove()
    x = torch.rand(3, 4)
    torch.testing.assert_close(lt.trace(net, (x,))(x), net(x))
