"""IR names of the targets of call nodes.

In: the Python function of a node. Out: the op on Python values that it is for numbers, or its
source name, as records and targets write it.

    operator.add     "py.add" on sizes, "operator.add" on tensors
    torch.sym_max    "py.max"
    torch.relu       "torch.relu"
    a custom op, a higher-order op, an autograd function: None, so that the object itself is called
"""

from __future__ import annotations

import builtins
import math
import operator
import types
from typing import Any, Final

import torch

from lowtide.frontend.script.mutation import INPLACE_OPERATORS
from lowtide.frontend.trace.function_names import name_of
from lowtide.ir import opdefs

_SYM: Final = {
    "sym_int": "py.int", "sym_float": "py.float", "sym_max": "py.max", "sym_min": "py.min",
    "sym_not": "py.not", "sym_sum": "py.sum", "_sym_sqrt": "math.sqrt",
}  # fmt: skip
_PLAIN_FUNCTIONS: Final = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
)  # fmt: skip


def number_op(target: object) -> str | None:
    """Return the op on Python values for this function, None if there is none."""
    name = str(getattr(target, "__name__", ""))
    if getattr(torch, name, None) is target:
        return _SYM.get(name)
    family = "py"
    if getattr(math, name, None) is target:
        family = "math"
    elif (
        getattr(operator, name, None) is not target and getattr(builtins, name, None) is not target
    ):
        return None
    elif name in INPLACE_OPERATORS:
        name = name[1:]  # numbers do not change: `n += 1` is `n + 1`
    found = f"{family}.{name.strip('_')}"
    return found if opdefs.find(found) is not None else None


def source_of(target: Any) -> tuple[str, bool] | None:
    """Return the source name of a function of tensors, and whether its first two operands are
    swapped."""
    if not isinstance(target, _PLAIN_FUNCTIONS):
        return None  # an object that is called
    name = str(getattr(target, "__name__", ""))
    if getattr(operator, name, None) is target:
        return f"operator.{name}", False
    found = name_of(target)
    return None if found is None or found[0].startswith("torch.ops.") else found
