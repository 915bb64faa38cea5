"""Prepares the operands of a lowering.

In: abstract operands of an op. Out: their current values, with sequences as their items, for
`record.lower`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lowtide.specialise.abstract import Abs, Origin, Seq, concrete, is_constant, tensors_in
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Unsupported
from lowtide.texpr.expr import Expr


def viewed(origin: Origin, item: int | None) -> Abs | None:
    """Return the base of a view: the first operand, or its element of the same number."""
    for x in origin.operands:
        found = tensors_in(x)
        if found:
            return (
                found[item]
                if item is not None and len(found) > item and len(found) > 1
                else found[0]
            )
    return None


def elements(x: Abs) -> tuple[Abs, ...]:
    """Return the items of a sequence. Raises Unsupported for other values."""
    if not isinstance(x.value, Seq):
        raise Unsupported("a sequence that is known only at run time")
    return x.value.elems


def item(operands: Sequence[Abs], spec: tuple[str, ...]) -> Abs:
    """Return an item of a value that has turned out to be a sequence. Raises Unsupported."""
    elems = elements(operands[0])
    index = operands[1].value if len(operands) == 2 else None
    if spec not in (("int",), ("tensor",)) or not isinstance(index, int):
        raise Unsupported("an item that is known only at run time")
    if not -len(elems) <= index < len(elems):
        raise Unsupported("raises IndexError")
    return elems[index]


def is_too_large(x: Abs) -> bool:
    """Return whether the value is an int that PyTorch does not take."""
    found = concrete(x) if is_constant(x) else None
    return isinstance(found, int) and not -(2**63) <= found < 2**64


def has_float(x: object) -> bool:
    """Return whether the value is or contains a float that only the call knows."""
    if isinstance(x, list | tuple):
        return any(map(has_float, cast("list[object]", x)))
    return isinstance(x, Expr)


def with_floats(x: Any, floats: Mapping[str, float]) -> Any:
    """Return the floats of this call in place of their names."""
    if isinstance(x, list | tuple):
        elems: list[Any] = list(x)  # pyright: ignore[reportUnknownArgumentType]
        return [with_floats(e, floats) for e in elems]
    if isinstance(x, ex.Scalar):
        return floats.get(x.name, 1.0)
    return x
