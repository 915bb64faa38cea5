"""Assertions about tensors, checked by the kernels that compute the asserted tensors.

In: a block. Out: its bools that only decide whether the program raises.

    assert d.min() >= 0, "negative"          a check of the region: t9 = all(…)
    if torch.isnan(d).any():                 another: t12 = not …
        raise ValueError("NaN")

A check that fails ends the call of the kernels, and PyTorch runs the region's ops, which raise the
program's own error, in its order. So ops before and after an assertion share kernels.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lowtide.ir import dtypes
from lowtide.ir.core import Block, Op, Value, free_values
from lowtide.specialise.abstract import Abs
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import as_index
from lowtide.torch_private.private_names import ASSERT_TENSOR

_BOOLS = ("py.bool", "py.not")
_BETWEEN = ("const", "py.format", "tuple.make")  # may stand between a bool and its assertion


def only_asserted(block: Block) -> frozenset[Value]:
    """Return the bools of tensors that only an assertion right behind them reads."""
    if not any(op.name in _BOOLS for op in block.ops):
        return frozenset()  # of a large block, users are not looked for in each region
    users: defaultdict[Value, list[Op]] = defaultdict(list)
    for op in block.ops:
        for v in free_values([op]):
            users[v].append(op)
    found: set[Value] = set()
    following: Op | None = None
    for op in reversed(block.ops):
        if following is not None and op.name in _BOOLS and users[op.result] == [following]:
            is_turned = following.name == "py.not" and following.result in found
            if is_turned or _asserts(following, op.result):
                found.add(op.result)
        if op.name not in _BETWEEN:
            following = op
    return frozenset(found)


def is_call(op: Op) -> bool:
    """Return whether the op is the call that torch.compile captures for an `assert`."""
    return op.attrs.get("target") == ASSERT_TENSOR


def _asserts(op: Op, held: Value) -> bool:
    if op.name == "assert":
        return op.operands[0] is held and held not in op.operands[1:]
    return raising(op) is not None


def raising(op: Op) -> int | None:
    """Return which block of an `if` only raises, while the other does nothing; None if neither."""
    if op.name != "if" or op.results:
        return None
    for k, block in enumerate(op.blocks):
        other = op.blocks[1 - k]
        raises = any(o.name == "raise" for o in block.ops)
        if raises and len(other.ops) == 1 and _only_raises(block):
            return k
    return None


def _only_raises(block: Block) -> bool:
    return all(o.name in (*_BETWEEN, "raise", "yield") for o in block.ops)


def asserted(run: Any, op: Op, x: Abs) -> Abs | None:
    """Return the bool of a tensor of one element, negated by `py.not`; None for other values."""
    if run.loop or not isinstance(x.value, Val):
        return None
    if any(as_index(size).const != 1 for size in x.value.shape):
        return None
    return Abs(negated(run.b, x.value) if op.name == "py.not" else holds(run.b, x.value))


def holds(b: Builder, x: Val) -> Val:
    """Return the bool of a tensor of one element."""
    zero = b.const(0, x.dtype)
    return b.tensor((), dtypes.boolean, lambda _: _truth(b, x, zero))


def negated(b: Builder, x: Val) -> Val:
    """Return the negated condition."""
    no = b.const(False, dtypes.boolean)
    zero = b.const(0, x.dtype)
    return b.tensor((), dtypes.boolean, lambda _: b.apply("eq", _truth(b, x, zero), no))


def _truth(b: Builder, x: Val, zero: Expr) -> Expr:
    element = b.load(x, [0] * x.ndim)
    return element if x.dtype is dtypes.boolean else b.apply("ne", element, zero)
