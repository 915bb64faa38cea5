"""A Python function's source as an AST whose every node knows its place in the user's file.

In: a function object. Out: a `FunctionSource`. Raises CompileError if the source is not available
(exec, REPL, C functions). Decorated, indented and nested functions keep their true lines and
columns: the block is put under an `if 1:` instead of being dedented.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from lowtide.errors import CompileError, Loc
from lowtide.frontend.script.private_names import class_around, mangle, mangle_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """The parsed source. `lines`: the block's lines. `first_line`: the number of the first."""

    node: ast.FunctionDef | ast.Lambda
    file: str
    lines: tuple[str, ...]
    first_line: int
    line_shift: int  # file line = node.lineno + line_shift
    origin: Callable[[int, int], Loc | None] | None = None  # line, byte in it → the author's place

    def loc(self, node: ast.AST) -> Loc:
        """Return the location of a node in the user's file."""
        lineno: int = getattr(node, "lineno", self.node.lineno)
        offset: int = getattr(node, "col_offset", 0)
        line = lineno + self.line_shift
        index = line - self.first_line
        text = self.lines[index].rstrip("\n") if 0 <= index < len(self.lines) else ""
        column = len(text.encode()[:offset].decode(errors="ignore")) + 1
        found = Loc(self.file, line, column, text, getattr(self.node, "name", "<lambda>"))
        if self.origin is None:
            return found
        return replace(found, origin=functools.partial(self.origin, line, offset))


def mark_of(obj: object, name: str) -> Any:
    """Return an attribute by which this package marks its own objects; None for others, whose
    `__getattr__` may raise anything."""
    is_there = inspect.getattr_static(obj, name, None) is not None
    return getattr(obj, name, None) if is_there else None


def unwrap(fn: Callable[..., Any]) -> FunctionType:
    """Return the plain Python function behind a function, a bound method or an object of Lowtide's.

    An object of Lowtide's has it as `__lowtide_function__`, one of `script_if_tracing` as
    torch.jit's own does. Raises CompileError.
    """
    if hasattr(fn, "__script_if_tracing_wrapper"):
        fn = cast("Any", fn).__original_fn
    own = mark_of(fn, "__lowtide_function__")
    if own is not None:
        return unwrap(own)
    if isinstance(fn, MethodType):
        return unwrap(fn.__func__)
    if isinstance(fn, FunctionType):
        return fn
    name = getattr(fn, "__name__", None) or type(fn).__name__
    raise CompileError(
        f"{name!r} is not a Python function, so there is no source to compile",
        remedy="a `def`",
    )


def is_decorated(fn: FunctionType) -> bool:
    """Return whether it is a wrapper that passes all its arguments on (`functools.wraps`)."""
    wrapped = getattr(fn, "__wrapped__", None)
    takes_all = fn.__code__.co_flags & inspect.CO_VARARGS
    return isinstance(wrapped, FunctionType) and bool(takes_all)


def decorated(fn: FunctionType) -> FunctionType:
    """Return the function under its decorators, whose parameters a caller sees."""
    return decorated(cast("Any", fn).__wrapped__) if is_decorated(fn) else fn


def parameters_of(fn: FunctionType) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a caller sees."""
    return inspect.signature(decorated(fn), follow_wrapped=False).parameters


_DEF = re.compile(r"\s*(async\s+)?def\b")
_STDLIB = sysconfig.get_path("stdlib")
_OWN = str(Path(__file__).parents[2])  # of the package, whose tests are elsewhere
_PACKAGES = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_KNOWN = frozenset({"torch", "lowtide"})


def is_stdlib(fn: FunctionType | MethodType) -> bool:
    """Return whether the function is in Python's standard library, or in this package."""
    file = fn.__code__.co_filename
    if file.startswith(_OWN):
        return True
    is_own = file.startswith((_STDLIB, "<frozen"))
    return is_own and not file.startswith(_PACKAGES)


def is_installed(obj: object) -> bool:
    """Return whether it is from an installed package other than this one and PyTorch.
    `torch.distributions` counts as installed: it is Python throughout and uses `try`."""
    module = str(getattr(obj, "__module__", None))
    root = module.partition(".")[0]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, root)]
    is_known = root in _KNOWN and not module.startswith("torch.distributions")
    return not is_known and any(map(is_installed_file, files))


# Modules of the standard library whose functions Python runs.
_LIBRARY = frozenset(
    {"bisect", "datetime", "hashlib", "heapq", "json", "logging", "os", "posixpath", "ntpath"}
) | {"random", "re", "statistics", "string", "textwrap", "time", "uuid"}


