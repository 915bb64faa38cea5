"""What is measured on a GPU: functions, sizes, precisions.

program = GPU_PROGRAMS["chamfer"]
inputs = program.inputs(program.small, torch.float32, torch.device("cpu"))
program.function(*inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.variants import PEERS
from lowtide import programs

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,  # products of float32 on tensor cores, for all variants
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_ALL = ("float32", "tf32", "bfloat16")

Tensors = Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class GpuProgram:
    """A function of tensors, and sizes for it: `full` for a GPU, `small` for a dry run.

    `peer`: what PyTorch has for the same thing, and its name. `judged`: what of a result is
    compared, given the inputs in float64. `settle`: the cotangents, changed so that no gradient
    hangs on a choice which rounding decides; given inputs in float64, cotangents and dtype.
    """

    name: str
    title: str
    function: Callable[..., object]
    make_inputs: Callable[..., tuple[Tensor, ...]]
    sizes: tuple[str, ...]
    full: tuple[int, ...]
    small: tuple[int, ...]
    differentiable: bool = True
    precisions: tuple[str, ...] = ("float32",)
    peer: tuple[str, Callable[..., object]] | None = None
    judged: Callable[[Tensors, list[Tensor]], list[Tensor]] | None = None
    settle: Callable[[Tensors, list[Tensor], torch.dtype], list[Tensor]] | None = None

    def describe(self, sizes: Sequence[int]) -> str:
        """`"N=20000, M=20000"`."""
        return ", ".join(f"{name}={size}" for name, size in zip(self.sizes, sizes, strict=True))

    def inputs(
        self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, ...]:
        """The same ones each time; integers stay integers."""
        made = self.make_inputs(*sizes)
        return tuple(x.to(device, dtype if x.is_floating_point() else x.dtype) for x in made)


def lstm(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Long short-term memory by hand; x: [T, B, D], w: [D, 4 H], u: [H, 4 H] → [T, B, H]."""
    outputs: list[Tensor] = []
    for t in range(x.shape[0]):
        i, f, g, o = (x[t] @ w + h @ u + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def _lstm_of_torch(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """The same by the function of torch.nn.LSTM, cuDNN's on a GPU."""
    weights = [w.t().contiguous(), u.t().contiguous(), b, torch.zeros_like(b)]
    run: Any = torch.lstm
    found: Tensor = run(x, (h[None], c[None]), weights, True, 1, 0.0, True, False, False)[0]
    return found


def _last_layer(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), target)


def _lstm_inputs(t: int, b: int, d: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    weights = some(d, 4 * d) * 0.1, some(d, 4 * d) * 0.1, some(4 * d) * 0.1
    return some(t, b, d), *weights, torch.zeros(b, d), torch.zeros(b, d)


def _distance_of_chosen(inputs: Tensors, results: list[Tensor]) -> list[Tensor]:
    """Which of two equally near centres is chosen is rounding's business; its distance is not."""
    x, centres = inputs
    return [((x - centres[index]) ** 2).sum(-1) for index in results]


def _unambiguous(inputs: Tensors, cotangents: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """No gradient where the two nearest points are as far as the rounding of distances allows."""
    a, b = inputs
    d = ((a[:, None, 0] - b[None, :, 0]) ** 2).add_((a[:, None, 1] - b[None, :, 1]) ** 2)
    d.add_((a[:, None, 2] - b[None, :, 2]) ** 2)
    settled: list[Tensor] = []
    for dim, cotangent in zip((1, 0), cotangents, strict=True):
        best, second = d.topk(2, dim, largest=False).values.unbind(dim)
        is_clear = second - best > 8 * torch.finfo(dtype).eps * second
        settled.append(cotangent * is_clear.to(cotangent.dtype))
    return settled


def _of(name: str) -> tuple[str, Callable[..., object]]:
    return PEERS[name]


_TABLE = (
    GpuProgram(
        name="intersection",
        title="all-pairs box intersection",
        function=programs.boxes_intersection,
        make_inputs=programs.PROGRAMS["boxes"].make_inputs,
        sizes=("N", "M"),
        full=(242_991, 500),
        small=(70, 50),
    ),
    GpuProgram(
        name="similarity",
        title="similarity of dimensions",
        function=programs.similarity,
        make_inputs=programs.PROGRAMS["similarity"].make_inputs,
        sizes=("S", "D"),
        full=(256, 2_000),
        small=(40, 50),
        differentiable=False,
    ),
    GpuProgram(
        name="chamfer",
        title="chamfer distance",
        function=programs.chamfer,
        make_inputs=programs.PROGRAMS["chamfer"].make_inputs,
        sizes=("N", "M"),
        full=(20_000, 20_000),
        small=(70, 90),
        settle=_unambiguous,
    ),
    GpuProgram(
        name="kernel_sum",
        title="exp(-d²) @ b",
        function=programs.gaussian,
        make_inputs=programs.PROGRAMS["gaussian"].make_inputs,
        sizes=("N", "M", "C"),
        full=(20_000, 20_000, 64),
        small=(70, 90, 40),
        precisions=_ALL,
        peer=_of("gaussian"),
    ),
    GpuProgram(
        name="nearest_centre",
        title="nearest centre",
        function=programs.nearest_centre,
        make_inputs=programs.PROGRAMS["nearest_centre"].make_inputs,
        sizes=("N", "K", "D"),
        full=(100_000, 512, 32),
        small=(70, 40, 36),
        differentiable=False,
        judged=_distance_of_chosen,
    ),
    GpuProgram(
        name="attention",
        title="softmax attention",
        function=programs.attention,
        make_inputs=programs.PROGRAMS["attention"].make_inputs,
        sizes=("H", "T", "D"),
        full=(16, 4_096, 64),
        small=(2, 70, 40),
        precisions=(*_ALL, "float16"),
        peer=_of("attention"),
    ),
    GpuProgram(
        name="linear_cross_entropy",
        title="linear + cross entropy",
        function=programs.linear_cross_entropy,
        make_inputs=programs.PROGRAMS["linear_cross_entropy"].make_inputs,
        sizes=("N", "D", "V"),
        full=(8_192, 1_024, 32_000),
        small=(70, 40, 90),
        precisions=_ALL,
        peer=("F.linear", _last_layer),
    ),
    GpuProgram(
        name="layer_norm",
        title="layer norm by hand",
        function=programs.layer_norm,
        make_inputs=programs.PROGRAMS["layer_norm"].make_inputs,
        sizes=("N", "D"),
        full=(65_536, 1_024),
        small=(70, 90),
        precisions=("float32", "bfloat16"),
        peer=_of("layer_norm"),
    ),
    GpuProgram(
        name="lstm",
        title="LSTM by hand",
        function=lstm,
        make_inputs=_lstm_inputs,
        sizes=("T", "B", "D"),
        full=(100, 64, 128),
        small=(5, 4, 36),
        precisions=_ALL,
        peer=("nn.LSTM", _lstm_of_torch),
    ),
)

GPU_PROGRAMS: dict[str, GpuProgram] = {program.name: program for program in _TABLE}
