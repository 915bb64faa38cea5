"""Captured parameters that belong to no module: global tensors, defaults, constants of traces.

In: an object and a path from it. Out: a parameter of the program being built, one per path. Every
call reads its value.

    WEIGHTS = torch.rand(3)          def f(%x: Tensor, %WEIGHTS: Tensor @ "@main.globals|WEIGHTS")
    def f(x): return x * WEIGHTS
    def g(x, w=torch.ones(3)): …     def f(%x: Tensor, %w: Tensor @ "@builtins.dict|w")
    def f(x): return g(x)
"""

from __future__ import annotations

import re
from typing import Any

from lowtide.frontend.script.context import Context
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import Type


def capture(c: Context, root: object, path: str, type_: Type) -> Value:
    """Return the captured parameter for the object at `path` from `root`, a module or a dict of
    globals."""
    whole = f"@{python_objects.name_of(root)}|{path}"
    if c.modules is not None:
        known = c.modules.capture(whole, None, type_)
    else:
        name = path.rpartition(".")[2]
        known = c.captured.get(whole) or c.captured.setdefault(whole, Value(name, type_))
    kind: type = root.__class__
    if kind is dict:
        c.assumed.note_read(root, path, known)
    return known


def capture_default(c: Context, name: str, tensor: object) -> Value:
    """Return the captured parameter for a default that is a tensor, which may be changed in place
    between calls."""
    held = _defaults.setdefault((id(tensor), name), {name: tensor})
    return capture(c, held, name, t.TENSOR)


def capture_object(c: Context, obj: object, type_: Type) -> Value:
    """Return the captured parameter for a global object of a user's class. Its identity is assumed
    to stay; its attributes are read at each call."""
    name = re.sub(r"\W", "_", type(obj).__name__).lower()
    return capture(c, _objects.setdefault(id(obj), {name: obj}), name, type_)


_objects: dict[int, dict[str, Any]] = {}
_defaults: dict[tuple[int, str], dict[str, Any]] = {}  # they keep the tensors, and so their ids
