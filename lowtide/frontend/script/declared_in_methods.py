"""Attributes that a class declares in an assignment: `self.x: int = 3`.

In: a class. Out: the annotations of `self.name: T = …` in its `__init__`, with the names they use.

    def __init__(self):
        self.sizes: List[int] = []      →  {"sizes": ("List[int]", …)}
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from types import FunctionType

from lowtide.errors import CompileError
from lowtide.frontend.script.functions import outer_names
from lowtide.frontend.script.source import read_source
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir.types import Type


def declared_in_init(cls: type, name: str) -> Type | None:
    """Return the type that a class, or one that it derives from, declares in its `__init__`."""
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if isinstance(init, FunctionType) and name in _annotations(init):
            return type_from_annotation(_annotations(init)[name], outer_names(init))
    return None


@functools.lru_cache(maxsize=1024)
def _annotations(init: FunctionType) -> Mapping[str, str]:
    if init.__module__.startswith("torch.") or init.__code__.co_filename.startswith("<"):
        return {}
    try:
        node = read_source(init).node
    except CompileError:
        return {}
    first = node.args.args[0].arg if node.args.args else ""
    found: dict[str, str] = {}
    for inner in ast.walk(node):
        match inner:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id), attr=attr)) if id == first:
                found[attr] = ast.unparse(inner.annotation)
            case _:
                pass
    return found
