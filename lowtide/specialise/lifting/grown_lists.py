"""A list that grows in a lifted loop becomes one tensor, with an item of the list per iteration.

In:  the loop, its closed body, the items that one iteration adds. Out: `Rows`; raises NotLifted
where the items are not alike, and Carried where an item needs what an earlier iteration left.

    for i in range(n): rows.append(x[i].exp())      t7[i, j] = exp(x[i, j])     Rows(Chunk(t7))
    for i in range(n): rows += [f(i), g(i)]         t7[i, j] = select(i % 2 == 0, f, g)(i // 2, j)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lowtide.ir.core import Op
from lowtide.specialise.abstract import Abs
from lowtide.specialise.lifting import closing
from lowtide.specialise.lifting.inplace import root_of
from lowtide.specialise.lifting.match import Carried, NotLifted
from lowtide.specialise.lifting.rows import Chunk, Growing, Rows, pieces_of, turned
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.expr import Expr, Load
from lowtide.texpr.index import Axis, Index, as_index
from lowtide.texpr.index_ranges import floordiv, mod


class Lift(Protocol):
    """The members of a loop's attempt at lifting that are used here."""

    run: Any
    b: Builder
    op: Op
    axis: Axis
    carried: list[Abs]
    args: list[Abs]
    outer: set[Abs]

    def check_sizes(self, shape: Sequence[Index | int]) -> None: ...
    def is_known(self, root: Abs) -> bool: ...


def aliases(
    lift: Lift, grown: Growing, yields: Sequence[Abs], after: Mapping[Abs, Abs]
) -> tuple[Abs | None, tuple[Abs, ...]]:
    """Return the result that is the last item, and all values from outside that may be items."""
    added = [*grown.elems, *grown.in_front]
    handed = dict(zip(lift.args, yields, strict=True))

    def back(x: Abs) -> set[Abs]:
        found: set[Abs] = set()
        while x not in found:
            found.add(x)
            x = handed.get(x, x)
        return found

    mine = {y for x in added for y in back(x)}
    found = [result for y, result in after.items() if back(y) & mine]
    found += [x for a, x in zip(lift.args, lift.carried, strict=True) if a in mine]
    found += [y for x in mine if x in lift.run.items for y in lift.run.items[x].aliases or ()]
    lift.run.blocked.update(found)  # the list would change with them
    return (after.get(added[-1]) if added else None), tuple(found)


def filled(
    lift: Lift,
    body: closing.Body,
    grown: Growing,
    before: object,
    names: tuple[Abs | None, tuple[Abs, ...]],
) -> Rows:
    """Return the list after the loop. `names`: what `aliases` returns. Raises NotLifted."""
    added = [*grown.elems, *grown.in_front]
    if len(added) != 1 and (grown.in_front or not added):
        raise NotLifted("a list does not grow by as many tensors at its end in each iteration")
    count, values = len(added), [_item(lift, x) for x in added]
    value = values[0]
    if any(x.dtype is not value.dtype or x.shape != value.shape for x in values):
        raise NotLifted("a list grows by tensors of several shapes")
    lift.check_sizes(value.shape)
    shape = (lift.axis.extent * count, *value.shape)

    def element(idx: tuple[Index, ...]) -> Expr:
        step, which = floordiv(idx[0], count), lift.b.at(mod(idx[0], count))
        items = [_in_step(lift, body, x, step, idx[1:]) for x in values]
        e = items.pop()
        for k in range(count - 2, -1, -1):
            e = lift.b.select(lift.b.apply("eq", which, lift.b.at(k)), items[k], e)
        return e

    found = lift.b.tensor(shape, value.dtype, element)
    made = lift.b.program.defs[found.name]
    own, node = tuple(map(as_index, made.axes)), made.expr
    source = node.source if isinstance(node, Load) and node.index == own else ""
    if source in body.lifted & body.own and lift.b.program.defs[source].shape == made.shape:
        found = Val(source, found.shape, found.dtype)  # all iterations of one value
    are_views = any(root_of(x) is not x and lift.is_known(root_of(x)) for x in added)
    chunk = Chunk(found, *names, are_views=are_views)
    if grown.elems:
        return Rows((*pieces_of(before), chunk), lift.op)
    return Rows((*turned(lift.b, [chunk]), *pieces_of(before)), lift.op)


def _item(lift: Lift, elem: Abs) -> Val:
    """Return a tensor that a list grows by."""
    if elem in lift.outer or not isinstance(elem.value, Val):
        raise NotLifted("a list grows by what was made before the loop")
    base = root_of(elem)
    if base is not elem and base in lift.outer and base.origin is None:
        raise NotLifted("a list grows by views of what the program made")
    lift.run.refresh([elem])
    assert isinstance(elem.value, Val)
    return elem.value


def _in_step(lift: Lift, body: closing.Body, value: Val, step: Index, at: Sequence[Index]) -> Expr:
    """Return an element of a value that an iteration has made."""
    e = closing.at_indices(body.element(value, at, ""), {lift.axis: step})
    try:
        body.check(e)
    except NotLifted as why:
        read = closing.roots(lift.b.program.defs, e)
        raise Carried(str(why), read, are_read=True) from why
    return e
