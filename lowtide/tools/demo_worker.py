"""Measures one program of the demo, in a process of its own.

In: the name of a program, `full` or `quick`, a device. Out, on stdout: one JSON object a line, for
the parent process (`tools/demo`). If memory runs out, the system kills this process only; earlier
measurements have been reported by then.

    {"event": "doing", "variant": "torch.compile", "what": "first call"}
    {"event": "row", "variant": "torch.compile", "min_ms": 176.1, "peak_bytes": 400000000, …}
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowtide.memory.available import available_bytes
from lowtide.memory.measure import Peak, measure_peak, tensor_bytes, time_alternating, time_call
from lowtide.tables import format_bytes
from lowtide.tools.comparison import describe_error
from lowtide.tools.difference import Difference, difference
from lowtide.tools.programs import PROGRAMS, Program

EAGER, COMPILE, LOWTIDE = "eager", "torch.compile", "lowtide"
VARIANTS = (EAGER, COMPILE, LOWTIDE)
_REPEATS = 7
_SECONDS = 1.5
_SPARE_BYTES = 512 << 20

Function = Callable[..., object]


@dataclass(kw_only=True)
class DemoRow:
    """One variant of one program; None where it was not measured. `error`: why.

    `peak_bytes`: beyond the inputs. `extra_bytes`: beyond inputs and outputs. `predicted_bytes`:
    what Lowtide predicted for `peak_bytes`. `note`: where and how results were checked.
    """

    variant: str
    min_ms: float | None = None
    median_ms: float | None = None
    first_call_ms: float | None = None
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    predicted_bytes: int | None = None
    agrees: bool | None = None
    note: str = ""
    error: str = ""


def main(arguments: list[str]) -> int:
    """Measure a program. `arguments`: its name, `full` or `quick`, the device."""
    name, sizes, device = arguments
    _be_first_to_be_killed()
    warnings.simplefilter("ignore")
    program = PROGRAMS[name]
    chosen = program.full if sizes == "full" else program.quick
    Worker(program, chosen, torch.device(device)).run()
    return 0


class Worker:
    """Measures all variants of one program and reports each row once it is complete."""

    def __init__(self, program: Program, sizes: tuple[int, ...], device: torch.device) -> None:
        self.program = program
        self.sizes = sizes
        self.device = device
        self.args = self.inputs(sizes)
        self.rows = {variant: DemoRow(variant=variant) for variant in VARIANTS}
        self.functions: dict[str, Function] = {}
        self.reference: object = None

    def run(self) -> None:
        """Measure eager first, since the others are checked against it; the times last."""
        for variant in VARIANTS:
            try:
                if variant == EAGER:
                    self.measure_eager()
                else:
                    self.measure_compiled(variant)
            except Exception as fault:
                self.rows[variant].error = describe_error(fault)
            self.report(variant)
        self.reference = None
        self.measure_times()
        for variant in VARIANTS:
            self.report(variant)

    def inputs(self, sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return the program's inputs at these sizes."""
        return tuple(x.to(self.device) for x in self.program.make_inputs(*sizes))

    def report(self, variant: str) -> None:
        """Send what is known of a row; a later row of the same variant replaces it."""
        emit({"event": "row", **dataclasses.asdict(self.rows[variant])})

    def measure_eager(self) -> None:
        """Measure the peak and the reference result, if enough memory is free."""
        row = self.rows[EAGER]
        needed = self.program.eager_peak_bytes(self.sizes)
        free = available_bytes() if self.device.type == "cpu" else None
        if free is not None and free < needed + _SPARE_BYTES:
            row.error = f"skipped: needs {format_bytes(needed)}, {format_bytes(free)} are free"
            return
        doing(EAGER, "peak memory")
        function = self.program.function
        function(*self.inputs(self.program.quick))
        peak, self.reference = self.peak(function)
        self.fill_memory(row, peak.peak_bytes, self.reference)
        if peak.time_ns > _SECONDS * 1e9:
            row.min_ms = row.median_ms = peak.time_ns / 1e6
        else:
            self.functions[EAGER] = function

    def measure_compiled(self, variant: str) -> None:
        """Measure compile time and peak, and check the result."""
        row = self.rows[variant]
        doing(variant, "first call")
        function = _compiled(variant, self.program.function)
        first_ns, result = time_call(lambda: function(*self.args))
        del result
        row.first_call_ms = first_ns / 1e6
        doing(variant, "peak memory")
        peak, result = self.peak(function)
        self.fill_memory(row, peak.peak_bytes, result)
        if variant == LOWTIDE:
            row.predicted_bytes = _predicted_bytes(function, self.args)
        doing(variant, "check")
        found = self.check(function, result)
        row.agrees, row.note = found.agrees, found.note
        self.functions[variant] = function

    def peak(self, function: Function) -> tuple[Peak, object]:
        """Return the peak of one call, and its result."""
        return measure_peak(lambda: function(*self.args), device=self.device)

    def check(self, function: Function, result: object) -> Difference:
        """Compare with eager, at the quick sizes if eager did not run at these."""
        if self.reference is not None:
            return difference(self.reference, result)
        small = self.inputs(self.program.quick)
        found = difference(self.program.function(*small), function(*small))
        where = f"checked at {self.program.describe(self.program.quick)}"
        return dataclasses.replace(found, note=f"{where} {found.note}".rstrip())

    def fill_memory(self, row: DemoRow, peak_bytes: int, result: object) -> None:
        """Set the two peaks of a row: beyond the inputs, and beyond the result too."""
        row.peak_bytes = peak_bytes
        row.extra_bytes = max(peak_bytes - tensor_bytes(result, beyond=self.args), 0)

    def measure_times(self) -> None:
        """Measure the times, with calls of the variants in turn."""
        gc.collect()
        calls = {
            variant: functools.partial(function, *self.args)
            for variant, function in self.functions.items()
        }
        for call in calls.values():  # so that pages for outputs are resident again
            call()
        timings = time_alternating(
            calls,
            repeats=_REPEATS,
            seconds=_SECONDS,
            on_round=lambda turn: doing("all", f"time, round {turn + 1} of {_REPEATS}"),
        )
        for variant, timing in timings.items():
            self.rows[variant].min_ms = timing.min_ns / 1e6
            self.rows[variant].median_ms = timing.median_ns / 1e6


def emit(event: dict[str, Any]) -> None:
    """Report one event to the parent process."""
    print(json.dumps(event), flush=True)


def doing(variant: str, what: str) -> None:
    """Report what is about to be measured."""
    emit({"event": "doing", "variant": variant, "what": what})


def _compiled(variant: str, function: Function) -> Function:
    if variant == COMPILE:
        return torch.compile(function, dynamic=False)
    import lowtide as lt

    return lt.script(function)


def _predicted_bytes(function: Any, args: tuple[torch.Tensor, ...]) -> int:
    return int(function.memory(*args).peak_bytes)


def _be_first_to_be_killed() -> None:
    """Let the system kill this process first if memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
