"""Programs whose images are turned to channels last: results, gradients, strides are eager's."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format

import lowtide as lt
from lowtide.budget.search import path
from lowtide.execute.driver import Driver
from lowtide.execute.section import SECTION
from lowtide.memory.layouts import is_channels_last
from tests.memory.calls import tensors

LAST = torch.channels_last
TOLERANCE = 2e-5  # of the largest: sums of some hundred products in float32, in another order


class Layers(nn.Module):
    """Convolutions, norms, pools, a skip connection, a transposed one."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 24, 3, padding=1, stride=2)
        self.third = nn.ConvTranspose2d(24, 16, 2, 2)
        self.last = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Any:
        a = F.relu(self.norm(self.first(x)))
        b = F.max_pool2d(F.gelu(self.second(a)), 2)
        b = self.third(F.interpolate(b, scale_factor=2.0))
        return self.last(torch.cat([a, b], 1))


class Grey(Layers):
    """The format of a single channel says nothing: its first convolution lies as before."""

    def __init__(self) -> None:
        super().__init__(1)


class Pooled(Layers):
    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y.mean((2, 3)), F.adaptive_avg_pool2d(y, 2).flatten(1), y.permute(0, 2, 3, 1) * 2


class Attended(Layers):
    """Reads the rows of images: a view of contiguous ones, and `reshape` takes others too."""

    def forward(self, x: Tensor) -> Any:
        y = F.max_pool2d(self.second(F.relu(self.first(x))), 2)
        rows = y.reshape(y.shape[0], y.shape[1], -1)
        rows = torch.softmax(rows.mT @ rows, -1) @ rows.mT
        return rows.mT.reshape(y.shape)


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.second = nn.Conv2d(16, 16, 1)
        self.norm = nn.BatchNorm2d(16).eval()

    def forward(self, x: Tensor) -> Any:
        return F.hardtanh(self.norm(self.second(self.first(x)))) + x


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 16, 3, padding=1)
        self.second = nn.Conv3d(16, 16, 3, padding=1)
        self.third = nn.Conv3d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.third(self.second(torch.tanh(self.first(x)))).square()


class Viewed(Layers):
    """Images that are not contiguous have no such view."""

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.first(x))
        return torch.cumsum(y.view(y.shape[0], -1, 4), 1)


with torch.random.fork_rng():
    torch.manual_seed(0)  # two values of a pool's window may differ by less than rounding does
    SHAPES = [
        *((kind(), (8, 3, 32, 32)) for kind in (Layers, Pooled, Attended)),
        (Grey(), (8, 1, 32, 32)),
        (Depthwise(), (8, 16, 32, 32)),
        (Volume(), (8, 2, 8, 16, 16)),
        (Viewed(), (8, 3, 32, 32)),
    ]
    TURNED = [(model, torch.randn(shape)) for model, shape in SHAPES] + [
        (Layers(), torch.randn(8, 32, 3, 32).transpose(1, 2)),  # from its second layer on
    ]
    ALONE = [
        (Layers().to(memory_format=LAST), torch.randn(8, 3, 32, 32).contiguous(memory_format=LAST)),
        (Layers().double(), torch.randn(8, 3, 32, 32).double()),
    ]


def plans(model: Any, x: Tensor) -> list[tuple[Driver, list[Any], bool]]:
    """Planned drivers with chunks, their arguments, and whether images are turned in them."""
    target: Any = lt.script(model).forward
    driver, values = target.resolve(target.bind((x,), {}))
    found: list[Any] = []
    for plan in path(Driver(driver.function), values):
        function = plan.driver.function
        sections = [
            op for op in function.block.ops if op.name == SECTION and op.attrs["chunks"] > 1
        ]
        if sections and len(found) < 6:
            formats = [op.attrs["value"] for op in function.walk() if op.name == "const"]
            is_turned = any(f in (LAST, torch.channels_last_3d) for f in formats)
            found.append((plan.driver, values, is_turned))
    assert found
    return found


def step(run: Any, model: Any, x: Tensor) -> list[Tensor]:
    """Results, and gradients of the input and of the parameters."""
    x.grad = None
    model.zero_grad()
    results = tensors(run())
    sum(y.square().mean() for y in results).backward()
    gradients = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return [y.detach() for y in results] + gradients


def _steps(x: Tensor) -> list[int]:
    """Strides, but of what has one element only."""
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def agree(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert _steps(ours) == _steps(theirs)
        assert (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max()


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize(
    ("model", "x", "grad"),
    [
        pytest.param(*turned, grad, marks=[pytest.mark.long] if grad and index else [])
        for index, turned in enumerate(TURNED)
        for grad in (False, True)
    ],
    ids=lambda v: str(v) if isinstance(v, bool) else type(v).__name__,
)
def test_images_are_turned(model: nn.Module, x: Tensor, grad: bool) -> None:
    x = x.detach()
    if not grad:
        with torch.no_grad():
            wanted = tensors(model(x))
            for driver, values, is_turned in plans(model, x):
                assert is_turned
                agree(tensors(driver(list(values))), wanted)
        return
    x.requires_grad_()
    wanted = [y.clone() for y in step(lambda: model(x), model, x)]
    for driver, values, is_turned in plans(model, x):
        assert is_turned
        agree(step(lambda: driver(list(values)), model, x), wanted)  # noqa: B023


@pytest.mark.parametrize(
    ("model", "x"), [ALONE[0], *(pytest.param(*a, marks=pytest.mark.long) for a in ALONE[1:])]
)
def test_others_are_left_as_they_are(model: nn.Module, x: Tensor) -> None:
    x = x.detach().requires_grad_()
    wanted = [y.clone() for y in step(lambda: model(x), model, x)]
    for driver, values, is_turned in plans(model, x):
        assert not is_turned
        agree(step(lambda: driver(list(values)), model, x), wanted)  # noqa: B023


@pytest.mark.parametrize("dims", [4, 5])
def test_which_strides_are_those_of_channels_last(dims: int) -> None:
    """As PyTorch decides it, for strides in orders that occur."""
    draw = random.Random(dims)
    seen: set[bool] = set()
    for _ in range(2000):
        sizes = [draw.choice((0, 1, 1, 2, 3)) for _ in range(dims)]
        strides, step = [0] * dims, draw.choice((1, 1, 2))
        for d in draw.choice(([*range(dims)][::-1], [1, *range(dims - 1, 1, -1), 0])):
            strides[d] = step
            step *= draw.choice((sizes[d], max(sizes[d], 1), 2 * sizes[d]))
        x = torch.empty_strided(sizes, strides, device="meta")
        wanted = suggest_memory_format(x) is not torch.contiguous_format
        assert is_channels_last(x) == wanted, (sizes, strides)
        seen.add(wanted)
    assert seen == {True, False}


def test_convolutions_then_take_no_copies() -> None:
    """One image at a time: what oneDNN copies of it, in and out, is gone."""
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    x = torch.randn(4, 16, 64, 64)
    image = 16 * 64 * 64 * 4
    with torch.no_grad():
        target: Any = lt.script(copy.deepcopy(model)).forward
        driver, values = target.resolve(target.bind((x,), {}))
        by_image = [
            plan.peak_bytes
            for plan in path(Driver(driver.function), values)
            if any(op.attrs.get("chunks") == 4 for op in plan.driver.function.block.ops)
        ]
    assert min(by_image) < (4 + 3 + 1.5) * image  # the result; of one image three tensors
