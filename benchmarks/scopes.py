"""What dispose scopes cost: microseconds per tensor over eager's own, turn by turn in one process.

    python -m benchmarks.scopes             prints, and writes benchmarks/results/…-scopes.json

In: small tensors, so that PyTorch's own time per call is least and the scope's share largest. Out:
medians of turns that alternate between eager and scoped, the median of their differences, and the
difference of the least, which is what others on the machine disturb least.

What must be paid for a tensor, measured by itself on an AMD EPYC of 2.6 GHz, torch 2.13: 1.0 µs for
PyTorch to ask a function mode that does nothing (2.8 for functions that are written in Python,
such as those of torch.nn.functional), 0.1 for a weak reference; at the end of its scope 0.65 for a
tensor without memory, 0.25 to exchange it, 0.2 to set two classes and say what ended it. The rest
is to find the user's line and to keep the log: 0.4 to 0.7.
Together 1.7 to 1.8 for a tensor that is dropped, and 2.9 to 3.3 for one that is alive at the end,
be they 200 or 20,000, whose memory no cache holds, while Python's collector rests. It adds 0.1 to
0.4 where thousands are alive, as it walks a weak reference beside each tensor. On a Zen 5 it is
less: 1.1 to 1.3 and 2.1 to 2.9 (`results/2026-11-26-amd-epyc-zen-5-scopes.json`, and 2026-11-27).
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from benchmarks.files import write_results
from lowtide.memory.measure import time_alternating
from lowtide.tools.machine import this_machine

COUNT = 2_000
Context = Callable[[], AbstractContextManager[Any]]

x, y = torch.ones(8), torch.ones(8)
row = torch.ones(1, 8)
layer = torch.nn.Linear(8, 8).requires_grad_(False)


def made_and_dropped(context: Context) -> None:
    """Each tensor dies before the next is made, as temporaries do."""
    with context():
        for _ in range(COUNT):
            x * y


def kept_to_the_end(context: Context, count: int = COUNT) -> None:
    """All are alive when the scope ends: the scope disposes every one."""
    kept = []
    with context():
        for _ in range(count):
            kept.append(x * y)


def outputs_of_layers(context: Context) -> None:
    """Kept, too, and made by PyTorch's own Python, through which the user's line is looked for."""
    kept = []
    with context():
        for _ in range(COUNT):
            kept.append(layer(row))


def two_results(context: Context) -> None:
    """Kept: functions that give a pair, of which every tensor is the scope's."""
    kept = []
    with context():
        for _ in range(COUNT // 2):
            kept.append(row.max(0))


def shape_asked(context: Context) -> None:
    """No tensor is made, but PyTorch asks the mode: what an attribute costs inside."""
    with context():
        for _ in range(COUNT):
            x.shape  # noqa: B018


def empty_scope(context: Context) -> None:
    """Opened and ended with nothing inside."""
    for _ in range(COUNT):
        with context():
            pass


def training_step() -> Callable[[Context], None]:
    """One step of a small model, so that the share of the scope is visible: per step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    data, target = torch.randn(64, 64), torch.randn(64, 64)

    def steps(context: Context) -> None:
        for _ in range(10):
            with context():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(data), target).backward()
                optimizer.step()

    return steps


PER: dict[str, tuple[Callable[[Context], None], int]] = {
    "made and dropped": (made_and_dropped, COUNT),
    "kept to the scope's end": (kept_to_the_end, COUNT),
    "kept, 20 tensors": (functools.partial(kept_to_the_end, count=20), 20),
    "kept, 200 tensors": (functools.partial(kept_to_the_end, count=200), 200),
    "kept, 20,000 tensors": (functools.partial(kept_to_the_end, count=20_000), 20_000),
    "kept, 100,000 tensors": (functools.partial(kept_to_the_end, count=100_000), 100_000),
    "outputs of layers, kept": (outputs_of_layers, COUNT),
    "functions with two results": (two_results, COUNT),
    "x.shape": (shape_asked, COUNT),
    "an empty scope": (empty_scope, COUNT),
    "a small training step": (training_step(), 10),
}


def measure(name: str, repeats: int) -> dict[str, float]:
    """Microseconds of one: eager, in a scope, and the median difference of neighbouring turns."""
    work, per = PER[name]
    calls = {"eager": lambda: work(nullcontext), "scope": lambda: work(lt.dispose_scope)}
    for call in calls.values():
        call()
    timings = time_alternating(calls, repeats=repeats, seconds=30)
    eager, scope = (
        [ns / per / 1e3 for ns in timings[key].samples_ns] for key in ("eager", "scope")
    )
    over = [b - a for a, b in zip(eager, scope, strict=False)]  # time may be up between
    return {
        "eager_us": round(statistics.median(eager), 3),
        "scope_us": round(statistics.median(scope), 3),
        "over_us": round(statistics.median(over), 3),
        "least_over_us": round(min(scope) - min(eager), 3),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scopes", description=__doc__)
    parser.add_argument("--repeats", type=int, default=61)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = this_machine()
    found = {name: measure(name, options.repeats) for name in PER}
    print(machine)
    for name, row in found.items():
        print(f"{name:28}" + "  ".join(f"{key} {value:8.2f}" for key, value in row.items()))
    report = {"repeats": options.repeats, "rows": found}
    write_results(machine, report, "scopes", options.output)


if __name__ == "__main__":
    main()
