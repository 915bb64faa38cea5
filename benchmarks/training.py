"""Forward and backward, turn by turn: eager, the library's own layer, torch.compile, Lowtide.

    python -m benchmarks.training [name ...]    prints, writes benchmarks/results/…-training.json
    python -m benchmarks.training --compile     with torch.compile: minutes for the layers
    python -m benchmarks.training --device cuda     on the current GPU

In: handwritten layers with loops, and pair programs, each with gradients of all its inputs. Out:
median milliseconds of one forward and backward pass, first calls in seconds, peaks in
bytes. torch.compile runs with its defaults, `dynamic=False`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lowtide as lt
from benchmarks.files import write_results
from lowtide.memory.measure import measure_peak, time_alternating
from lowtide.tools import programs
from lowtide.tools.machine import this_machine


class Conv2d(nn.Module):
    """A convolution as people write it by hand: windows, then a loop over channels."""

    def __init__(self, channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.out_channels = out_channels
        self.weights = nn.Parameter(torch.randn(out_channels, channels, kernel * kernel) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[2] - self.kernel + 1
        height = x.shape[3] - self.kernel + 1
        windows = torch.nn.functional.unfold(x, (self.kernel, self.kernel))
        windows = windows.transpose(1, 2).contiguous()
        windows = windows.view((-1, x.shape[1], self.kernel * self.kernel)).transpose(0, 1)
        result = torch.zeros(x.shape[0] * self.out_channels, width, height, device=x.device)
        for channel in range(x.shape[1]):
            for k in range(self.out_channels):
                one = torch.matmul(windows[channel], self.weights[k][channel])
                one = one.view((-1, width, height))
                result[k * one.shape[0] : (k + 1) * one.shape[0]] += one
        return result.view((x.shape[0], self.out_channels, width, height))


class LSTM(nn.Module):
    """Long short-term memory, one step after another."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, 4 * hidden) * 0.1)
        self.u = nn.Parameter(torch.randn(hidden, 4 * hidden) * 0.1)
        self.b = nn.Parameter(torch.randn(4 * hidden) * 0.1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        outputs = []
        for t in range(x.shape[0]):
            i, f, g, o = (x[t] @ self.w + h @ self.u + self.b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs)


class GRU(nn.Module):
    """A gated recurrent unit, one step after another."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, 3 * hidden) * 0.1)
        self.u = nn.Parameter(torch.randn(hidden, 3 * hidden) * 0.1)
        self.b = nn.Parameter(torch.randn(3 * hidden) * 0.1)
        self.v = nn.Parameter(torch.randn(3 * hidden) * 0.1)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        outputs = []
        for t in range(x.shape[0]):
            r0, z0, n0 = (x[t] @ self.w + self.b).chunk(3, 1)
            r1, z1, n1 = (h @ self.u + self.v).chunk(3, 1)
            r, z = torch.sigmoid(r0 + r1), torch.sigmoid(z0 + z1)
            h = (1 - z) * torch.tanh(n0 + r * n1) + z * h
            outputs.append(h)
        return torch.stack(outputs)


def energy(x: Tensor) -> Tensor:
    """Each pair of points once, as physicists write it."""
    total = torch.zeros((), device=x.device)
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            total = total + 1 / (x[i] - x[j]).pow(2).sum().sqrt()
    return total


class Energy(nn.Module):
    """The same, of PyTorch's own distances."""

    def forward(self, x: Tensor) -> Tensor:
        return (1 / torch.pdist(x)).sum()


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to what came before, one query after another."""
    out = torch.zeros_like(q)
    for t in range(q.shape[0]):
        out[t] = torch.softmax(k[: t + 1] @ q[t], 0) @ v[: t + 1]
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """`inputs` that want gradients, `rest` that do not; `library` is called with `inputs[0]`."""

    make: Callable[[], Any]
    inputs: tuple[Tensor, ...]
    rest: tuple[Tensor, ...] = ()
    library: Callable[[], nn.Module] | None = None


def cases() -> dict[str, Case]:
    """The programs, at the sizes that the project promises something for."""
    torch.manual_seed(0)
    randn = torch.randn
    state = torch.zeros(64, 128)
    weight = randn(4000, 512) * 0.05
    return {
        "conv2d": Case(
            make=lambda: Conv2d(3, 16, 3),
            inputs=(randn(1, 3, 512, 512),),
            library=lambda: nn.Conv2d(3, 16, 3, bias=False),
        ),
        "lstm": Case(
            make=lambda: LSTM(128, 128),
            inputs=(randn(100, 64, 128),),
            rest=(state, state),
            library=lambda: nn.LSTM(128, 128),
        ),
        "gru": Case(
            make=lambda: GRU(128, 128),
            inputs=(randn(100, 64, 128),),
            rest=(state,),
            library=lambda: nn.GRU(128, 128),
        ),
        "chamfer": Case(make=lambda: programs.chamfer, inputs=(randn(10_000, 3), randn(10_000, 3))),
        "gaussian": Case(
            make=lambda: programs.gaussian,
            inputs=(randn(10_000, 3), randn(10_000, 3), randn(10_000, 8)),
        ),
        "attention": Case(
            make=lambda: programs.attention,
            inputs=(randn(8, 2048, 64), randn(8, 2048, 64), randn(8, 2048, 64)),
        ),
        "linear + cross entropy": Case(
            make=lambda: programs.linear_cross_entropy,
            inputs=(randn(4096, 512), weight),
            rest=(torch.randint(0, 4000, (4096,)),),
        ),
        "the same, few columns": Case(
            make=lambda: programs.linear_cross_entropy,
            inputs=(randn(4096, 16), randn(16_000, 16)),
            rest=(torch.randint(0, 16_000, (4096,)),),
        ),
        "pairs by loops": Case(make=lambda: energy, inputs=(randn(200, 3),), library=Energy),
        "causal by a loop": Case(make=lambda: causal, inputs=tuple(randn(3, 256, 64) * 0.3)),
    }


def _on(case: Case, device: str) -> Case:
    def moved(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(x.to(device) for x in tensors)

    def make(maker: Callable[[], Any]) -> Any:
        made = maker()
        return made.to(device) if isinstance(made, nn.Module) else made

    library = case.library
    return Case(
        make=lambda: make(case.make),
        inputs=moved(case.inputs),
        rest=moved(case.rest),
        library=None if library is None else lambda: make(library),
    )


def _step(function: Any, case: Case) -> Callable[[], None]:
    inputs = [x.clone().requires_grad_() for x in case.inputs]
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    cotangents: list[Tensor] = []

    def step() -> None:
        for x in (*inputs, *parameters):
            x.grad = None
        found = function(*inputs, *case.rest)
        found = list(found) if isinstance(found, tuple) else [found]
        if not cotangents:
            cotangents.extend(torch.randn_like(y) for y in found)
        torch.autograd.backward(found, cotangents)

    return step


def _library_step(case: Case) -> Callable[[], None]:
    assert case.library is not None
    layer = case.library()

    def call(x: Tensor, *_: Tensor) -> Any:
        found = layer(x)
        return found[0] if isinstance(found, tuple) else found

    step = _step(call, case)

    def whole() -> None:
        layer.zero_grad()
        step()

    return whole


def measure(case: Case, repeats: int, compiles: bool) -> dict[str, dict[str, float]]:
    """Each way to run a program: `ms`, `first_s`, `peak_mb`."""
    made: Any = case.make()
    steps: dict[str, Callable[[], None]] = {"eager": _step(made, case)}
    if case.library is not None:
        steps["library"] = _library_step(case)
    if compiles:
        steps["torch.compile"] = _step(torch.compile(made, dynamic=False), case)
    steps["lowtide"] = _step(lt.script(made), case)
    found: dict[str, dict[str, float]] = {}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        found[name] = {"first_s": round(time.perf_counter() - start, 2)}
        step()
    for name, step in steps.items():
        where = case.inputs[0].device
        peak, _ = measure_peak(step, device=where)
        found[name]["peak_mb"] = round(peak.peak_bytes / 2**20, 1)
    timings = time_alternating(steps, repeats=repeats, seconds=20)
    for name, timing in timings.items():
        found[name]["ms"] = round(timing.median_ns / 1e6, 2)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where (cpu)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"there is no GPU that PyTorch {torch.__version__} can use")
    machine = this_machine(options.device)
    print(machine)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name, case in cases().items():
        if options.names and name not in options.names:
            continue
        rows[name] = measure(_on(case, options.device), options.repeats, options.compile)
        ours = rows[name]["lowtide"]["ms"]
        for way, row in rows[name].items():
            speed = f"{row['ms']:9.2f} ms  {row['ms'] / ours:6.2f}x"
            rest = f"first {row['first_s']:6.2f} s  peak {row['peak_mb']:8.1f} MB"
            print(f"{name:24}{way:14}{speed}  {rest}", flush=True)
    report = {"repeats": options.repeats, "torch.compile": options.compile, "rows": rows}
    write_results(machine, report, "training", options.output)


if __name__ == "__main__":
    main()
