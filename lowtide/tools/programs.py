"""The example programs: plain PyTorch functions whose temporaries are larger than their results.

The demo, the benchmarks and the tests use them, so that the same code is shown, timed and checked.
A program has a function that makes seeded inputs; two tuples of sizes, `full` as in the tables and
`quick` for well under a second in eager PyTorch; and a formula for the bytes that eager PyTorch
needs beyond the inputs, so that the eager run can be skipped on a small machine.

    boxes = PROGRAMS["boxes"]
    args = boxes.make_inputs(*boxes.quick)   # boxes1: [2430, 4], boxes2: [500, 4]
    area = boxes.function(*args)             # [2430, 500]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Program:
    """One example. `sizes`: the names of the arguments of `make_inputs`; `full`, `quick`: their
    values. `eager_peak_bytes(sizes)`: what eager PyTorch allocates at its peak."""

    name: str
    title: str
    function: Callable[..., object]
    make_inputs: Callable[..., tuple[Tensor, ...]]
    sizes: tuple[str, ...]
    full: tuple[int, ...]
    quick: tuple[int, ...]
    eager_peak_bytes: Callable[[tuple[int, ...]], int]

    def describe(self, sizes: tuple[int, ...]) -> str:
        """Return a text such as `"N=2430, M=500"`."""
        return ", ".join(f"{name}={size}" for name, size in zip(self.sizes, sizes, strict=True))


# -- the functions, as their users write them ------------------------------------------------------


def boxes_intersection(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """The intersection area of all pairs of boxes; boxes1: [N, 4], boxes2: [M, 4] → [N, M]."""
    x_min1, y_min1, x_max1, y_max1 = boxes1.chunk(4, dim=1)
    x_min2, y_min2, x_max2, y_max2 = boxes2.chunk(4, dim=1)
    all_pairs_min_ymax = torch.min(y_max1, y_max2.t())
    all_pairs_max_ymin = torch.max(y_min1, y_min2.t())
    intersect_heights = torch.clamp(all_pairs_min_ymax - all_pairs_max_ymin, min=0)
    all_pairs_min_xmax = torch.min(x_max1, x_max2.t())
    all_pairs_max_xmin = torch.max(x_min1, x_min2.t())
    intersect_widths = torch.clamp(all_pairs_min_xmax - all_pairs_max_xmin, min=0)
    return intersect_heights * intersect_widths


def similarity(x: Tensor, y: Tensor) -> Tensor:
    """In how many samples each two dimensions differ by less than 1; x, y: [S, D] → [D, D]
    int64."""
    xy = x[:, :, None] - y[:, None, :]
    return xy.abs().lt(1).sum(dim=0)


def chamfer(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest point of the other cloud; a: [N, 3], b: [M, 3] → [N], [M]."""
    d = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    return d.min(1).values, d.min(0).values


