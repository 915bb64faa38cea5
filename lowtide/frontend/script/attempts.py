"""Tries to compile a part of the source, where there is an alternative if it fails.

In: a function that compiles something. Out: its result, or its CompileError. After an error, the
ops, frames and variables that it added are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lowtide.errors import CompileError
from lowtide.frontend.script.context import Context

Result = TypeVar("Result")
Other = TypeVar("Other")


def attempt(c: Context, compile_it: Callable[[], Result]) -> Result | CompileError:
    """Return the result of `compile_it`, or its CompileError."""
    block, variables = c.builder.block, dict(c.frame.vars)
    op_count, depth, captured = len(block.ops), len(c.frames), len(c.captured)
    assumed, known, seen, calls = c.assumed, len(c.assumed.found), len(c.assumed.log), len(c.opaque)
    try:
        return compile_it()
    except CompileError as error:
        del block.ops[op_count:], c.frames[depth:]
        c.frame.vars = variables
        del assumed.log[seen:], c.opaque[calls:]
        for key in list(assumed.found)[known:]:
            del assumed.found[key]
        for path in list(c.captured)[captured:]:
            del c.captured[path]
        return error


def attempt_or(
    c: Context,
    compile_it: Callable[[], Result],
    otherwise: Callable[[str], Other],
    is_theirs: Callable[[str], bool],
) -> Result | Other:
    """Return the result of `compile_it`, or of `otherwise`, given the error. An error in the user's
    own code is raised; `is_theirs` tells whether a file is a library's."""
    found = attempt(c, compile_it)
    if not isinstance(found, CompileError):
        return found
    if found.loc.line and not is_theirs(found.loc.file):
        raise found
    return otherwise(found.problem)
