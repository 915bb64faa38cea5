"""What a budget costs: time at a quarter of eager's peak, over the time without a budget.

    python -m benchmarks.budgets [name ...]     prints, writes benchmarks/results/…-budgets.json

In: a transformer block and a U-Net, as a call without gradients and as a training step, by
`lt.script` and by `lt.compile`. Out: resident peaks beyond the start of a call, in MB; least and
median milliseconds of calls that take turns; `predicted` is what `memory()` says, or the plan's
own peak for a captured graph. A budget of a quarter that no plan reaches is said so: `needs`.
Peaks of training hold the loss, too, which is not part of what is compiled and held to a budget.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from benchmarks.files import write_results
from lowtide.comparison import release_caches
from lowtide.machine import this_machine
from lowtide.memory.measure import measure_peak, time_alternating

MB = 2**20
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


def measure(make: Callable[[], tuple[nn.Module, Tensor]], trains: bool, entry: str, repeats: int):
    """A row: eager's peak and time, Lowtide's without and with a budget."""
    model, x = make()
    model.train(trains)
    run = step if trains else call
    eager = run(model, x)
    eager()
    eager_bytes = measure_peak(eager, release=release_caches)[0].peak_bytes
    budget = eager_bytes // 4
    calls = {"eager": eager, "free": run(ENTRIES[entry](model), x)}
    row: dict[str, Any] = {"budget_mb": round(budget / MB, 1)}
    calls["free"]()
    while True:
        calls["limited"] = run(ENTRIES[entry](model, budget=budget), x)
        try:
            calls["limited"]()
            break
        except lt.BudgetError as refused:
            row["needs_mb"] = round(refused.least_bytes / MB, 1)
            budget = refused.least_bytes
            torch.compiler.reset()
    for name, one in calls.items():
        one()
        peak = measure_peak(one, release=release_caches)[0].peak_bytes
        row[f"{name}_mb"] = round(peak / MB, 1)
    for name, timing in time_alternating(calls, repeats=repeats, seconds=60).items():
        row[f"{name}_ms"] = round(timing.median_ns / 1e6, 1)
        row[f"{name}_least_ms"] = round(timing.min_ns / 1e6, 1)
    row["costs"] = round(row["limited_ms"] / row["free_ms"], 2)
    row["costs_least"] = round(row["limited_least_ms"] / row["free_least_ms"], 2)
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets")
    parser.add_argument("names", nargs="*", help="block, unet, … (all)")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    machine = this_machine()
    print(machine)
    rows: dict[str, Any] = {}
    for name, make in MODELS.items():
        if options.names and name not in options.names:
            continue
        for trains in (False, True):
            for entry in ENTRIES:
                torch.manual_seed(0)
                key = f"{name}, {'training' if trains else 'no gradients'}, {entry}"
                rows[key] = measure(make, trains, entry, options.repeats)
                print(f"{key:32}", rows[key], flush=True)
    write_results(machine, {"repeats": options.repeats, "rows": rows}, "budgets", options.output)


if __name__ == "__main__":
    main()
