"""Frames: opening a Python function, compiling its statements, what it returns.

In: a plain Python function whose parameters are bound. Out: the value it returns.
"""

from __future__ import annotations

import builtins
from types import FunctionType

from lowtide.frontend.script.context import (
    RAISED,
    RETURN_VALUE,
    RETURNED,
    Context,
    Frame,
)
from lowtide.frontend.script.flow import choose, run
from lowtide.frontend.script.source import FunctionSource, read_source
from lowtide.frontend.script.syntax import check_source
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value


def push_frame(c: Context, fn: FunctionType, source: FunctionSource | None = None) -> Frame:
    """Opens a function; its variables are still to be bound."""
    found = source or read_source(fn)
    check_source(found)
    code = fn.__code__
    frame = Frame(
        fn=fn,
        source=found,
        names=outer_names(fn),
        local_names=frozenset((*code.co_varnames, *code.co_cellvars)),
    )
    c.frames.append(frame)
    return frame


def outer_names(fn: FunctionType) -> dict[str, object]:
    """What names mean that the function does not assign: closure, then globals, then builtins."""
    names = dict(vars(builtins))
    names.update(fn.__globals__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            names.pop(name, None)  # not assigned yet
    return names


def compile_body(c: Context) -> Value:
    """Compiles the statements of the innermost function; gives what it returns."""
    frame = c.frame
    frame.vars[RETURNED] = frame.vars[RAISED] = c.const(False)
    run(c, c.steps(frame.source.node.body))
    returned = frame.vars[RETURNED]
    value = frame.vars.get(RETURN_VALUE)
    assert isinstance(returned, Value)
    known = c.builder.constant(returned)
    if known is True and isinstance(value, Value):
        return value
    if known is UNKNOWN and isinstance(value, Value):
        kept = value
        return choose(c, frame.source.node, returned, lambda: kept, lambda: c.const(None))
    raised = frame.vars[RAISED]
    if isinstance(raised, Value) and c.builder.constant(raised) is True:
        return c.builder.undef()
    return c.const(None)
