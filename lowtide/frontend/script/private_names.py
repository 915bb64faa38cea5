"""Private names (`__x`), mangled as by Python's compiler.

In: a function's AST, and the name of the class whose body it is in. Out: the AST with the names
that the run knows.

    class Net:
        def f(self): return self.__w      →  self._Net__w

Invariant: names that end in two underscores are as they were; so are keywords of calls, which
Python leaves alone, and the name of the function itself, which is its `__name__`. A class of
underscores only mangles nothing.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import Any, Final, cast

_NAMES: Final[dict[type[ast.AST], str]] = {
    ast.Attribute: "attr",
    ast.Name: "id",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.alias: "asname",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
}


def class_around(qualname: str) -> str:
    """Return the innermost class around a function of this qualified name, "" if there is none."""
    parts = qualname.split(".")
    classes = [a for a, b in pairwise(parts) if "<locals>" not in (a, b)]
    return classes[-1] if classes else ""


def mangled(name: str, cls: str) -> str:
    """Return the name as code in that class reads it."""
    cls = cls.lstrip("_")
    is_private = name.startswith("__") and not name.endswith("__") and "." not in name
    return f"_{cls}{name}" if cls and is_private else name


def mangle(root: ast.AST, cls: str) -> None:
    """Mangle every private name below the node, which is in the body of `cls`."""
    for child in ast.iter_child_nodes(root):
        _mangle(child, cls)


def mangle_tree(tree: ast.AST) -> None:
    """Mangle every private name of a file."""
    mangle(tree, "")


def _mangle(node: Any, cls: str) -> None:
    field = _NAMES.get(cast("type[ast.AST]", type(node)))
    name: str | None = getattr(node, field) if field is not None else None
    if field is not None and name is not None:
        setattr(node, field, mangled(name, cls))
    elif isinstance(node, ast.Global | ast.Nonlocal):
        node.names = [mangled(n, cls) for n in node.names]
    for child in ast.iter_child_nodes(node):
        _mangle(child, node.name if isinstance(node, ast.ClassDef) else cls)
