"""At the sizes of real programs, kernels have many programs, of which each holds little."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime.block_kernels import BlockKernel, Form

MOST_POINTS = 1 << 14  # of a block that a program holds
LEAST_PROGRAMS = 30  # of kernels that sweep over much
MUCH = 1 << 18  # elements


def mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(x @ w.t() + b)


def cell(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        a, b = (x[t] @ w + h @ u).chunk(2, 1)
        h = torch.sigmoid(a) * torch.tanh(b)
    return h


def column_sums(x: Tensor) -> Tensor:
    return x.sum(0)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[1],), w, b)


def channels(x: Tensor) -> Tensor:
    mean = x.mean((0, 2), keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean((0, 2), keepdim=True) + 1e-5)


def groups(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 32, w, b)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.t(), 1) @ v


CASES: list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    (mlp, ((4096, 512), (2048, 512), (2048,))),
    (cell, ((40, 64, 512), (512, 1024), (512, 1024), (64, 512))),
    (column_sums, ((1_000_000, 3),)),
    (column_sums, ((100_000, 100),)),
    (softmax, ((128, 20_000),)),
    (norm, ((4096, 2048), (2048,), (2048,))),
    (channels, ((32, 3, 20_000),)),
    (groups, ((16, 256, 1000), (256,), (256,))),
    (attention, ((4096, 512), (4096, 512), (4096, 512))),
]


def points(text: str, widths: dict[str, int]) -> int:
    """The largest block that a kernel begins with."""
    shapes = [re.findall(r"\w+", s) for s in re.findall(r"tl\.full\(\(([^)]*)\)", text)]
    return max(math.prod(widths.get(n) or int(n) for n in s) for s in [*shapes, ["1"]])


@pytest.mark.parametrize(("fn", "sizes"), CASES)
def test_tasks(
    fn: Callable[..., Any],
    sizes: tuple[tuple[int, ...], ...],
    made: list[BlockKernels],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: dict[BlockKernel, tuple[int, int, tuple[int, ...]]] = {}

    def call(self: BlockKernel, programs: int, reach: int, *given: object, **widths: int) -> None:
        read = max(x.numel() for x in given if isinstance(x, Tensor))
        launched[self] = programs, read, tuple(widths.values())

    def step(self: BlockKernel, programs: int, form: Form, handed: object) -> None:
        launched[self] = programs, MUCH, form.widths

    monkeypatch.setattr(BlockKernel, "__call__", call)
    monkeypatch.setattr(BlockKernel, "launch", step)
    given = [torch.empty(s, requires_grad=True) for s in sizes]
    found = lt.script(fn)(*given)
    found.backward(torch.empty_like(found))
    assert launched
    for executable in list(made):
        for text in executable.texts:
            programs, read, widths = launched[executable.bound()[text.name]]
            known = dict(zip(text.widths, widths, strict=True))
            assert points(text.text, known) <= MOST_POINTS, text.text
            is_long = "for b_" in text.text and read >= MUCH
            assert programs >= LEAST_PROGRAMS or not is_long, text.text
