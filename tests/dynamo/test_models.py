"""Models of torch.nn through `torch.compile(model, backend="lowtide")`.

No graph breaks, the results and gradients of eager, and no compilation for new sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide as lt
from lowtide.api import compile
from lowtide.diagnostics import faults
from lowtide.torch_private.graph_capture import register


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    register(compile.backend)
    torch.manual_seed(0)
    torch._dynamo.reset()
    with faults.strict():
        yield
    torch._dynamo.reset()


class Cells(nn.Module):
    """A loop over an LSTM's cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(12, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[1], 40)
        c = torch.zeros_like(h)
        states: list[torch.Tensor] = []
        for t in range(4):
            h, c = self.cell(x[t], (h, c))
            states.append(h)
        return torch.stack(states)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(36, 108), nn.Linear(36, 36)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(36, 50), nn.GELU(), nn.Linear(50, 3))


def cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 49, 3))


def groups() -> nn.Module:
    return nn.Sequential(nn.Linear(36, 40), nn.SiLU(), nn.GroupNorm(4, 40))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(36, 2, 48, dropout=0.0, batch_first=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "mlp": (mlp, [(40, 36), (52, 36)]),
    "cnn": (cnn, [(40, 3, 16, 16), (50, 3, 16, 16)]),
    "groups": (groups, [(44, 36), (52, 36)]),
    "attention": (Attention, [(38, 39, 36), (44, 45, 36)]),
    "encoder": (encoder, [(38, 39, 36), (44, 45, 36)]),
    "cells": (Cells, [(4, 44, 12), (4, 46, 12)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name: str) -> None:
    make, shapes = MODELS[name]
    model = make()
    compiled = torch.compile(copy.deepcopy(model), backend="lowtide", dynamic=True, fullgraph=True)
    for k, shape in enumerate(shapes):
        before = lt.cache_stats()
        found: list[list[torch.Tensor]] = []
        for m in (compiled, model):
            x = torch.linspace(-1, 1, torch.Size(shape).numel()).sin().view(shape)
            x.requires_grad_()
            m.zero_grad()
            y = m(x)
            (y * y.detach().cos()).sum().backward()
            found.append([y, *(p.grad for p in (x, *m.parameters()))])  # type: ignore[list-item]
        for got, want in zip(*found, strict=True):
            limit = 1e-4 * max(1.0, float(want.detach().abs().max()))
            torch.testing.assert_close(got, want, rtol=1e-3, atol=limit)
        done = lt.cache_stats() - before
        assert done.calls_eager == done.regions_eager == 0
        assert done.compiles == 0 or k == 0
