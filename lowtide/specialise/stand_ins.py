"""Stand-ins for numbers that come from data, so that a dry run can execute an op without data.

In: an op and its operands, some of them UNKNOWN. Out: operands with which the op gives a result of
the right form, or of the largest possible size.

    x * n                  x * 1
    x[n], x[0-dim meta]    x[0]
    x[a:n]                 x[a:]             the largest
    x.narrow(0, a, n)      x[a:]             the largest

A number that is a size in any other op stays UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Op


class Unknown:
    """A value that only the data knows."""

    def __repr__(self) -> str:
        return "<unknown>"


UNKNOWN: Final = Unknown()
NUMBERS: Final[dict[t.Type, Any]] = {t.BOOL: True, t.FLOAT: 1.0, t.NUMBER: 1.0}


def stand_ins(op: Op, operands: Sequence[Any]) -> tuple[list[Any], bool]:
    """Return the operands of an op of PyTorch's, and whether a part replaces the whole."""
    found = list(operands)
    is_whole = False
    if isinstance(found[0] if found else None, torch.Tensor):
        if op.name == "torch.narrow":
            is_whole = _narrow(found)
        elif op.name == "torch.getitem":
            is_whole = _items(found, cast("tuple[str, ...]", op.attrs["spec"]))
    is_factor = opdefs.has_kind(op.name, ("pointwise",))
    for k, v in enumerate(op.operands):
        if found[k] is UNKNOWN:
            found[k] = 1 if is_factor and v.type == t.INT else NUMBERS.get(v.type, UNKNOWN)
    return found, is_whole


def _narrow(operands: list[Any]) -> bool:
    x, dim, start, length = operands
    if dim is UNKNOWN or UNKNOWN not in (start, length) or not x.dim():
        return False
    first = 0 if isinstance(start, Unknown) else start
    if isinstance(length, Unknown):
        length = x.shape[dim] - (first if first >= 0 else first + x.shape[dim])
    operands[2:] = [first, length]
    return True


def _items(operands: list[Any], spec: Sequence[str]) -> bool:
    is_whole = False
    at = 1
    for word in spec:
        count = opdefs.Indexing.ARITY[word]
        if word == "slice":
            for k in (at, at + 1):
                if operands[k] is UNKNOWN:
                    operands[k], is_whole = None, True
        elif count and (operands[at] is UNKNOWN or _is_position(operands[at])):
            operands[at] = 0
        at += count
    return is_whole


def _is_position(value: Any) -> bool:
    """Return a tensor that replaces an int. PyTorch reads its value, for which any other is as
    good."""
    is_int = isinstance(value, torch.Tensor) and not value.dim() and value.dtype is not torch.bool
    return is_int and value.is_meta
