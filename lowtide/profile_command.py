"""`lowtide profile script.py`: runs a script as the main program, under the profiler.

In: the command's options. Out: the script's exit status; a table after the script's own output, and
the files that were asked for. The table goes to stdout: by rich in a terminal, as plain text else.
A script that raises is reported as Python would, and what it did until then is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
import types
from typing import Any

from lowtide.errors import LowtideError
from lowtide.memory.profiler.profile import Live, Profile, profile
from lowtide.memory.profiler.rows import SORTS
from lowtide.memory.profiler.text import HEADERS, cells, short_source
from lowtide.tables import format_bytes

_LIVE_SHOWN = 5
_LEFT = {"op", "phase", "module", "source"}
_WHOLE = {"phase", "self time", "self bytes", "at peak"}  # never broken over lines


def profile_script(options: argparse.Namespace) -> int:
    """Runs the script and reports. Returns 2 if the options make no sense."""
    fault = _fault_in(options)
    if fault:
        print(f"lowtide profile: {fault}", file=sys.stderr)
        return 2
    prof = profile()
    module = _main_module(options.script)  # alive while it is reported who holds what
    with contextlib.ExitStack() as stack:
        if options.json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        status = _run(module, options.args, prof)
    try:
        _report(prof, options)
    except (LowtideError, OSError) as error:
        print(f"lowtide profile: {error}", file=sys.stderr)
        return status or 1
    return status


def _fault_in(options: argparse.Namespace) -> str:
    if not os.path.isfile(options.script):
        return f"there is no file {options.script!r}; options go before the script"
    if options.sort not in SORTS:
        return f"--sort {options.sort} is no column; allowed are {', '.join(SORTS)}"
    for path in filter(None, (options.html, options.plot, options.trace)):
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            return f"there is no folder for {path!r}"
    return ""


def _run(module: types.ModuleType, args: list[str], prof: Profile) -> int:
    """Runs a module's file as the main program. Returns its exit status."""
    script = str(module.__file__)
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    names: dict[str, Any] = module.__dict__
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        with prof:
            exec(code, names)
    except SystemExit as end:
        return _status(end.code)
    except Exception as fault:
        _print_fault(fault)
        return 1
    finally:
        sys.modules["__main__"] = before
        sys.argv, sys.path[:] = argv, path
    return 0


def _main_module(script: str) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    return module


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)  # as Python does for sys.exit("words")
    return 1


def _print_fault(fault: BaseException) -> None:
    """The traceback from the script's first line on."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(fault), fault, trace)


def _report(prof: Profile, options: argparse.Namespace) -> None:
    if options.html:
        prof.html(options.html)
    if options.plot:
        prof.plot(options.plot)
    if options.trace:
        prof.export_chrome_trace(options.trace)
    if options.json:
        print(json.dumps(prof.to_dict(options.sort, options.rows), indent=2))
    elif sys.stdout.isatty():
        _print_rich(prof, options.sort, options.rows)
    else:
        print(prof.table(options.sort, options.rows))
        print("live at the peak:")
        print("\n".join(f"  {one}" for one in prof.live_at_peak()[:_LIVE_SHOWN]))


def _print_rich(prof: Profile, sort_by: str, row_limit: int) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = prof.rows(sort_by)
    shown = rows if row_limit < 0 else rows[:row_limit]
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in HEADERS:
        justify = "left" if name in _LEFT else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in _WHOLE)
    for row in shown:
        table.add_row(*cells(row))
    console.print(f"peak [bold]{format_bytes(prof.peak_bytes)}[/] ({prof.peak_bytes:,} bytes)")
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"… and {len(rows) - len(shown)} more rows", style="dim")
    live = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    for name in ("live at the peak", "op", "source", "module", "held by"):
        live.add_column(name, justify="right" if name == "live at the peak" else "left")
    for one in prof.live_at_peak()[:_LIVE_SHOWN]:
        live.add_row(*_live_cells(one))
    console.print()
    console.print(live)
    for remark in prof.remarks:
        console.print(f"note: {remark}", style="dim")


def _live_cells(one: Live) -> list[str]:
    file, _, line = one.source.rpartition(":")
    source = short_source(file, int(line)) if file else "-"
    held = "; ".join(one.holders) or "-"
    return [format_bytes(one.nbytes), one.op, source, one.module or "-", held]
