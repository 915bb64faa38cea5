"""Results lie in a rehearsal as they do on the CPU: the order of dims decides what the next op
copies."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.execute.output_orders import MetaMode
from lowtide.memory import layouts
from lowtide.memory.layouts import LAYOUTS
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_device import LikeTheCpu
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.texpr.orders import inverse
from tests.memory.contract import assert_within_contract, requested_bytes

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "reflect": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="circular"),
    "zeros around": lambda x: F.pad(x, (1, 1) * (x.dim() - 2)),
    "roll": lambda x: x.roll(1, 2),
    "roll, nothing moves": lambda x: x.roll(2 * x.shape[2], 2),
    "roll of all": lambda x: x.roll(1),
    "roll of a part": lambda x: x[:, ::2].roll(1, 0),
    "roll, turned": lambda x: x.transpose(2, 3).roll((1, 2), (2, 3)),
    "logsigmoid": F.logsigmoid,
    "logsigmoid, turned": lambda x: F.logsigmoid(x.transpose(0, 1)),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "glu": lambda x: F.glu(x, 1),
    "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
    "average": lambda x: F.avg_pool2d(x, 2) if x.dim() == 4 else F.avg_pool3d(x, 2),
    "largest": lambda x: F.max_pool2d(x, 2) if x.dim() == 4 else F.max_pool3d(x, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "softmax": lambda x: F.softmax(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "flip": lambda x: x.flip(2),
    "clone": lambda x: x.clone(),
}  # fmt: skip
ONLY_FLAT = frozenset({"pixel_shuffle", "pixel_unshuffle", "unpool"})
SHAPES = [(2, 8, 12, 10), (2, 8, 6, 12, 10)]
CASES = [(n, s) for n in OPS for s in SHAPES if len(s) == 4 or n not in ONLY_FLAT]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"), CASES, ids=lambda v: v if isinstance(v, str) else len(v)
)
def test_forward_and_back(name: str, shape: tuple[int, ...], is_last: bool) -> None:
    op = OPS[name]
    order = LAYOUTS[len(shape)] if is_last else torch.contiguous_format
    x = torch.randn(shape).to(memory_format=order).requires_grad_()
    y = op(x)
    (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
    meta = torch.empty_like(x, device="meta").requires_grad_()
    with Ledger():
        found = op(meta)
        (found_g,) = torch.autograd.grad(found, meta, torch.ones_like(found))
    assert (found.shape, found.stride()) == (y.shape, y.stride())
    assert (found_g.shape, found_g.stride()) == (g.shape, g.stride())


def test_images_that_stay_as_they_lie_are_not_copied_by_convolutions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.PixelShuffle(2), nn.Conv2d(8, 4, 3))
    compiled = lt.script(model)
    x = torch.randn(8, 8, 130, 120).to(memory_format=torch.channels_last)
    with torch.no_grad():
        compiled(x)
        predicted = compiled.memory(x).peak_bytes
        asked = requested_bytes(lambda: compiled(x))
    assert_within_contract(asked, predicted, library_ops=True)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    assert layouts.with_eager_layout(func, args, func(*args)).stride() == want.stride()


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relu": lambda x: torch.relu(x),
    "times a number": lambda x: x * 2,
    "power": lambda x: x**2,
    "compared with a number": lambda x: x > 0.5,
    "tanh": lambda x: torch.tanh(x),
    "silu": lambda x: F.silu(x),
    "hardswish": lambda x: F.hardswish(x),
    "sum": lambda x, y: x + y,
    "quotient": lambda x, y: x // y,
    "larger": lambda x, y: torch.maximum(x, y),
    "chosen": lambda x, y, z: torch.where(x > 0.5, y, z),
    "between": lambda x, y, z: x.lerp(y, z),
    "squares": lambda x: F.mse_loss(x, x, reduction="none"),
    "huber": lambda x: F.huber_loss(x, x, reduction="none"),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, x, reduction="none"),
    "masked": lambda x: x.masked_fill(x > 0.5, 0.0),
    "like": lambda x: (torch.empty_like(x), torch.zeros_like(x), torch.full_like(x, 2.0)),
    "sorted": lambda x: x.sort(0),
    "flipped": lambda x: x.flip(0),
    "gated": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "log_softmax": lambda x: x.log_softmax(1),
    "normed": lambda x: F.layer_norm(x, x.shape[-1:]),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "lower": lambda x: torch.tril(x),
    "indexed": lambda x: x[:, torch.zeros(2, dtype=torch.long, device=x.device)],
    "one-hot": lambda x: F.one_hot((x > 0.5).long(), 3),
    "group norm": lambda x: F.group_norm(x, 1),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
}
IMAGES: dict[str, Callable[[Tensor], Any]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "one pixel": lambda x: F.interpolate(x, size=(1, 1)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "averaged": lambda x: F.adaptive_avg_pool2d(x, 1).relu(),
    "convolved": lambda x: F.conv2d(x, torch.ones(1, x.shape[1], 1, 1, device=x.device)).relu(),
    "rows": lambda x: F.conv1d(x[:, :, 0], torch.ones(2, x.shape[1], 1, device=x.device)),
    "columns": lambda x: F.unfold(x, 1),
}


def permuted(draw: random.Random, sizes: list[int]) -> Tensor:
    order = draw.sample(range(len(sizes)), len(sizes))
    if len(sizes) == 4 and draw.random() < 0.4:
        order = [0, 2, 3, 1]
    return (torch.rand([sizes[d] for d in order]) + 0.1).permute(inverse(tuple(order)))


def strides(made: Any) -> list[tuple[int, ...]]:
    return [x.stride() for x in ([made] if isinstance(made, Tensor) else made)]


@pytest.mark.parametrize("name", [*ELEMENTWISE, *IMAGES])
def test_dims_of_size_1(name: str) -> None:
    """Their strides, too, are the CPU's: of an image of one channel, of one pixel."""
    op = (ELEMENTWISE | IMAGES)[name]
    count = len(inspect.signature(op).parameters)
    draw = random.Random(0)
    for _ in range(25):
        is_norm = name.endswith(" norm")
        rank = 4 if name in IMAGES or is_norm else draw.choice([2, 3, 4, 5])
        sizes = [2 if d == 0 and is_norm else draw.choice([1, 1, 2, 3]) for d in range(rank)]
        if is_norm and sizes[1:] == [1, 1, 1]:  # PyTorch refuses it
            continue
        operands = [sizes, *([draw.choice([n, n, 1]) for n in sizes] for _ in range(count - 1))]
        rows = [permuted(draw, n) for n in operands]
        metas = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in rows
        ]
        with outside_dispatch_modes(), LikeTheCpu(), MetaMode(), torch.no_grad():
            found = op(*metas)
        assert strides(found) == strides(op(*rows)), [(x.shape, x.stride()) for x in rows]
