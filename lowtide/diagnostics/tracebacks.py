"""Tracebacks through the user's own lines, for exceptions that compiled programs raise.

In: an exception that an op raised. Out: the same one, with a traceback as if Python had run the
user's functions; Lowtide's own frames are left out, unless LOWTIDE_DEBUG is set.

    File "train.py", line 8, in step           the user's call of the compiled function
    File "…/execute/driver.py", …             Lowtide
    File "model.py", line 21, in forward       where the op stands, and who called that function
        raise ValueError("empty")

Of Lowtide's own errors, such as a CompileError, only the user's frames and that of the entry are
left: the message has the line.

Of code that was made from the author's, from a file say, a note tells the author's line.

A frame is made by compiling a `raise` at that line of that file, as Jinja does. Such a frame knows
those that called it here. So nothing here may keep the traceback in a local variable: as a cycle it
would keep the call's tensors until the next garbage collection.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

from lowtide import config
from lowtide.errors import Loc, LowtideError
from lowtide.ir.interpret import LOC

Error = TypeVar("Error", bound=BaseException)
P = ParamSpec("P")
T = TypeVar("T")


def through_user_lines(error: Error) -> Error:
    """Return the exception with such a traceback; unchanged if no op raised it, and it is not one
    of Lowtide's."""
    loc: Loc | None = getattr(error, LOC, None)
    if config.current().debug.topics:
        return error
    if loc is None:
        return error.with_traceback(None) if isinstance(error, LowtideError) else error
    delattr(error, LOC)
    written = loc.written_as()
    if written:
        error.add_note(written)
    chain: TracebackType | None = None
    try:
        while loc is not None and loc.line:
            chain = _entry(loc, chain)
            loc = loc.caller
        return error.with_traceback(chain)
    finally:
        del error, chain


def entry_point(fn: Callable[P, T]) -> Callable[P, T]:
    """Return a function of the public API whose own errors show the user's frames; so do those
    about a file that it was given."""

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except LowtideError as error:
            raise through_user_lines(error) from error.__cause__
        except OSError as error:
            if config.current().debug.topics or not _is_about_argument(error, args):
                raise
            raise error.with_traceback(None) from error.__cause__

    return run


def _is_about_argument(error: OSError, args: tuple[object, ...]) -> bool:
    """Return whether the file of the error is an argument: no function of the user's opened it."""
    paths = [str(x) for x in args if isinstance(x, str | Path)]
    return error.filename is not None and error.filename in paths


def _entry(loc: Loc, below: TracebackType | None) -> TracebackType | None:
    """Return a traceback entry at this place, in front of the others."""
    try:
        exec(_raising(loc), {"marker": _Marker})
    except _Marker as marker:
        made = marker.__traceback__
        last = made.tb_next if made is not None else None
        try:
            if last is not None:
                return TracebackType(below, last.tb_frame, last.tb_lasti, last.tb_lineno)
        finally:
            del made, last
    return below


def _raising(loc: Loc) -> CodeType:
    begin, end = loc.column - 1, max(len(loc.text.rstrip()), loc.column)
    place = {"lineno": loc.line, "end_lineno": loc.line, "col_offset": begin, "end_col_offset": end}
    raised = ast.Raise(ast.Name("marker", ast.Load(), **place), None, **place)
    code = compile(ast.Module([raised], []), loc.file, "exec")
    return code.replace(co_name=loc.function or "<compiled>")


class _Marker(Exception):
    pass
