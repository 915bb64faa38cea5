"""Chooses the number of lanes of a kernel's vectors.

In: the kernel's definitions, the machine. Out: a number of elements, the same for all dtypes.

    sum of f32            AVX2: 8 lanes, of 32 bytes
    sum of f64(f32)       4: 8 would be two registers for what is summed up
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.ir.dtypes import BY_NAME
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Expr, Load, Reduce
from lowtide.tile.items import ARG, counts
from lowtide.tile.target import Target


def lanes_of(defs: Iterable[Def], target: Target) -> int:
    """Lanes of a kernel: a full register of the narrowest float or 4-byte type computed in; of one
    of 8 bytes where each point has some, as C compilers keep vectors of two registers in memory.

    Sums of smaller floats are added up in as many parts as there are lanes, so they get all."""
    widest, known = 8, list(defs)
    may_be_few = not any(_sums_short(d.expr) for d in known)
    for d in known if may_be_few else ():
        body = d.expr.body if isinstance(d.expr, Reduce) else d.expr
        if _sums_long(d.expr):
            return max(target.vector_bytes // 8, 2)
        for node in ex.walk(d.expr):
            if node.dtype.name == "f64" and node.free == body.free and _is_computed(node):
                return max(target.vector_bytes // 8, 2)
    for d in known:
        for node in ex.walk(d.expr):
            size = 1 if isinstance(node, ex.Const) else _lane_bytes(node)
            if size:
                widest = min(widest, size)
    return max(target.vector_bytes // max(widest, 4), 2)


def _sums_short(e: Expr) -> bool:
    return isinstance(e, Reduce) and e.fn == "sum" and e.dtype.is_float and e.dtype.name != "f64"


def _sums_long(e: Expr) -> bool:
    """Return whether the expression reduces 64-bit integers."""
    if not isinstance(e, Reduce) or e.body.dtype.name != "i64":
        return False
    return e.fn not in ARG and not counts(e.fn, e.body)


def _is_computed(node: Expr) -> bool:
    return isinstance(node, (ex.Apply, ex.Cast)) and bool(node.free)


def _lane_bytes(node: Expr) -> int:
    if isinstance(node, (ex.At, ex.Const)) or node.dtype.name in ("bool", "u8"):
        return 0
    return (
        BY_NAME[node.dtype.compute].itemsize if isinstance(node, (Load, ex.Apply, ex.Cast)) else 0
    )
