"""Describes what holds a tensor: a local, a global, a closure or an attribute, with its line.

In: the holder and what it holds. Out: a text such as "list `losses` (train.py:12)". The line is
that of the first assignment to the name, found by parsing the source file, if there is one.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import os
import sys
import types
from typing import Any

from lowtide.tools.profiler.referrers import Above


def in_module(module: Any, name: str, words: str) -> str:
    """Describe a global. `words`: the kind of object, "" for the tensor itself."""
    file = str(getattr(module, "__file__", None) or "")
    kind = words or "global "
    where = f" of {module.__name__}" if module.__name__ != "__main__" else ""
    return f"{kind}`{name}`{where}{_place(file, name, 0)}"


def in_frame(frame: types.FrameType, held: Any, words: str) -> list[str]:
    """Describe the names of `held` in a frame: locals, and variables of closures."""
    if frame.f_code.co_name == "<module>":  # its locals are the globals
        if frame.f_globals.get("__name__") is None:
            return []
        module = types.SimpleNamespace(
            __name__=frame.f_globals["__name__"], __file__=frame.f_code.co_filename
        )
        names = [name for name, value in list(frame.f_globals.items()) if value is held]
        return [in_module(module, name, words) for name in names]
    code = frame.f_code
    names = [name for name, value in locals_of(frame).items() if value is held]
    return [
        f"{words or 'local '}`{name}` of {code.co_qualname}"
        f"{_place(code.co_filename, name, code.co_firstlineno)}"
        for name in names
    ]


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Return a copy of a frame's locals.

    Before Python 3.13 `f_locals` makes a dict that stays with the frame and keeps its values alive.
    It is emptied here, unless it existed before."""
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    before = gc.get_referents(frame)
    made = frame.f_locals
    copy = dict(made)
    if not any(one is made for one in before):
        made.clear()
    return copy


def in_closure(
    cell: types.CellType, words: str, above: Above
) -> list[tuple[types.FunctionType, str]]:
    """Return the functions whose closure has this cell, and a text with its name in each."""
    texts: list[tuple[types.FunctionType, str]] = []
    for closure in above.of(cell):
        if not isinstance(closure, tuple):
            continue
        for function in above.of(closure):
            if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                code = function.__code__
                name = code.co_freevars[_index(function.__closure__, cell)]
                where = f" ({_short(code.co_filename)}:{code.co_firstlineno})"
                what = f"{words.strip()} in " if words else ""
                text = f"{what}closure `{name}` of {function.__qualname__}{where}"
                texts.append((function, text))
    return texts


def _index(cells: tuple[types.CellType, ...] | None, cell: types.CellType) -> int:
    return next(i for i, one in enumerate(cells or ()) if one is cell)


def in_class(owner: Any, held: Any, words: str) -> list[str] | None:
    """Describe a module, class or function with `held` as an attribute or a default argument."""
    if isinstance(owner, types.ModuleType):
        return [in_module(owner, k, words) for k, v in list(vars(owner).items()) if v is held]
    if isinstance(owner, types.FunctionType):
        if held is owner.__defaults__:
            inner = words.removesuffix("tuple ")  # the tuple of defaults means nothing to users
            return [f"{inner}default argument of {owner.__qualname__}"]
        if held is owner.__kwdefaults__:
            return [f"{words.removesuffix('dict ')}default argument of {owner.__qualname__}"]
        return None
    namespace: dict[str, Any] = dict(owner.__dict__)
    names = [name for name, value in namespace.items() if value is held]
    return [f"{words}attribute `{name}` of class {owner.__qualname__}" for name in names] or None


def error_of(frame: types.FrameType, above: Above) -> BaseException | None:
    """Return the exception whose traceback keeps a frame alive; None if there is none."""
    for trace in above.of(frame):
        if not isinstance(trace, types.TracebackType):
            continue
        holder: Any = trace
        for _ in range(100):  # up to the first entry of the traceback
            around = above.of(holder)
            for thing in around:
                if isinstance(thing, BaseException) and thing.__traceback__ is holder:
                    return thing
            before = [thing for thing in around if isinstance(thing, types.TracebackType)]
            if not before:
                break
            holder = before[0]
    return None


def kind_of(thing: Any) -> str:
    """Return the name of an object's class."""
    return type(thing).__qualname__


def _place(file: str, name: str, first_line: int) -> str:
    line = _assignments(file).get((name, _enclosing(file, first_line)), first_line)
    if not file:
        return ""
    return f" ({_short(file)}:{line})" if line else f" ({_short(file)})"


def _short(file: str) -> str:
    return os.path.basename(file)


def _enclosing(file: str, first_line: int) -> int:
    """Return the line of the `def` whose first line, with decorators, is `first_line`; 0 for a
    module."""
    return _functions(file).get(first_line, 0) if first_line else 0


@functools.cache
def _tree(file: str) -> ast.Module:
    try:
        with open(file, encoding="utf-8") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


@functools.cache
def _functions(file: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[first] = node.lineno
    return found


@functools.cache
def _assignments(file: str) -> dict[tuple[str, int], int]:
    """Return the lines of first assignments by (name, line of the enclosing def or 0)."""
    found: dict[tuple[str, int], int] = {}

    def visit(node: ast.AST, inside: int) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                found.setdefault((child.id, inside), child.lineno)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            visit(child, child.lineno if is_function else inside)  # type: ignore[union-attr]

    visit(_tree(file), 0)
    return found
