"""Convolutions: what a step asks for, and how results lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt
from lowtide.memory import convolution
from tests.memory.contract import asked_bytes, assert_within_contract


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


PARTS: list[Any] = [
    (3, 8, 3, 2), (8, 8, 1, 1), (24, 24, 4, 4),
    *(pytest.param(*shape, *kernel, marks=pytest.mark.long)
      for shape in ((3, 8), (5, 8), (8, 8), (24, 24))
      for kernel in ((1, 1), (1, 2), (3, 2), (4, 4))
      if (*shape, *kernel) not in ((3, 8, 3, 2), (8, 8, 1, 1), (24, 24, 4, 4))),
]  # fmt: skip


@pytest.mark.parametrize("wants_input", [True, False])
@pytest.mark.parametrize(("channels", "made", "kernel", "stride"), PARTS)
def test_at_points_and_in_steps(
    channels: int, made: int, kernel: int, stride: int, wants_input: bool
) -> None:
    """oneDNN reads them in other layouts than it reads others."""
    layer = nn.Conv2d(channels, made, kernel, stride, padding=kernel // 3)
    _agrees(layer, torch.rand(4, channels, 112, 112, requires_grad=wants_input))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(256, 256, 3, padding=1), (8, 256, 8, 8)),
        (nn.Conv2d(32, 24, 7, padding=3, groups=4), (8, 32, 64, 64)),
        (nn.Conv2d(64, 128, 7, padding=3, groups=64), (16, 64, 28, 28)),
        (nn.Conv3d(4, 16, 5, padding=2, dilation=1), (2, 4, 8, 12, 12)),
        (nn.ConvTranspose2d(12, 20, 2, 2), (8, 12, 64, 64)),
        (nn.ConvTranspose1d(12, 1, 3, padding=1), (8, 12, 8000)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "-".join(map(str, v)),
)
@pytest.mark.parametrize("is_last", [False, True])
def test_of_other_kinds(layer: nn.Module, shape: tuple[int, ...], is_last: bool) -> None:
    """Deep ones, by groups, of volumes, transposed ones."""
    x = torch.rand(shape)
    if is_last:
        if x.dim() == 3:
            pytest.skip("lines have no such format")
        layout: Any = {4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
        layer, x = layer.to(memory_format=layout), x.to(memory_format=layout)
    _agrees(layer, x.requires_grad_())


def _agrees(layer: nn.Module, x: torch.Tensor) -> None:
    compiled: Any = lt.script(layer)

    def step() -> None:
        x.grad = None
        layer.zero_grad()
        compiled(x).sum().backward()

    step()
    x.grad = None
    layer.zero_grad()
    asked = asked_bytes(step)
    x.grad = None
    layer.zero_grad()
    plan = compiled.memory(x)
    assert_within_contract(asked, plan.peak_bytes, library_ops=True, detail=plan)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_volumes_lie_as_pytorchs(kernel: int, count: int) -> None:
    """PyTorch's own convolutions of volumes, of one thread, give contiguous ones."""
    torch.set_num_threads(count)
    x = torch.rand(2, 4, 6, 6, 6).to(memory_format=torch.channels_last_3d)
    w = torch.rand(3, 4, *[kernel] * 3)
    func = torch.ops.aten.convolution.default
    options = (None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    want = func(x, w, *options)
    metas = [torch.empty_like(v, device="meta") for v in (x, w)]
    args = (*metas, *options)
    assert convolution.as_it_lies(func, args, func(*args)).stride() == want.stride()


@pytest.mark.parametrize("shape", [(4, 0, 20, 20), (0, 8, 20, 20)])
@pytest.mark.parametrize("is_last", [False, True])
def test_without_elements(shape: tuple[int, ...], is_last: bool) -> None:
    x = torch.empty(shape, device="meta")
    w = torch.empty(8, shape[1], 3, 3, device="meta")
    w = w.to(memory_format=torch.channels_last) if is_last else w
    options = [[2, 2], [2, 2], [2, 2], False, [0, 0], 1]
    result = torch.ops.aten.convolution.default(x, w, None, *options)
    args = [result, x, w, None, *options, [True, True, False]]
    assert convolution.backward_scratch(args, None) >= 0
