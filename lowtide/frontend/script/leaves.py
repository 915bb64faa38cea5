"""Records classes whose methods were inlined because they have no subclasses.

In: a Function. Out: these classes; and whether one of them has been derived from since, so that
an object may be of a class that the program knows nothing of.

    class Holder: shape: Shape      %s: Class['m.Shape'] = attr.get(%holder) {name="shape"}
    leaf_classes(fn) == (Shape,)    class Square(Shape) defined later: has_subclasses(...) is True
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from lowtide.frontend.script.classes import class_of
from lowtide.ir import types as t
from lowtide.ir.core import Function

_EXACT = ("object.new", "enum.const", "enum.get")  # ops that say which class it is


def leaf_classes(fn: Function) -> tuple[type[Any], ...]:
    """Return the classes of values in the program that have no subclasses."""
    results = (v for op in fn.walk() if op.name not in _EXACT for v in op.results)
    found = {class_of(part) for v in results for part in t.types_in(v.type)} - {None}
    return tuple(
        cls
        for cls in found
        if cls is not None
        and not issubclass(cls, torch.nn.Module | enum.Enum)
        and not has_subclasses((cls,))
    )


def has_subclasses(classes: Sequence[type[Any]]) -> bool:
    """Return whether one of these classes has been subclassed."""
    return any(type.__subclasses__(cls) for cls in classes)