def is_of_library(obj: object) -> bool:
    """Return whether it is a function, or a method of an object, of one of these modules."""
    owner = getattr(obj, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        owner = obj
    module = getattr(owner, "__module__", None) or type(owner).__module__
    return str(module).partition(".")[0].removeprefix("_") in _LIBRARY


def is_installed_file(file: str | None) -> bool:
    """Return whether a file is in a directory of installed packages."""
    return not _INSTALLED.isdisjoint(Path(file or "").parts)


SOURCE: Final = "__lowtide_source__"  # the attribute of a function that has no file of its own


def has_own_source(fn: object) -> bool:
    """Return whether the function was made from a file of a program: Python never runs its code."""
    return isinstance(fn, FunctionType) and SOURCE in vars(fn)


def read_source(fn: FunctionType) -> FunctionSource:
    """Return the parsed source of a function's present code. Raises CompileError if there is
    none."""
    given: FunctionSource | None = vars(fn).get(SOURCE)
    if given is not None:
        return given
    return _read_source(fn.__code__, fn.__code__.co_filename, fn.__qualname__)


@functools.lru_cache(maxsize=2048)
def _read_source(code: CodeType, file: str, qualname: str) -> FunctionSource:
    """Return the parsed source. `file`: of the code, which comparisons of code objects ignore."""
    if code.co_name == "<lambda>":
        return _read_lambda(code)
    try:
        lines, first_line = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError):
        raise CompileError(
            f"the source of {qualname!r} ({file}, line {code.co_firstlineno}) is not available",
            remedy="the function in a .py file or a notebook",
        ) from None
    node, extra_lines = _parse(lines, code)
    return FunctionSource(
        node=node,
        file=file,
        lines=tuple(lines),
        first_line=first_line,
        line_shift=first_line - 1 - extra_lines,
    )


def _read_lambda(code: CodeType) -> FunctionSource:
    """Find a lambda in its file: the innermost one that contains the locations of all its ops."""
    lines = tuple(linecache.getlines(code.co_filename))
    places = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    found = _beginning_with(code, lines)
    if len(found) > 1:
        found = [n for n in found if places and all(_is_within(p, n.body) for p in places)]
    if not found:
        raise CompileError(
            "a lambda whose source is not found is not compiled",
            _code_loc(code),
            "def f(...): return ...",
        )
    return FunctionSource(
        node=max(found, key=lambda n: n.col_offset),
        file=code.co_filename,
        lines=lines,
        first_line=1,
        line_shift=0,
    )


def _beginning_with(code: CodeType, lines: tuple[str, ...]) -> list[ast.Lambda]:
    """Return the lambdas that begin in the first line of the code."""
    return [n for n in _lambdas(lines) if n.lineno == code.co_firstlineno]


@functools.lru_cache(maxsize=64)
def _lambdas(lines: tuple[str, ...]) -> tuple[ast.Lambda, ...]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ()
    mangle_tree(tree)
    return tuple(n for n in ast.walk(tree) if isinstance(n, ast.Lambda))


def _is_within(place: tuple[Any, ...], body: ast.expr) -> bool:
    line, end_line, column, end_column = place
    begins = (body.lineno, body.col_offset) <= (line, column)
    return begins and (end_line, end_column) <= (body.end_lineno, body.end_col_offset)


def _parse(lines: list[str], code: CodeType) -> tuple[ast.FunctionDef, int]:
    text = "".join(lines)
    indented = text[:1].isspace()
    whole = "if 1:\n" + text if indented else text
    try:
        tree = ast.parse(whole, type_comments=True)
    except SyntaxError:
        try:
            tree = ast.parse(whole)  # a comment that only looks like a type
        except SyntaxError:  # a comment or a string that begins left of the function
            tree, indented = ast.parse(textwrap.dedent(text)), False
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if "__" in text:
                mangle(node, class_around(code.co_qualname))
            return node, 1 if indented else 0
        if isinstance(node, ast.AsyncFunctionDef):
            break
    raise CompileError(
        f"`async def {code.co_name}` is not compiled", _code_loc(code), f"def {code.co_name}(...)"
    )


def _code_loc(code: CodeType) -> Loc:
    if code.co_name == "<lambda>":
        return _lambda_loc(code)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError):
        return Loc(code.co_filename, code.co_firstlineno)
    skipped = next((k for k, x in enumerate(lines) if _DEF.match(x)), 0)
    text = lines[skipped].rstrip("\n")
    column = len(text) - len(text.lstrip()) + 1
    return Loc(code.co_filename, first + skipped, column, text, code.co_name)


def _lambda_loc(code: CodeType) -> Loc:
    """Return the line, at the first lambda there: which of several it is, is unknown."""
    lines = tuple(linecache.getlines(code.co_filename))
    line = code.co_firstlineno
    text = lines[line - 1].rstrip("\n") if line <= len(lines) else ""
    found = _beginning_with(code, lines)
    offset = min((n.col_offset for n in found), default=0)
    column = len(text.encode()[:offset].decode(errors="ignore")) + 1
    return Loc(code.co_filename, line, column, text, code.co_name)
