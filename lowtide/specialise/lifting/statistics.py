"""Running statistics and batch counters: tensors of the caller that a region writes last.

In: an op, and the writes so far. Out: a counter's new value; whether an op may read what has been
written.

    n.add_(1)                      n = n + 1, written after the last step that can fail
    batch_norm(x, mean, var, …)    writes `mean` and `var`; another norm, of its own, may follow

Invariant: a region reads no tensor after it has written it. The statistics of a call are known to
share no memory (`Statistics`); other tensors may share memory with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lowtide.ir.aliases import Statistics, counts
from lowtide.ir.core import Op, Value
from lowtide.ir.dtypes import i64
from lowtide.specialise.abstract import Abs, Place, is_constant, tensors_in
from lowtide.specialise.lifting.inplace import root_of
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.expr import const


class Host(Protocol):
    """The members of the specialiser that are used here."""

    b: Builder
    names: Sequence[Value]
    statistics: Statistics
    writes: list[tuple[Abs, Abs]]
    loop: Op | None


def counted(host: Host, op: Op, operands: Sequence[Abs]) -> Abs | None:
    """Return the counter after an addition to it; None for any other write."""
    if not counts(op) or host.loop is not None or host.b.mask is not None:
        return None
    x, added = operands[0], operands[1]
    if x.base is not None or not isinstance(x.origin, Place) or not isinstance(x.value, Val):
        return None
    if x.value.shape or x.value.dtype is not i64 or not is_constant(added):
        return None
    old, n = x.value, added.value
    assert isinstance(n, int)
    b = host.b
    b.loc, b.op = op.loc, "add"
    new = b.tensor([], i64, lambda _: b.apply("add", b.load(old, []), const(n, i64)))
    b.writes.append((old, new))
    host.writes.append((x, Abs(new)))
    return x


def may_be_written(host: Host, v: Value, env: Mapping[Value, Abs]) -> bool:
    """Return whether the value is a caller's tensor that the region has written, or shares its
    memory."""
    if v not in host.statistics.values or v not in env:
        return False
    return any(_is_near_a_write(host, root_of(x)) for x in tensors_in(env[v]))


def _is_near_a_write(host: Host, root: Abs) -> bool:
    if root.origin is None:
        return False  # the region has made it
    written = [x for x, _ in host.writes]
    return any(root is w for w in written) or not all(_is_apart(host, x) for x in (root, *written))


def _is_apart(host: Host, x: Abs) -> bool:
    """Return whether each call checks that the tensor shares no memory with other such tensors."""
    if not isinstance(x.origin, Place) or x.origin.path:
        return False
    return host.names[x.origin.position] in host.statistics.apart
