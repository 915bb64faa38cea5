"""The tables of the language reference as Markdown, one function each.

In: the compiler's own tables. Out: Markdown, for `{{name}}` in the template.

    operators()   →   | `+` | `-` | … and which Python operator each is
    outside()     →   | syntax | message | write instead |
"""

from __future__ import annotations

import ast
import builtins
import cmath
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from lowtide.frontend.reference.spelling import (
    ANNOTATIONS,
    GUARDS,
    OUTSIDE_SYNTAX,
    SAME_AS,
    SYMBOLS,
    spelt,
)
from lowtide.frontend.script import decorators, module_methods, types_from_annotations
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import EXPRESSIONS, OUTSIDE, STATEMENTS
from lowtide.frontend.script.context_managers import CONTEXT_MANAGERS
from lowtide.frontend.script.methods import has_method
from lowtide.frontend.script.module_containers import METHODS
from lowtide.frontend.script.module_state import Kind
from lowtide.frontend.script.operators import BINARY, COMPARE, UNARY
from lowtide.frontend.script.types_from_annotations import GENERIC, PLAIN, type_from_annotation
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ops.library import LIBRARY
from lowtide.ops.registry import OpRecord, all_records

FILLED_BY: Final = (module_methods, types_from_annotations)  # importing these fills the tables


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in r)} |" for r in lines
    )


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _first_sentence(found: object) -> str:
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return text.removesuffix(".")


# ---- types ----------------------------------------------------------------------------------


def plain_types() -> str:
    """Annotations that are one name."""
    rows = [(f"`{spelt(name)}`", f"`{type_}`") for name, type_ in PLAIN.items()]
    return _table(("annotation", "type in the program"), rows)


def generic_types() -> str:
    """Annotations with brackets, in every style."""
    rows: list[tuple[str, str]] = []
    for origin in GENERIC:
        styles = ANNOTATIONS[origin]
        found = {str(type_from_annotation(style, vars(typing) | SAME_AS)) for style in styles}
        assert len(found) == 1, (origin, found)
        rows.append((_code(styles), f"`{found.pop()}`"))
    merged: dict[str, list[str]] = {}
    for styles, type_ in rows:
        merged.setdefault(type_, []).append(styles)
    return _table(
        ("annotation", "type in the program"),
        [(", ".join(styles), type_) for type_, styles in merged.items()],
    )


# ---- syntax ---------------------------------------------------------------------------------

_HIDDEN = (ast.Starred, ast.Expr)  # an error where it stands alone · nothing to say


def _syntax(handlers: dict[type[Any], Callable[..., Any]]) -> str:
    rows: dict[str, list[str]] = {}
    for kind, handler in handlers.items():
        if kind not in _HIDDEN:
            rows.setdefault(_first_sentence(handler), []).append(kind.__name__)
    return "\n".join(f"- {text}" for text in rows)


def statements() -> str:
    """Return the table of statements, described by the docstrings of the functions that compile
    them."""
    return _syntax(cast("Any", STATEMENTS))


def expressions() -> str:
    """Return the table of expressions, described as statements are."""
    return _syntax(cast("Any", {k: v for k, v in EXPRESSIONS.items() if not _is_inner(k)}))


def operators() -> str:
    """Return the operators, by kind."""
    kinds = (("binary, and with `=`", BINARY), ("unary", UNARY), ("comparison", COMPARE))
    rows = [(name, _code(SYMBOLS[kind] for kind in table)) for name, table in kinds]
    rows[1] = ("unary", f"{rows[1][1]}, `not`")
    rows[2] = ("comparison", f"{rows[2][1]}, `is`, `is not`, `in`, `not in`; chains of these")
    rows.append(("logical", "`and`, `or`"))
    return _table(("kind", "operators"), rows)


def outside() -> str:
    """Return the table of what is refused, and what to write instead."""
    rows = {
        OUTSIDE_SYNTAX[kind]: (problem, f"{remedy}") for kind, (problem, remedy) in OUTSIDE.items()
    }
    return _table(
        ("syntax", "message", "write instead"),
        [(f"`{syntax}`", *row) for syntax, row in rows.items()],
    )


# ---- names ----------------------------------------------------------------------------------


def builtin_names() -> str:
    """Python's builtins that compiled code may call."""
    return _code(sorted(spelt(b) for b in BUILTINS if _is_builtin(b)))


