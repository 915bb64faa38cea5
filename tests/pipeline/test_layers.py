"""Equal layers of a model: regions end between them, and they are planned and compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.execute.block_plan import _liveness  # pyright: ignore[reportPrivateUsage]
from lowtide.ir.parser import parse_function
from lowtide.runtime import cache
from lowtide.specialise.layers import layer_starts


class Block(nn.Module):
    """A residual layer of some thirteen definitions, with gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(40) for _ in range(layers)], nn.Linear(40, 3))


def kernels(layers: int, monkeypatch: pytest.MonkeyPatch, is_training: bool = True) -> set[str]:
    """The C of all kernels of a step."""
    found: set[str] = set()
    load = cache.load_libraries

    def loading(sources: Sequence[str], name: str) -> Any:
        found.update(sources)
        return load(sources, name)

    monkeypatch.setattr(cache, "load_libraries", loading)
    made = model(layers)
    scripted, x = lt.script(made), torch.randn(50, 40)
    with torch.set_grad_enabled(is_training):
        result = scripted(x)
        if is_training:
            result.sum().backward()
            got = [p.grad for p in made.parameters()]
            made.zero_grad()
            made(x).sum().backward()
            torch.testing.assert_close(got, [p.grad for p in made.parameters()])
        torch.testing.assert_close(result, made(x))
    return found


def test_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels(9, monkeypatch) == kernels(14, monkeypatch)


def test_a_residual_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer gives is not computed again from all that the layers before it gave."""
    few, many = (kernels(n, monkeypatch, is_training=False) for n in (4, 8))
    assert few == many


def test_where_layers_begin() -> None:
    body = "\n".join(
        f"  %n{k}: Tensor = torch.exp(%x{k})\n"
        f"  %a{k}: Tensor = torch.tanh(%n{k})\n"
        f"  %x{k + 1}: Tensor = torch.add(%x{k}, %a{k}, %one)"
        for k in range(4)
    )
    text = (
        "def f(%x: Tensor) -> Tensor:\n  %one: int = const {value=1}\n"
        f"  %x0: Tensor = torch.sin(%x)\n{body}\n  %y: Tensor = torch.cos(%x4)\n  return(%y)\n"
    )
    block = parse_function(text).block
    starts = layer_starts(block, _liveness(block))
    assert [block.ops[k].results[0].name for k in sorted(starts)] == ["n0", "n1", "n2", "n3", "y"]
