"""An inner loop whose number of steps differs between the iterations of a lifted outer loop.

In: the loop and its number of steps, in which axes of outer loops are free. Out: `Steps`: an equal
number for all iterations, and the condition of the steps that count.

    for i in range(n):                      for i in range(n):
        for j in range(i + 1, n):    ->         for l in range(n - 1):       j = l + 1
            f(i, j)                                 if 0 <= l - i: f(i, l + 1)

If the first step differs between iterations, as here, steps are counted from the smallest first
step, so that loads stay contiguous along `l`. If the first step is max(0, z), they are counted from
z: a window then has as many steps in the middle as at its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lowtide.ir.core import Op, Value
from lowtide.specialise.abstract import Abs, Ragged
from lowtide.texpr import bounds
from lowtide.texpr.bounds import is_positive_part
from lowtide.texpr.build import varies
from lowtide.texpr.index import Atom, Axis, Clamp, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import substitute

ZERO = as_index(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """`trips` values of an axis; step number `axis + first` is done where it lies in [0, count),
    always where `count` is None. `skipped`: so many steps were done before the loop."""

    trips: Index
    first: Index = ZERO
    count: Index | None = None
    skipped: int = 0


def steps_of(
    op: Op, count: int | Index | Ragged, env: Mapping[Value, Abs], ask: bounds.Ask
) -> Steps | None:
    """Return the steps of a loop; None if they have no bound."""
    number = as_index(count.count if isinstance(count, Ragged) else count)
    if not varies(number):
        return Steps(trips=number)
    best: Steps | None = None
    for first in _origins(_begin(op, env)):
        most = bounds.least_bound(number + first, None, ask)
        least = bounds.least(first)
        if most is None or least is None or least.const != 0:
            continue
        if best is None or ask(best.trips - most - 1):
            best = Steps(trips=most, first=-first, count=number)
    return best


def _begin(op: Op, env: Mapping[Value, Abs]) -> Index:
    """Return the index that the body adds to the number of its step; 0 if none is known."""
    (block,) = op.blocks
    for inner in block.ops:
        if inner.name == "py.add" and block.args[0] in inner.operands:
            for v in inner.operands:
                value = env[v].value if v in env else None
                if isinstance(value, Index) and v is not block.args[0]:
                    return value
    return ZERO


def _origins(begin: Index) -> Iterable[Index]:
    """Yield candidates for the number of steps before an iteration's first: from the least begin of
    all iterations; from `z` where it begins at max(0, z); none."""
    axes: dict[Atom, Index] = {a: ZERO for a in deep_atoms(begin) if isinstance(a, Axis)}
    shifted: dict[Atom, Index] = {
        a: a.num for a in begin.atoms() if isinstance(a, Clamp) and is_positive_part(a)
    }
    if shifted:
        yield begin - substitute(begin, shifted)
    else:
        yield begin - substitute(begin, axes)
    yield ZERO
