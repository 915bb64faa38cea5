"""`lowtide demo`: three programs under eager PyTorch, torch.compile and Lowtide, side by side.

In: sizes (`full` or `quick`). Out: for each program its code and a table of time, peak memory,
predicted peak, and whether the result equals eager's; the same as a dict for JSON. Each program is
measured in a child process (`tools/demo_worker`), so that one that runs out of memory, or is
stopped by Ctrl-C, ends nothing else. The package rich is only needed for output to a terminal.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import IO, TYPE_CHECKING, Any, cast

import torch

from lowtide.errors import LowtideError
from lowtide.tables import format_bytes, format_ms, plain_table
from lowtide.tools.demo_worker import COMPILE, EAGER, LOWTIDE, VARIANTS
from lowtide.tools.machine import this_machine
from lowtide.tools.programs import PROGRAMS, Program

if TYPE_CHECKING:
    from rich.progress import Progress

DEMO_PROGRAMS = ("boxes", "similarity", "chamfer")
_HEADERS = (
    "variant", "time", "first call", "peak", "beyond result", "predicted peak", "result",
)  # fmt: skip
_LEGEND = (
    "time: fastest of several calls, warm · peak: most memory beyond the inputs · beyond result: "
    "the part of the peak that is not the result · predicted peak: what Lowtide said before it ran"
)

_SAME_BYTES = 1 << 20  # smaller differences are noise, such as a thread's stack

Row = dict[str, Any]


def run_demo(*, is_quick: bool = False, as_json: bool = False, device: str = "cpu") -> int:
    """Run the demo and print it. Returns 0 if Lowtide ran every program and agreed with eager.

    Results go to stdout, progress to stderr. `device`: `"cpu"` or `"cuda"`. Returns 1 otherwise.
    Raises LowtideError if there is no such device; KeyboardInterrupt once the child has ended.
    """
    if device != "cpu" and not torch.cuda.is_available():
        raise LowtideError(
            f"there is no {device} device that PyTorch {torch.__version__} can use; "
            "`lowtide doctor` says why, `lowtide demo` runs on the CPU"
        )
    machine = this_machine(device)
    if not as_json:
        _say(str(machine))
    report: list[dict[str, Any]] = []
    with _Steps(total=len(DEMO_PROGRAMS) * len(_STAGES)) as steps:
        for name in DEMO_PROGRAMS:
            entry = _describe(PROGRAMS[name], is_quick)
            entry["rows"] = rows = _measure(name, is_quick, device, steps)
            report.append(entry)
            if not as_json:
                with steps.paused():
                    _show(entry, rows)
    if as_json:
        print(json.dumps({"machine": machine.to_dict(), "programs": report}, indent=2))
    else:
        _say(_LEGEND)
    return 0 if all(_is_good(entry["rows"]) for entry in report) else 1


_STAGES = (
    (EAGER, "peak memory"), (COMPILE, "first call"), (COMPILE, "peak memory"), (COMPILE, "check"),
    (LOWTIDE, "first call"), (LOWTIDE, "peak memory"), (LOWTIDE, "check"), ("all", "time"),
)  # fmt: skip


class _Steps:
    """The progress display: a bar on a terminal, else one line for each step."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar = _bar() if sys.stderr.isatty() else None
        if self._bar is not None:
            self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> _Steps:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, text: str, done: int) -> None:
        """Show `text` as the current step, after `done` others."""
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done)
        else:
            print(f"[{done}/{self._total}] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """A context without the bar, so that results can be printed."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()


def _bar() -> Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=30),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _describe(program: Program, is_quick: bool) -> dict[str, Any]:
    sizes = program.quick if is_quick else program.full
    return {
        "name": program.name,
        "title": program.title,
        "sizes": dict(zip(program.sizes, sizes, strict=True)),
        "source": inspect.getsource(program.function),
    }


def _measure(name: str, is_quick: bool, device: str, steps: _Steps) -> list[Row]:
    """Return the rows of one program, from a child process. If the child failed, its last row says
    so."""
    rows: dict[str, Row] = {}
    current = EAGER
    before = DEMO_PROGRAMS.index(name) * len(_STAGES)
    with _worker(name, "quick" if is_quick else "full", device) as (events, outcome):
        for event in events:
            if event["event"] == "row":
                rows[event["variant"]] = event
                continue
            current, what = event["variant"], event["what"]
            stage = (current, what.split(",")[0])
            done = before + (_STAGES.index(stage) if stage in _STAGES else 0)
            who = "" if current == "all" else f" · {current}"
            steps.step(f"{name}{who} · {what}", done)
    if outcome:
        for variant in VARIANTS:
            if variant not in rows or current in (variant, "all"):
                known = rows.setdefault(variant, {"variant": variant})
                known["error"] = known.get("error") or outcome[0]
    return [rows[variant] for variant in VARIANTS]


