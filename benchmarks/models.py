"""Whole models, turn by turn: eager, torch.compile's Inductor, `lt.compile`.

    python -m benchmarks.models                     all of them, one thread; writes …-models.json
    python -m benchmarks.models BERT ViT --train    two of them, training only
    python -m benchmarks.models --ways script       `lt.script` in the place of `lt.compile`
    python -m benchmarks.models --no-inductor       minutes less
    python -m benchmarks.models --bfloat16          under torch.autocast; writes …-models-bfloat16
    python -m benchmarks.models --into-pages a.json b.json
                                                    earlier results into README, docs/measured.md

First calls find what is on disk: `LOWTIDE_CACHE_DIR=$(mktemp -d)` shows those of a new machine.

In: the models of `benchmarks/model_zoo`. Out: for each model and kind (infer, train) the least
milliseconds of a call by each way, its first call in seconds, and its peak in bytes. A call of
`train` is a forward and a backward pass. With one thread, times are processor times.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lowtide as lt
from benchmarks.files import write_results
from benchmarks.model_zoo import MODELS, Model
from benchmarks.report import MEASURED, MODELS_BLOCK, models_summary, models_table, update_page
from lowtide.memory.measure import measure_peak
from lowtide.tools.machine import this_machine

EAGER, INDUCTOR, COMPILE, SCRIPT = "eager", "inductor", "compile", "script"
Row = dict[str, dict[str, float]]


def calls(
    model: Model, ways: list[str], is_training: bool, is_bfloat16: bool
) -> dict[str, Callable[[], Any]]:
    """One call of each way, by name; all have equal parameters and the same inputs."""
    torch.manual_seed(0)
    module, inputs = model.make(), model.inputs()
    module.train(is_training)
    makers: dict[str, Callable[[nn.Module], Any]] = {
        EAGER: lambda m: m,
        INDUCTOR: lambda m: torch.compile(m),
        COMPILE: lambda m: lt.compile(m),
        SCRIPT: lambda m: lt.script(m),
    }

    def call_of(way: str) -> Callable[[], Any]:
        own = copy.deepcopy(module)
        compiled = makers[way](own)

        def run(*args: Any) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
                return compiled(*args)

        def infer() -> Tensor:
            with torch.no_grad():
                return run(*inputs)

        def train() -> Tensor:
            own.zero_grad()
            result = run(*inputs)
            result.square().mean().backward()
            return result

        return train if is_training else infer

    return {way: call_of(way) for way in ways}


def measure(
    model: Model, ways: list[str], is_training: bool, repeats: int, is_bfloat16: bool = False
) -> Row:
    """What one model takes by each way: see the module's text."""
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    found: Row = {}
    made = calls(model, ways, is_training, is_bfloat16)
    results: dict[str, Tensor] = {}
    for way, call in made.items():
        start = time.perf_counter()
        results[way] = call().detach().float()
        found[way] = {"first_s": round(time.perf_counter() - start, 2)}
        call()
    for way, call in made.items():
        found[way]["peak_mb"] = round(measure_peak(call)[0].peak_bytes / 2**20, 2)
        scale = results[EAGER].abs().max().item()
        found[way]["error"] = (results[way] - results[EAGER]).abs().max().item() / scale
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    if is_training:  # the engine's thread works, too
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(repeats):
        for way, call in made.items():
            start = clock()
            call()
            times[way].append(clock() - start)
    for way, seconds in times.items():
        found[way]["ms"] = round(min(seconds) * 1e3, 3)
    return found


def line(name: str, row: Row) -> str:
    """One line of the table: above 1 is faster than the other way."""
    parts = [f"{name:30}"]
    ours = next(way for way in (COMPILE, SCRIPT) if way in row)
    for way in row:
        parts.append(f"{way} {row[way]['ms']:9.2f} ms")
        if way not in (COMPILE, SCRIPT):
            parts.append(f"({row[way]['ms'] / row[ours]['ms']:5.2f}x)")
    firsts = ", ".join(f"{row[way]['first_s']:.1f}" for way in row)
    peaks = ", ".join(f"{row[way]['peak_mb']:.1f}" for way in row)
    return " ".join([*parts, f"first {firsts} s, peak {peaks} MB"])


def geomean(rows: dict[str, Row], kind: str, against: str) -> float | None:
    """Of how many times faster ours is, over the rows of one kind; None where there are none."""
    ratios = [
        row[against]["ms"] / row[COMPILE if COMPILE in row else SCRIPT]["ms"]
        for name, row in rows.items()
        if name.endswith(kind) and against in row
    ]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def write_into_pages(files: list[Path]) -> None:
    """Writes the tables of models from files that `main` wrote: a summary into the README, all rows
    into docs/measured.md."""
    reports = [json.loads(file.read_text()) for file in files]
    measured = "; ".join(f"{found['machine']['cpu']}: {found['date']}" for found in reports)
    how = (
        "How many times faster Lowtide (`lt.compile`) is: least of 9 calls in turns, one thread, "
        f"processor time, float32; below 1 it is slower. Measured on {measured}."
    )
    update_page(f"{models_summary(reports)}\n\n{how}", MODELS_BLOCK)
    update_page(f"{models_table(reports)}\n\n{how}", MODELS_BLOCK, MEASURED)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(MODELS))
    parser.add_argument("--ways", nargs="+", default=[COMPILE], choices=[COMPILE, SCRIPT])
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--train", action="store_true", help="training only")
    parser.add_argument("--infer", action="store_true", help="inference only")
    parser.add_argument("--bfloat16", action="store_true", help="under torch.autocast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--into-pages", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.into_pages:
        write_into_pages(options.into_pages)
        return
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"there is no model {unknown[0]!r}")
    torch.set_num_threads(options.threads)
    ways = [EAGER, *([] if options.no_inductor else [INDUCTOR]), *options.ways]
    kinds = [kind for kind in ("infer", "train") if getattr(options, kind)] or ["infer", "train"]
    machine = this_machine("cpu")
    print(machine, flush=True)
    rows: dict[str, Row] = {}
    for name in options.names or MODELS:
        for kind in kinds:
            key = f"{name}, {kind}"
            try:
                row = measure(
                    MODELS[name], ways, kind == "train", options.repeats, options.bfloat16
                )
            except Exception as fault:
                print(f"{key:30} {type(fault).__name__}: {fault}", flush=True)
                continue
            rows[key] = row
            print(line(key, row), flush=True)
    means = {f"{kind}, {way}": geomean(rows, kind, way) for kind in kinds for way in ways[:-1]}
    print({name: mean and round(mean, 2) for name, mean in means.items()})
    report = {"threads": options.threads, "geomeans": means, "rows": rows}
    file_kind = "models-bfloat16" if options.bfloat16 else "models"
    print(write_results(machine, report, file_kind, options.output))


if __name__ == "__main__":
    main()
