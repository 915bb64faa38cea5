"""Attributes of containers with classes of the user's: `class AttrDict(dict)` with `__getattr__`.

In: a value that stands for such an object, and a name. Out: the attribute's value; None for what
every dict, list or tuple has (`keys`, `append`), which is compiled as for these.

    self.cfg.scale     py.call(%cfg, %"scale") {target="builtins.getattr"}     read at each call
    CFG.scale          of a global: its value now, and an assumption that it stays

Invariant: of an argument only the items are known, so its own attributes are refused.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any, Final

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Node
from lowtide.ir.core import Value

_ABSENT: Final = object()
_USUAL: Final = (dict, list, tuple)


def own_attribute(c: Context, node: ast.AST, base: Value, name: str) -> Node | None:
    """Return the attribute's value, None for what every dict, list or tuple has."""
    obj, is_read = c.containers[base]
    usual = next(kind for kind in _USUAL if issubclass(type(obj), kind))
    static = inspect.getattr_static(obj, name, _ABSENT)
    if static is not _ABSENT and static is inspect.getattr_static(usual, name, _ABSENT):
        return None
    if is_read:
        return c.by_getattr(base, name)
    found: Any = getattr(obj, name, _ABSENT)
    if found is _ABSENT:
        return None
    c.assumed.note(obj, name, found)
    return c.python_object(node, found)


def own_item(c: Context, node: ast.Subscript, base: Value) -> Node | None:
    """Return `CFG["inner"]`, if it is such a container, too; None for other items."""
    obj, is_read = c.containers[base]
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if is_read or type(obj).__getitem__ is not dict.__getitem__ or key not in obj:
        return None
    found: Any = obj[key]
    is_container = issubclass(type(found), _USUAL)
    return c.python_object(node, found) if is_container else None
