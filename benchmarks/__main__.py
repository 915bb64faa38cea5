"""`python -m benchmarks`: measure, print, write JSON; `--update-readme` writes the README's table.

python -m benchmarks                                  everything; takes a quarter of an hour
python -m benchmarks --quick                          small sizes, to see that it works
python -m benchmarks chamfer boxes --only lowtide     some programs, some variants
python -m benchmarks --device cuda                    on the current GPU
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import torch

from benchmarks.files import write_results
from benchmarks.measure import Effort, ProgramResult, measure_program
from benchmarks.overhead import import_time_ms, launch_overhead
from benchmarks.report import (
    MEASURED,
    PROGRAMS_BLOCK,
    README,
    full_table,
    how_lines,
    overhead_lines,
    summary_table,
    update_page,
)
from benchmarks.variants import HOW
from lowtide.tools.machine import this_machine
from lowtide.tools.programs import PROGRAMS


def main() -> int:
    """Measure what the command line asks for. Returns 1 if a result of Lowtide's differs."""
    options = _parse()
    effort = Effort(
        is_quick=options.quick,
        repeats=options.repeats,
        seconds=options.seconds,
        only=tuple(options.only.split(",")) if options.only else (),
        with_peak=not options.no_peak,
        with_first_call=not options.no_first_call,
        device=options.device,
    )
    machine = this_machine(options.device)
    print(machine, flush=True)
    results: list[ProgramResult] = []
    for name in options.programs or PROGRAMS:
        results.append(measure_program(PROGRAMS[name], effort, _say))
        print(f"\n{full_table(results[-1])}", flush=True)
    _say("overhead")
    overhead, import_ms = launch_overhead(options.device), import_time_ms()
    table = summary_table(results)
    footer = f"{overhead_lines(overhead, import_ms)}\n\n{how_lines(machine)}"
    print(f"\n{table}\n\n{footer}")
    report = {
        "how": HOW,
        "is_quick": effort.is_quick,
        "device": effort.device,
        "programs": [dataclasses.asdict(result) for result in results],
        "launch_us": overhead,
        "import_ms": import_ms,
    }
    kind = "quick" if effort.is_quick else ""
    print(f"\nwritten: {write_results(machine, report, kind, options.output)}")
    if options.update_readme:
        for path in (README, MEASURED):
            update_page(f"{table}\n\n{footer}", PROGRAMS_BLOCK, path)
    ours = [found for result in results for found in result.variants if found.name == "lowtide"]
    return 1 if any(found.agrees is False for found in ours) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("programs", nargs="*", choices=[[], *PROGRAMS], help="which (all)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", default="", help="variants, e.g. eager,lowtide")
    parser.add_argument("--repeats", type=int, default=15, help="most timed calls of each (15)")
    parser.add_argument("--seconds", type=float, default=3.0, help="most seconds of each (3)")
    parser.add_argument("--no-peak", action="store_true", help="leave out peak memory")
    parser.add_argument("--no-first-call", action="store_true", help="leave out compile times")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where (cpu)")
    parser.add_argument("--output", type=Path, help="the JSON file (benchmarks/results/…)")
    parser.add_argument("--update-readme", action="store_true", help="rewrite the README's table")
    options = parser.parse_args()
    is_partial = options.quick or options.programs or options.only or options.device != "cpu"
    if options.update_readme and is_partial:
        parser.error("--update-readme needs all programs and variants at full size on the CPU")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"there is no GPU that PyTorch {torch.__version__} can use")
    return options


def _say(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
