"""Finds the values of a program that have the same form at every call of one plan.

In: a Function and the arguments of a call. Out: values whose sizes, or numbers, follow from the
plan's key: sizes of tensors, also those in tuples, lists and dicts, and plain arguments.

    d["x"].shape[0]       follows
    self.queue.shape[0]   does not: an attribute may become another tensor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import CHANGING
from lowtide.ir.core import Function, Op, Value, free_values, walk

_FAMILIES: Final = ("torch", "const", "cast", "tuple", "list", "dict", "unpack", "py", "math")
_STRUCTURE: Final = ("call_torch", "mutate", "if", "loop", "with", "yield", "undef")
_IDENTITY: Final = ("py.is", "py.is_not")


def fixed_values(function: Function, args: Sequence[Any]) -> frozenset[Value]:
    """Return the values; see the module's text."""
    fixed = {v for v, x in zip(function.params, args, strict=True) if _is_in_key(x)}
    for op in function.block.ops:
        inner = (o for block in op.blocks for o in walk(block))
        if fixed.issuperset(free_values([op])) and all(map(_follows, (op, *inner))):
            fixed.update(op.results)
    return frozenset(fixed)


def _is_in_key(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_in_key, cast("Sequence[Any]", value)))
    if type(value) is dict:
        return all(map(_is_in_key, cast("Mapping[Any, Any]", value).values()))
    return value is None or isinstance(value, torch.Tensor | int | float | str)


def _follows(op: Op) -> bool:
    if op.name in _IDENTITY:  # whether two tensors are one object is not in the key
        return any(v.type == t.NONE for v in op.operands)
    if op.name.startswith("torch.") and not any(t.may_be_tensor(v.type) for v in op.results):
        return opdefs.has_kind(op.name, ("size",))
    is_changing = op.name in CHANGING and op.name != "mutate"
    return op.name in _STRUCTURE or (op.name.partition(".")[0] in _FAMILIES and not is_changing)
