"""Scalar evolution: how an int changes from step to step of a loop.

In: a value, the induction variable (the step's number, or a carried value), the op that makes each
value. Out: an `Evolution`, which is `base + step * index + offset`.

    %1 = py.mul(%i, 2)        Evolution(base=None, step=2, offset=0)
    %2 = py.sub(%1, 3)        Evolution(base=None, step=2, offset=-3)
    %3 = py.add(%n, %2)       Evolution(base=%n, step=2, offset=-3)
    %4 = py.mod(%i, 2)        Evolution(base=%4, step=0, offset=0)      not known

Invariant: an unknown value is its own base, and may change from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowtide.ir.core import Value
from lowtide.ir.effects import constant
from lowtide.passes.ir_queries import Makers


@dataclass(frozen=True, slots=True)
class Evolution:
    """`base + step * index + offset`; without a base the number is known in each step."""

    base: Value | None
    step: int
    offset: int

    @property
    def ahead(self) -> int | None:
        """c of `index + c`; None for all else."""
        return self.offset if self.base is None and self.step == 1 else None

    def more(self, offset: int) -> Evolution:
        """Return the evolution with a number added."""
        return Evolution(self.base, self.step, self.offset + offset)


def number_of(value: Value, makers: Makers) -> int | None:
    """Return the int that the value is at every step, else None."""
    found = constant(value, makers)
    return found if type(found) is int else None


def evolution(
    value: Value,
    index: Value,
    makers: Makers,
    number: Callable[[Value], int | None] | None = None,
) -> Evolution:
    """See the module's text. `number`: the int that a value always is, if more are than constants
    of the program."""
    found = {index: Evolution(None, 1, 0)}

    def of(value: Value) -> Evolution:
        if value not in found:
            found[value] = made(value)
        return found[value]

    def made(value: Value) -> Evolution:
        known = number(value) if number is not None else number_of(value, makers)
        if known is not None:
            return Evolution(None, 0, known)
        maker = makers.get(value)
        name = "" if maker is None else maker.name
        if maker is None or name not in ("py.add", "py.sub", "py.mul", "py.neg"):
            return Evolution(value, 0, 0)
        return _combined(name, [of(v) for v in maker.operands]) or Evolution(value, 0, 0)

    return of(value)


def _combined(name: str, rows: list[Evolution]) -> Evolution | None:
    a, b = rows if len(rows) == 2 else (Evolution(None, 0, 0), rows[0])
    if name == "py.mul":
        a, b = (b, a) if a.base is None and not a.step else (a, b)
        if a.base is not None or b.base is not None or b.step:
            return None
        return Evolution(None, a.step * b.offset, a.offset * b.offset)
    sign = 1 if name == "py.add" else -1
    if b.base is not None and (a.base is not None or sign < 0):
        return None
    base = a.base if a.base is not None else b.base
    return Evolution(base, a.step + sign * b.step, a.offset + sign * b.offset)
