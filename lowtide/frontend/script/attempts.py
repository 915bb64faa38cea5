"""Tries to compile a part of the source, where there is an alternative if it fails.

In: a function that compiles something. Out: what it gives, or its CompileError, with the ops,
frames and variables that it left behind taken away again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lowtide.errors import CompileError
from lowtide.frontend.script.context import Context

Result = TypeVar("Result")
Other = TypeVar("Other")


def attempt(c: Context, compile_it: Callable[[], Result]) -> Result | CompileError:
    """What `compile_it` gives, or why it does not compile."""
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
    """`compile_it`; `otherwise`, given why, where a file that `is_theirs` does not compile: not
    the user's own code, whose CompileError is raised."""
    found = attempt(c, compile_it)
    if not isinstance(found, CompileError):
        return found
    if found.loc.line and not is_theirs(found.loc.file):
        raise found
    return otherwise(found.problem)