def gaussian(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """A Gaussian kernel matrix times b; x: [N, 3], y: [M, 3], b: [M, C] → [N, C]."""
    d = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return torch.exp(-d) @ b


def nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    """The index of the nearest centre of each point; x: [N, D], centres: [K, D] → [N] int64."""
    d = ((x[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
    return d.argmin(1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention; q, k, v: [H, T, D] → [H, T, D]."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The loss of a last layer; x: [N, D], weight: [V, D], target: [N] int64 → scalar."""
    logits = x @ weight.t()
    return F.cross_entropy(logits, target)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm by hand, over the last axis; x: [N, D], weight, bias: [D] → [N, D]."""
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5) * weight + bias


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A plain matrix product, without temporaries; a: [N, K], b: [K, M] → [N, M]."""
    return a @ b


# -- their inputs ----------------------------------------------------------------------------------


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(seed: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = _generator(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def _boxes(n: int, m: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Boxes (x_min, y_min, x_max, y_max) with sides of 1 to 128, in a 1024 × 1024 image."""
    generator = _generator(seed)

    def some(count: int) -> Tensor:
        corner = torch.rand(count, 2, generator=generator) * 896
        side = 1 + torch.rand(count, 2, generator=generator) * 127
        return torch.cat([corner, corner + side], dim=1)

    return some(n), some(m)


def _similarity_inputs(s: int, d: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (s, d), (s, d))


def _clouds(n: int, m: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (n, 3), (m, 3))


def _gaussian_inputs(n: int, m: int, c: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (n, 3), (m, 3), (m, c))


def _centres(n: int, k: int, d: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (n, d), (k, d))


def _heads(h: int, t: int, d: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (h, t, d), (h, t, d), (h, t, d))


def _last_layer(n: int, d: int, v: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = _generator(seed)
    x = torch.randn(n, d, generator=generator)
    weight = torch.randn(v, d, generator=generator) / math.sqrt(d)
    return x, weight, torch.randint(v, (n,), generator=generator)


def _rows(n: int, d: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (n, d), (d,), (d,))


def _matrices(n: int, k: int, m: int, seed: int = 0) -> tuple[Tensor, ...]:
    return _normal(seed, (n, k), (k, m))


# -- the table -------------------------------------------------------------------------------------

_ALL = (
    Program(
        name="boxes",
        title="all-pairs box intersection",
        function=boxes_intersection,
        make_inputs=_boxes,
        sizes=("N", "M"),
        full=(242_991, 500),
        quick=(2_430, 500),
        eager_peak_bytes=lambda s: 7 * 4 * s[0] * s[1],
    ),
    Program(
        name="similarity",
        title="similarity of dimensions",
        function=similarity,
        make_inputs=_similarity_inputs,
        sizes=("S", "D"),
        full=(256, 2_000),
        quick=(64, 400),
        # float32 difference, bool comparison, and the int64 copy of it that sum makes
        eager_peak_bytes=lambda s: (4 + 1 + 8) * s[0] * s[1] ** 2 + 8 * s[1] ** 2,
    ),
    Program(
        name="chamfer",
        title="chamfer distance",
        function=chamfer,
        make_inputs=_clouds,
        sizes=("N", "M"),
        full=(10_000, 10_000),
        quick=(1_000, 1_000),
        eager_peak_bytes=lambda s: 2 * 4 * 3 * s[0] * s[1],
    ),
    Program(
        name="gaussian",
        title="exp(-d²) @ b",
        function=gaussian,
        make_inputs=_gaussian_inputs,
        sizes=("N", "M", "C"),
        full=(10_000, 10_000, 8),
        quick=(1_000, 1_000, 8),
        eager_peak_bytes=lambda s: 2 * 4 * 3 * s[0] * s[1] + 4 * s[0] * s[2],
    ),
    Program(
        name="nearest_centre",
        title="nearest centre",
        function=nearest_centre,
        make_inputs=_centres,
        sizes=("N", "K", "D"),
        full=(20_000, 256, 32),
        quick=(2_000, 64, 32),
        eager_peak_bytes=lambda s: 2 * 4 * s[0] * s[1] * s[2],
    ),
    Program(
        name="attention",
        title="softmax attention",
        function=attention,
        make_inputs=_heads,
        sizes=("H", "T", "D"),
        full=(8, 2_048, 64),
        quick=(2, 256, 64),
        eager_peak_bytes=lambda s: 2 * 4 * s[0] * s[1] ** 2 + 4 * s[0] * s[1] * s[2],
    ),
    Program(
        name="linear_cross_entropy",
        title="linear + cross entropy",
        function=linear_cross_entropy,
        make_inputs=_last_layer,
        sizes=("N", "D", "V"),
        full=(4_096, 256, 16_000),
        quick=(256, 64, 1_000),
        eager_peak_bytes=lambda s: 2 * 4 * s[0] * s[2],
    ),
    Program(
        name="layer_norm",
        title="layer norm by hand",
        function=layer_norm,
        make_inputs=_rows,
        sizes=("N", "D"),
        full=(16_384, 1_024),
        quick=(512, 256),
        eager_peak_bytes=lambda s: 3 * 4 * s[0] * s[1],
    ),
    Program(
        name="matmul",
        title="matmul",
        function=matmul,
        make_inputs=_matrices,
        sizes=("N", "K", "M"),
        full=(1_024, 1_024, 1_024),
        quick=(128, 128, 128),
        eager_peak_bytes=lambda s: 4 * s[0] * s[2],
    ),
)

PROGRAMS: dict[str, Program] = {program.name: program for program in _ALL}
