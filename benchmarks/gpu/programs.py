"""What is measured on a GPU: functions, sizes, precisions.

program = GPU_PROGRAMS["chamfer"]
inputs = program.inputs(program.quick, torch.float32, torch.device("cpu"))
program.function(*inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.variants import PEERS
from lowtide.tools.programs import PROGRAMS, Program

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,  # products of float32 on tensor cores, for all variants
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_ALL = ("float32", "tf32", "bfloat16")

Tensors = Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class GpuProgram(Program):
    """A program with sizes for a GPU, and for a dry run where Triton's interpreter runs it.

    `peer`: what PyTorch has for the same thing, and its name. `judged`: what of a result is
    compared, given the inputs in float64. `settle`: the cotangents, changed so that no gradient
    hangs on a choice which rounding decides; given inputs in float64, cotangents and dtype.
    """

    differentiable: bool = True
    precisions: tuple[str, ...] = ("float32",)
    peer: tuple[str, Callable[..., object]] | None = None
    judged: Callable[[Tensors, list[Tensor]], list[Tensor]] | None = None
    settle: Callable[[Tensors, list[Tensor], torch.dtype], list[Tensor]] | None = None

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


def _of(name: str, **changes: Any) -> GpuProgram:
    """One of `lowtide.tools.programs`."""
    known: dict[str, Any] = {x.name: getattr(PROGRAMS[name], x.name) for x in fields(Program)}
    known |= {"peer": PEERS.get(name), **changes}
    return GpuProgram(**known)


_TABLE = (
    _of("boxes", full=(242_991, 500), quick=(70, 50)),
    _of("similarity", full=(256, 2_000), quick=(40, 50), differentiable=False),
    _of("chamfer", full=(20_000, 20_000), quick=(70, 90), settle=_unambiguous),
    _of("gaussian", full=(20_000, 20_000, 64), quick=(70, 90, 40), precisions=_ALL),
    _of(
        "nearest_centre",
        full=(100_000, 512, 32),
        quick=(70, 40, 36),
        differentiable=False,
        judged=_distance_of_chosen,
    ),
    _of("attention", full=(16, 4_096, 64), quick=(2, 70, 40), precisions=(*_ALL, "float16")),
    _of(
        "linear_cross_entropy",
        full=(8_192, 1_024, 32_000),
        quick=(70, 40, 90),
        precisions=_ALL,
        peer=("F.linear", _last_layer),
    ),
    _of("layer_norm", full=(65_536, 1_024), quick=(70, 90), precisions=("float32", "bfloat16")),
    GpuProgram(
        name="lstm",
        title="LSTM by hand",
        function=lstm,
        make_inputs=_lstm_inputs,
        sizes=("T", "B", "D"),
        full=(100, 64, 128),
        quick=(5, 4, 36),
        eager_peak_bytes=lambda s: 2 * 4 * s[0] * s[1] * s[2],
        precisions=_ALL,
        peer=("nn.LSTM", _lstm_of_torch),
    ),
)

GPU_PROGRAMS: dict[str, GpuProgram] = {program.name: program for program in _TABLE}
