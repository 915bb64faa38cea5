"""What a budget costs: time at a quarter of eager's peak, over the time without a budget.

    python -m benchmarks.budgets [name ...]     prints, writes benchmarks/results/…-budgets.json

In: a transformer block and a U-Net, as a call without gradients and as a training step, by
`lt.script` and by `lt.compile`. Out: peaks of what a call asks its allocators for, in MB; least and
median milliseconds. Each variant has a process of its own, since what one leaves in the C library's
heap makes another fast or slow; they take turns, some calls each, and peaks are measured last. A
budget of a quarter that no plan reaches is said so: `needs`. Peaks of training hold the loss, too,
which is not part of what is compiled and held to a budget.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from benchmarks.files import write_results
from lowtide.memory.measure import measure_peak, time_call
from lowtide.tools.machine import this_machine

MB = 2**20
_CALLS = 5  # of each in a row
Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """A transformer block with its attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // self.heads), -1)
        x = x + self.proj((scores @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TwoConvolutions(nn.Module):
    """What each level of a U-Net does twice: convolution, norm, relu."""

    def __init__(self, channels: int, out_channels: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
            norm(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            norm(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Three levels down, three up, each joined with what came down."""

    def __init__(self, c: int, norm: Norm) -> None:
        super().__init__()
        self.first = TwoConvolutions(3, c, norm)
        self.down1 = TwoConvolutions(c, 2 * c, norm)
        self.down2 = TwoConvolutions(2 * c, 4 * c, norm)
        self.up2 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2)
        self.join2 = TwoConvolutions(4 * c, 2 * c, norm)
        self.up1 = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.join1 = TwoConvolutions(2 * c, c, norm)
        self.last = nn.Conv2d(c, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down1(F.max_pool2d(a, 2))
        c = self.down2(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, self.up2(c)], 1))
        a = self.join1(torch.cat([a, self.up1(b)], 1))
        return self.last(a)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "block": lambda: (Block(256, 8), torch.randn(8, 512, 256)),
    "unet": lambda: (UNet(16, partial(nn.GroupNorm, 4)), torch.randn(8, 3, 128, 128)),
    "unet, batch norm": lambda: (UNet(16, nn.BatchNorm2d), torch.randn(8, 3, 128, 128)),
}
ENTRIES = {"script": lt.script, "compile": lt.compile}


def call(model: Any, x: Tensor) -> Callable[[], object]:
    """One call without gradients."""

    def run() -> object:
        with torch.no_grad():
            return model(x)

    return run


def step(model: Any, x: Tensor) -> Callable[[], object]:
    """One training step, with the gradient of the input too; the gradients are new each time."""
    x = x.clone().requires_grad_()

    def run() -> object:
        x.grad = None
        model.zero_grad()
        model(x).square().mean().backward()
        return None

    return run


def serve(name: str, trains: bool, variant: str, budget: int | None) -> None:
    """One variant in this process: what it needs as a line of JSON. Then, for each line of stdin: a
    number is so many calls, the answer their milliseconds; `peak` is its peak, in bytes."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.train(trains)
    compiled: Any = ENTRIES.get(variant, _as_it_is)
    given: dict[str, Any] = {} if budget is None else {"budget": budget}
    run = step if trains else call
    one = run(compiled(model, **given), x)
    found: dict[str, float] = {}
    try:
        one()
    except lt.BudgetError as refused:
        found["needs_mb"] = round(refused.least_bytes / MB, 1)
        torch.compiler.reset()
        one = run(compiled(model, budget=refused.least_bytes), x)
        one()
    one()
    print(json.dumps(found), flush=True)
    for line in sys.stdin:
        if line.strip() == "peak":
            print(measure_peak(one)[0].peak_bytes, flush=True)
        else:
            print(json.dumps([time_call(one)[0] / 1e6 for _ in range(int(line))]), flush=True)


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


class Worker:
    """A process that serves a variant."""

    def __init__(self, name: str, trains: bool, variant: str, budget: int | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.budgets", name, "--serve", variant]
        command += ["--trains"] if trains else []
        command += ["--budget", str(budget)] if budget is not None else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.found: dict[str, float] = self._read()
        self.ms: list[float] = []

    def time(self, calls: int) -> None:
        """Some calls more; the first is not counted, as this process has slept before it."""
        self.ms += self._ask(str(calls + 1))[1:]

    def end(self) -> int:
        """Its peak, at last: to measure it changes what the C library has at hand."""
        peak_bytes = int(self._ask("peak"))
        self._process.communicate()
        return peak_bytes

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def measure(name: str, trains: bool, entry: str, rounds: int) -> dict[str, float]:
    """A row: eager's peak and time, Lowtide's without and with a budget."""
    budget = Worker(name, trains, "eager").end() // 4
    workers = {
        "eager": Worker(name, trains, "eager"),
        "free": Worker(name, trains, entry),
        "limited": Worker(name, trains, entry, budget),
    }
    for _ in range(rounds):
        for worker in workers.values():
            worker.time(_CALLS)
    row = {"budget_mb": round(budget / MB, 1), **workers["limited"].found}
    for kind, worker in workers.items():
        row[f"{kind}_mb"] = round(worker.end() / MB, 1)
        row[f"{kind}_ms"] = round(statistics.median(worker.ms), 1)
        row[f"{kind}_least_ms"] = round(min(worker.ms), 1)
    row["costs"] = round(row["limited_ms"] / row["free_ms"], 2)
    row["costs_least"] = round(row["limited_least_ms"] / row["free_least_ms"], 2)
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets")
    parser.add_argument("names", nargs="*", help="block, unet, … (all)")
    parser.add_argument("--rounds", type=int, default=5, help=f"of {_CALLS} calls each")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", metavar="VARIANT", help="be the process of a variant")
    parser.add_argument("--trains", action="store_true", help="… in training")
    parser.add_argument("--budget", type=int, help="… with this budget, in bytes")
    options = parser.parse_args()
    if options.serve:
        serve(options.names[0], options.trains, options.serve, options.budget)
        return
    machine = this_machine()
    print(machine)
    rows: dict[str, Any] = {}
    for name in MODELS:
        if options.names and name not in options.names:
            continue
        for trains in (False, True):
            for entry in ENTRIES:
                key = f"{name}, {'training' if trains else 'no gradients'}, {entry}"
                rows[key] = measure(name, trains, entry, options.rounds)
                print(f"{key:32}", rows[key], flush=True)
    write_results(
        machine,
        {"rounds": options.rounds, "calls": _CALLS, "rows": rows},
        "budgets",
        options.output,
    )


if __name__ == "__main__":
    main()
