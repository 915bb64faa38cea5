"""Every exception that Lowtide raises on purpose. All derive from `LowtideError`.

In: what went wrong, where in the user's file, and what to write instead.
Out: an exception whose text shows the user's own line with a caret.

    CompileError: model.py:12: `yield` is not compiled
        yield x
        ^
    write instead: return a list or a tuple
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

# Where installed packages are, and the standard library.
_INSTALLED: Final = tuple(
    dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
)


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's file: `line` and `column` count from 1; `text` is that source line.

    `caller`: where the function it stands in was called, if it was inlined. `origin`: finds the
    author's own line where this one is of code that was made from it."""

    file: str
    line: int
    column: int = 1
    text: str = ""
    function: str = ""
    caller: Loc | None = None
    origin: Callable[[], Loc | None] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{cell_of(self.file) or self.file}:{self.line}"

    def of_user(self) -> Loc:
        """Return the nearest place outside of installed packages: this one, or a call that led to
        it; this one if there is none."""
        place: Loc | None = self
        while place is not None and place.file.startswith(_INSTALLED):
            place = place.caller
        return self if place is None else place

    def shown(self) -> str:
        """Return the user's place as text: relative to the current folder or to the folder of
        installed packages, if it is in there."""
        place = self.of_user()
        if cell_of(place.file):
            return str(place)
        for folder in (*_INSTALLED, os.getcwd()):
            if place.file.startswith(folder + os.sep):
                return f"{place.file[len(folder) + 1 :]}:{place.line}"
        return str(place)

    def written_as(self) -> str:
        """Return the author's line as a line of text; empty if it is not known."""
        found = None if self.origin is None else self.origin()
        return "" if found is None else f"written as {_quoted(found)}"


def cell_of(file: str) -> str:
    """Return the name of the notebook's cell that IPython keeps in this file, such as "Cell In[3]";
    "" if it is none."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if find is None else find()
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    return "" if named is None else " ".join(named(file) or ())


UNKNOWN_LOC = Loc(file="<unknown>", line=0)


class LowtideError(Exception):
    """The root of Lowtide's own exceptions."""


class CompileError(LowtideError):
    """The program cannot be compiled: the user's line with a caret, what is wrong, the remedy."""

    def __init__(
        self,
        problem: str,
        loc: Loc = UNKNOWN_LOC,
        remedy: str = "",
        callers: tuple[Loc, ...] = (),
    ) -> None:
        self.problem = problem
        self.loc = loc
        self.remedy = remedy
        self.callers = callers
        calls = "".join(f"\ncalled from {c}: {c.text.strip()}" for c in callers)
        written = loc.written_as()
        origin = f"\n{written}" if written else ""
        super().__init__(_with_caret(problem, loc, remedy) + origin + calls)

    def called_from(self, loc: Loc) -> CompileError:
        """The same error, in a function that is called at that place."""
        return type(self)(self.problem, self.loc, self.remedy, (*self.callers, loc))


class ExportError(CompileError):
    """A program cannot be exported: everything that is in the way, each with its line."""

    def __init__(self, reasons: Sequence[tuple[Loc, str]]) -> None:
        self.reasons = tuple(reasons)
        (loc, problem), *others = reasons
        more = "".join(f"\n{where}: {what}" for where, what in others)
        super().__init__(f"cannot be exported: {problem}{more}", loc)


class BackendError(LowtideError):
    """The C compiler failed.

    `compiler_output`: its own words. `source_path`: the generated source.
    """

    def __init__(self, problem: str, compiler_output: str = "", source_path: str = "") -> None:
        self.problem = problem
        self.compiler_output = compiler_output
        self.source_path = source_path
        kept = f"\nthe generated source was kept at {source_path}" if source_path else ""
        words = f"\n{compiler_output.strip()}" if compiler_output.strip() else ""
        super().__init__(f"{problem}{words}{kept}")


class LoadError(LowtideError):
    """A file cannot be loaded: it is damaged, of another version, or contains something that is not
    allowed. Nothing has been changed."""

    def __init__(self, problem: str) -> None:
        shown = problem if len(problem) <= 800 else f"{problem[:797]}..."
        super().__init__("".join(c if c.isprintable() else "?" for c in shown))


class BudgetError(LowtideError):
    """A call does not fit in its budget. Nothing has been run or allocated.

    `least_bytes`: the least peak that can be reached. `holders`: the buffers at that peak, a line
    each.
    """

    def __init__(
        self, name: str, budget_bytes: int, least_bytes: int, holders: Sequence[str]
    ) -> None:
        self.name = name
        self.budget_bytes = budget_bytes
        self.least_bytes = least_bytes
        self.holders = tuple(holders)
        lines = [
            f"{name}() needs at least {least_bytes:,} bytes, its budget is {budget_bytes:,}",
            "at that peak it holds:",
            *self.holders,
            f"write instead: budget={least_bytes}, or smaller inputs",
        ]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, int, int, tuple[str, ...]]]:
        return type(self), (self.name, self.budget_bytes, self.least_bytes, self.holders)


class ScopeError(LowtideError, RuntimeError):
    """A dispose scope is used after its end, or entered twice."""


class DisposedTensorError(LowtideError, RuntimeError):
    """A tensor is used after it was disposed.

    `birth`: the user's line that made the tensor. `end`: the line at which it was disposed. Either
    has line 0 if it is unknown. `how`: in words, what disposed it.
    """

    def __init__(self, birth: Loc, end: Loc, how: str) -> None:
        self.birth = birth
        self.end = end
        self.how = how
        made = f"\nmade at {_quoted(birth)}" if birth.line else "\nmade where no scope saw it"
        super().__init__(
            f"this tensor was disposed at {_quoted(end)}, {how}{made}\n"
            "write instead: move it out before that line, by `move_to_outer_dispose_scope(t)` or "
            "`detach_from_dispose_scope(t)`, or keep `alias(t)`"
        )

    def __reduce__(self) -> tuple[type[DisposedTensorError], tuple[Loc, Loc, str]]:
        return DisposedTensorError, (self.birth, self.end, self.how)


class VerifyError(LowtideError):
    """An internal fault: a pass left IR that breaks a rule. Names the pass and marks the op."""


def _quoted(loc: Loc) -> str:
    return f"{loc}: `{loc.text.strip()}`" if loc.text.strip() else str(loc)


def _with_caret(problem: str, loc: Loc, remedy: str) -> str:
    parts = [f"{loc}: {problem}" if loc.line else problem]
    if loc.text:
        stripped = loc.text.lstrip()
        indent = len(loc.text) - len(stripped)
        parts.append(f"    {stripped.rstrip()}")
        parts.append("    " + " " * max(loc.column - 1 - indent, 0) + "^")
    if remedy:
        parts.append(f"write instead: {remedy}")
    return "\n".join(parts)
