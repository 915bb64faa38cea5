"""Which variables a piece of source assigns or changes: what a loop must carry.

In: AST nodes. Out: names. `x[i] = v`, `x.add_(y)` and `xs.append(v)` count as assignments of `x`
and `xs`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

LIST_MUTATORS = frozenset(
    {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"}
)


def assigned_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that are assigned or changed anywhere in these nodes."""
    return {name for root in nodes for node in ast.walk(root) for name in _assigned(node)}


def is_inplace(method: str) -> bool:
    """Whether a tensor's method changes it: `add_`, `zero_`; but not `__len__`."""
    return method.endswith("_") and not method.endswith("__")


def _assigned(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id, ast.Store() | ast.Del()):
            yield id
        case ast.Subscript(value, _, ast.Store()):
            yield from _base(value)
        case ast.Call(ast.Attribute(ast.Name(id), attr)):
            if attr in LIST_MUTATORS or is_inplace(attr):
                yield id
        case _:
            pass


def _base(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
