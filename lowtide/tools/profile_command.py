"""`lowtide profile script.py`: runs a script as the main program, under the profiler.

In: the command's options. Out: the script's exit status; a table after the script's own output; and
the requested files. In a terminal rich formats the table, else it is plain text. If the script
raises, or is stopped by Ctrl-C, its traceback is printed as by Python, and the table shows what ran
until then. Invalid options are refused before the run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import threading
import traceback
import types
from collections.abc import Generator
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from typing import Any

from lowtide.errors import LowtideError
from lowtide.tables import format_bytes
from lowtide.tools.explain_command import ArgumentFault
from lowtide.tools.profiler import watch
from lowtide.tools.profiler.plot import check_picture
from lowtide.tools.profiler.profile import Live, Profile, profile
from lowtide.tools.profiler.rows import SORTS, first_rows
from lowtide.tools.profiler.text import HEADERS, cells, short_source

_LIVE_SHOWN = 5
_LEFT = {"op", "phase", "module", "source"}
_WIDE = {"phase", "calls", "module"}  # left out of a narrow terminal
_NARROW_COLUMNS = 100
_WHOLE = {"phase", "self time", "self bytes", "at peak"}  # not wrapped


def profile_script(options: argparse.Namespace) -> int:
    """Run the script and print the profile. Returns its exit status, 2 if the options are wrong."""
    with _as_main(options):
        try:
            _check(options)
            main = _main_module(options)  # kept alive for the report on what holds tensors
        except ArgumentFault as fault:
            print(f"lowtide profile: {fault}", file=sys.stderr)
            return 2
        try:
            code = _code_of(main)
        except Exception as fault:  # such as SyntaxError
            _print_fault(fault)
            return 1
        prof = profile()
        with _stdout_to_stderr() if options.json else contextlib.nullcontext():
            status = _run(main, code, prof)
        is_written = _write_files(prof, options)
        _print_report(prof, options)
        return status or (0 if is_written else 1)


def _check(options: argparse.Namespace) -> None:
    """Raise ArgumentFault for options that would fail after the run."""
    if options.sort not in SORTS:
        allowed = ", ".join(SORTS)
        raise ArgumentFault(f"--sort {options.sort} is not a column; allowed are {allowed}")
    if options.rows < -1:
        raise ArgumentFault(
            f"--rows {options.rows} is not a number of rows; write 10, or -1 for all"
        )
    if options.plot:
        try:
            check_picture(options.plot)
        except LowtideError as fault:
            raise ArgumentFault(f"--plot: {fault}") from fault
    for path in filter(None, (options.html, options.plot, options.trace)):
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise ArgumentFault(f"the folder of {path!r} does not exist")
        was_there = os.path.exists(path)
        try:
            with open(path, "ab"):
                pass
        except OSError as fault:
            raise ArgumentFault(f"{path!r} cannot be written: {fault.strerror}") from fault
        if not was_there:
            os.remove(path)


@contextlib.contextmanager
def _as_main(options: argparse.Namespace) -> Generator[None]:
    """A context with `sys.path` and `sys.argv` as the script expects them. Restores `__main__`."""
    argv, path, before = sys.argv, list(sys.path), sys.modules["__main__"]
    folder = "" if options.module else os.path.dirname(os.path.abspath(options.script))
    sys.path.insert(0, folder or os.getcwd())
    sys.argv = [options.script, *options.args]
    try:
        yield
    finally:
        sys.modules["__main__"] = before
        sys.argv, sys.path[:] = argv, path


@contextlib.contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """A context whose output to stdout goes to stderr, also from C and child processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _main_module(options: argparse.Namespace) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    main.__file__ = os.path.abspath(options.script)
    if options.module:
        main.__spec__ = spec = _spec_of(options.script)
        main.__package__, main.__loader__ = spec.parent, spec.loader
        main.__file__ = sys.argv[0] = spec.origin or options.script
    elif not os.path.isfile(options.script):
        raise ArgumentFault(
            f"there is no file {options.script!r}; options go before the script, "
            "and -m runs a module"
        )
    return main


def _spec_of(name: str) -> ModuleSpec:
    """Return the spec of what `python -m name` runs: a module, or a package's `__main__`."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ModuleNotFoundError, ValueError) as fault:
        raise ArgumentFault(f"-m {name}: {fault}") from fault
    if spec is None or not isinstance(spec.loader, InspectLoader):
        raise ArgumentFault(f"-m {name}: there is no such module, or it has no code")
    return spec


def _run(main: types.ModuleType, code: types.CodeType, prof: Profile) -> int:
    """Run a module as the main program. Returns its exit status."""
    names: dict[str, Any] = main.__dict__
    before = set(threading.enumerate())
    sys.modules["__main__"] = main
    try:
        with prof:
            try:
                exec(code, names)
            finally:  # as Python does before it exits
                for thread in set(threading.enumerate()) - before:
                    if not thread.daemon:
                        thread.join()
    except SystemExit as end:
        return _status(end.code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BaseException as fault:
        _print_fault(fault)
        return 1
    return 0


def _code_of(main: types.ModuleType) -> Any:
    if main.__spec__ is not None and isinstance(main.__spec__.loader, InspectLoader):
        return main.__spec__.loader.get_code(main.__spec__.name)
    with open(str(main.__file__), "rb") as file:
        return compile(file.read(), str(main.__file__), "exec")


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)  # as Python does for sys.exit("words")
    return 1


def _print_fault(fault: BaseException) -> None:
    """Print the traceback from the script's first line on."""
    traceback.print_exception(type(fault), fault, _without_own(fault.__traceback__))


def _without_own(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the entries of a traceback without those of the profiler, which calls each op."""
    if trace is None:
        return None
    rest = _without_own(trace.tb_next)
    if trace.tb_frame.f_code.co_filename in (__file__, watch.__file__):
        return rest
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _write_files(prof: Profile, options: argparse.Namespace) -> bool:
    """Write the requested files. Returns False if one could not be written."""
    is_written = True
    files = ((options.html, prof.html), (options.plot, prof.plot))
    for path, write in (*files, (options.trace, prof.export_chrome_trace)):
        try:
            if path:
                write(path)
        except (LowtideError, OSError) as fault:
            print(f"lowtide profile: {fault}", file=sys.stderr)
            is_written = False
    return is_written


def _print_report(prof: Profile, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(prof.to_dict(options.sort, options.rows), indent=2))
    elif sys.stdout.isatty():
        _print_rich(prof, options.sort, options.rows)
    else:
        print(prof.table(options.sort, options.rows))
        live = prof.live_at_peak()[:_LIVE_SHOWN]
        if live:
            print("live at the peak:")
            print("\n".join(f"  {one}" for one in live))


def _print_rich(prof: Profile, sort_by: str, row_limit: int) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = prof.rows(sort_by)
    shown = first_rows(rows, row_limit)
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    names: list[str] = [n for n in HEADERS if n not in _WIDE or console.width >= _NARROW_COLUMNS]
    for name in names:
        justify = "left" if name in _LEFT else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in _WHOLE)
    for row in shown:
        found: dict[str, str] = dict(zip(HEADERS, cells(row), strict=True))
        table.add_row(*(found[name] for name in names))
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
