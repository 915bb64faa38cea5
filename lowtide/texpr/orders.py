"""Memory orders: stores a value with permuted dims, and returns it as a view.

An order lists dims, the outermost first: (0, 2, 3, 1) is PyTorch's `channels_last`. A Program
stores each value in the order of its axes. A value that needs another order gets a definition with
its axes in that order, and a view:

    t4[n, c, h, w] = relu(x[n, c, h, w])       t4_0231[n, h, w, c] = relu(x[n, c, h, w])
    output t4                              →   t4[n, c, h, w] = t4_0231[n, h, w, c]
                                               output t4_0231
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def
from lowtide.texpr.index import Axis, Index, as_index, row_major

Order: TypeAlias = tuple[int, ...]
T = TypeVar("T")


def permuted(items: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return the items, one per dim, in the order in which the dims lie in memory."""
    return tuple(items[d] for d in order)


def inverse(order: Order) -> Order:
    """Return the inverse order: where each dim lies."""
    return tuple(order.index(d) for d in range(len(order)))


def strides_in(shape: Sequence[Index], order: Order) -> tuple[Index, ...]:
    """Strides in elements of a dense tensor whose dims lie in this order."""
    return permuted(row_major(permuted(shape, order)), inverse(order))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return the order of the dims in memory; None for a contiguous tensor, and for one with gaps
    or overlaps. A dim of size 1 lies where its stride says: [2, 1, 4, 5] with strides (20, 1, 5, 1)
    has the order (0, 2, 3, 1), and (20, 20, 5, 1) is contiguous."""
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1, d)))
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != step:
            return None
        step *= shape[d]
    return order if step and order != tuple(range(len(shape))) else None


def stored_in(defs: Mapping[str, Def], name: str, order: Order) -> tuple[dict[str, Def], str]:
    """Definitions in which a value is stored in this order, and as what; see the module's text.
    The same again, where it is so already."""
    stored = f"{name}_{''.join(map(str, order))}"
    if stored in defs:
        return dict(defs), stored
    made: dict[str, Def] = {}
    for n, d in defs.items():
        if n != name:
            made[n] = d
            continue
        axes = tuple(Axis(f"{a.name}p", a.extent) for a in d.axes)
        at = permuted(tuple(map(as_index, axes)), order)
        made[stored] = Def(
            name=stored, axes=permuted(d.axes, order), expr=d.expr, loc=d.loc, op=d.op
        )
        made[name] = Def(
            name=name, axes=axes, expr=ex.load(stored, at, d.dtype), loc=d.loc, op=d.op
        )
    return made, stored


def moved(index: Iterable[Index], axes: Sequence[Axis]) -> Order | None:
    """For each index which of the axes it plainly is, if each is another one and all are there."""
    places = {as_index(a): k for k, a in enumerate(axes)}
    found = tuple(places.get(i, -1) for i in index)
    return found if sorted(found) == list(range(len(axes))) else None
