"""Results lie in a rehearsal as they do on the CPU: the order of dims decides what the next op
copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.memory import layouts
from lowtide.memory.layouts import LAYOUTS
from lowtide.memory.ledger import Ledger
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