def other_names() -> str:
    """Functions of other modules that compiled code may call."""
    return _code(sorted({spelt(b) for b in BUILTINS if not _is_builtin(b) and not _is_inner(b)}))


def _is_builtin(obj: object) -> bool:
    return getattr(builtins, getattr(obj, "__name__", ""), None) is obj


def _is_inner(obj: object) -> bool:
    """Return whether users cannot name the object: it implements a call in the code of old
    archives."""
    return str(getattr(obj, "__module__", "")).startswith("lowtide.frontend.torchscript.")


_METHODS: dict[str, tuple[t.Type, type]] = {
    "list": (t.ListType(t.ANY), list),
    "dict": (t.DictType(t.ANY, t.ANY), dict),
    "tuple": (t.TupleType(()), tuple),
    "str": (t.STR, str),
    "int": (t.INT, int),
    "float": (t.FLOAT, float),
    "complex": (t.COMPLEX, complex),
    "bool": (t.BOOL, bool),
}


def methods() -> str:
    """Return the methods of Python's own types."""
    rows: list[tuple[str, str]] = []
    for name, (type_, cls) in _METHODS.items():
        names = [m for m in dir(cls) if not m.startswith("_")]
        called = [m for m in names if callable(getattr(cls, m)) and has_method(type_, m)]
        rows.append((f"`{name}`", _code(called)))
    return _table(("type", "methods"), rows)


def missing_string_methods() -> str:
    """Methods of strings that are not compiled."""
    return _code(m for m in dir(str) if not m.startswith("_") and not has_method(t.STR, m))


def math_functions() -> str:
    """Return the functions of math and cmath."""
    rows: list[tuple[str, str]] = []
    for module in (math, cmath):
        name = module.__name__
        rows.append((f"`{name}`", _code(f for f in dir(module) if opdefs.find(f"{name}.{f}"))))
    return _table(("module", "functions"), rows)


def context_managers() -> str:
    """PyTorch's context managers that `with` takes."""
    return _code(f"torch.{name}" for name in CONTEXT_MANAGERS.values())


# ---- modules --------------------------------------------------------------------------------


def marks() -> str:
    """Return the marks on methods and classes."""
    names = [n for n in decorators.__all__ if n not in ("MODIFIER", "Final")]
    rows = [(f"`lt.{n}`", _first_sentence(getattr(decorators, n))) for n in names]
    rows.append(("`lt.Final`", "Python's own `Final`: such an attribute is a constant"))
    return _table(("name", "meaning"), sorted(rows))


def module_methods_of_torch() -> str:
    """Methods of nn.Module and its containers that are known while compiling."""
    return _code(sorted(m for m in METHODS if not m.startswith("_")))


def guards() -> str:
    """Return the facts about modules that a program relies on."""
    return "\n".join(f"- {GUARDS[kind]}" for kind in typing.get_args(Kind))


# ---- PyTorch --------------------------------------------------------------------------------


def records() -> str:
    """Return the functions of PyTorch that become kernels, by family."""
    families: dict[str, list[OpRecord]] = {}
    for record in _compiled():
        if record.lower is not None:
            families.setdefault(record.lower.__module__.rpartition(".")[2], []).append(record)
    return _table(
        ("family", "names"), [(name, _names(found)) for name, found in sorted(families.items())]
    )


def _names(found: Sequence[OpRecord]) -> str:
    """Functions with the roots under which they are reached; a method that is a function too is
    named once."""
    sources = dict.fromkeys(s for record in found for s in record.sources)
    roots = {"torch": "torch.", "F": "F.", "Tensor": "Tensor."}
    seen: set[str] = set()
    parts: list[str] = []
    for root, prefix in roots.items():
        names = [s.removeprefix(prefix) for s in sources if s.startswith(prefix)]
        new = [n for n in sorted(names) if n not in seen and not n.startswith("functional.")]
        seen.update(new)
        if new:
            parts.append(f"{root}: {_code(new)}")
    return " · ".join(parts)


def count() -> str:
    """Return the number of records that become kernels."""
    return str(len(_compiled()))


def _compiled() -> list[OpRecord]:
    return [r for r in all_records() if r.lower is not None and r.kind != LIBRARY]


TABLES: Final[dict[str, Callable[[], str]]] = {
    f.__name__: f
    for f in (
        *(plain_types, generic_types, statements, expressions, operators, outside),
        *(builtin_names, other_names, methods, missing_string_methods, math_functions),
        *(context_managers, marks, module_methods_of_torch, guards, records, count),
    )
}