@contextlib.contextmanager
def _worker(
    name: str, sizes: str, device: str
) -> Generator[tuple[Iterator[dict[str, Any]], list[str]]]:
    """A context with the child's events and a list, which holds the reason if the child failed."""
    outcome: list[str] = []
    with tempfile.TemporaryFile(mode="w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "lowtide.tools.demo_worker", name, sizes, device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # A process group: torch.compile starts processes too, and all must be killed.
            start_new_session=os.name == "posix",
        )
        assert process.stdout is not None
        try:
            yield _events(process.stdout), outcome
            if process.wait() != 0:
                outcome.append(_why(process.returncode, errors))
        finally:
            _end(process)


def _events(lines: IO[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        # Compilers print to stdout too: lines that are not events are ignored.
        with contextlib.suppress(json.JSONDecodeError):
            event: object = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                yield cast("dict[str, Any]", event)


def _why(returncode: int, errors: IO[str]) -> str:
    if returncode == -signal.SIGKILL if os.name == "posix" else False:
        return "killed by the system, most likely because memory ran out"
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return f"the process failed: {lines[-1] if lines else f'exit status {returncode}'}"


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()
    process.wait()


def _is_good(rows: list[Row]) -> bool:
    return any(row["variant"] == LOWTIDE and row.get("agrees") is True for row in rows)


# -- printing --------------------------------------------------------------------------------------


def _say(text: str) -> None:
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    Console().print(text, markup=False, highlight=False)


def _show(entry: dict[str, Any], rows: list[Row]) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in entry["sizes"].items())
    title = f"{entry['title']} ({sizes})"
    cells = [_cells(row) for row in rows]
    if not sys.stdout.isatty():
        print(f"\n{title}\n\n{entry['source']}\n{plain_table(_HEADERS, cells)}")
        print(f"\n{_verdict(rows)}" if _verdict(rows) else "")
        return
    _show_rich(title, entry["source"], rows, cells)
    _say(f"{_verdict(rows)}\n")


def _show_rich(title: str, source: str, rows: list[Row], cells: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.table import Table

    out = Console()
    out.rule(title)
    out.print(Syntax(source, "python", background_color="default", word_wrap=True))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    last = len(_HEADERS) - 1
    for i, header in enumerate(_HEADERS):
        # Two-line headers, so that 80 columns hold all numbers; only the last column may wrap.
        justify = "left" if i in (0, last) else "right"
        table.add_column(header.replace(" ", "\n"), justify=justify, no_wrap=i != last)
    for row, line in zip(rows, cells, strict=True):
        is_ours = row["variant"] == LOWTIDE
        style = "red" if row.get("error") or row.get("agrees") is False else "green"
        table.add_row(*line, style=style if is_ours else "dim" if row.get("error") else None)
    out.print(table)


def _cells(row: Row) -> list[str]:
    if row.get("error"):
        result = row["error"]
    elif row["variant"] == EAGER:
        result = "the reference"
    else:
        result = f"{'correct' if row.get('agrees') else 'INCORRECT'} {row.get('note', '')}".rstrip()
    return [
        row["variant"],
        format_ms(row.get("min_ms")),
        format_ms(row.get("first_call_ms")),
        format_bytes(row.get("peak_bytes")),
        format_bytes(row.get("extra_bytes")),
        format_bytes(row.get("predicted_bytes")),
        result,
    ]


def _less(saved_bytes: int) -> str:
    if abs(saved_bytes) < _SAME_BYTES:
        return "the same memory"
    return f"{format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} memory"


def _verdict(rows: list[Row]) -> str:
    """Return one sentence that compares Lowtide's row with the others; empty if it has no time."""
    ours = next(row for row in rows if row["variant"] == LOWTIDE)
    if not ours.get("min_ms"):
        return ""
    parts: list[str] = []
    for row in rows:
        if row is ours or not row.get("min_ms"):
            continue
        ratio = row["min_ms"] / ours["min_ms"]
        saved_bytes = (row.get("extra_bytes") or 0) - (ours.get("extra_bytes") or 0)
        parts.append(f"{ratio:.1f}× the speed of {row['variant']} with {_less(saved_bytes)}")
    return f"Lowtide: {'; '.join(parts)}" if parts else ""
