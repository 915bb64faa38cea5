"""Specialises PyTorch's ops: `record.lower` adds the definitions of an op to the Program.

In:  an op, its record, abstract operands. Out: its abstract results. Raises Stop, Unsupported and
ShapeError where the region ends, NeedConst and NeedFloats where a constant would do.

    y = torch.exp(x)      x: t1[n]       t2[i] = exp(t1[i])        Abs(t2)
    z = y[1:]             y: t2[n]       t3[i] = t2[i + 1]         Abs(t3, base=y), a view
    n = x.shape           x: t1[n]                                 Abs(Seq(torch.Size, (n,)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import torch

from lowtide.ir import opdefs
from lowtide.ir.core import Op
from lowtide.ir.named_results import RESULTS, class_of_result
from lowtide.ops.autocast import under_autocast
from lowtide.ops.cells import ONLY_IN_LOOPS
from lowtide.specialise.abstract import Abs, Origin, Place, Seq, constant, frozen, raw, tensors_in
from lowtide.specialise.activity import Activity
from lowtide.specialise.lifting import inplace, rows
from lowtide.specialise.lowering_operands import has_float, is_too_large, item, viewed, with_floats
from lowtide.specialise.region_boundaries import Stop
from lowtide.texpr.build import Builder, NeedConst, ShapeError, Unsupported, Val

# The attribute of an op that the program has twice, so that no value of pairs is stored in between;
# whether it is the second one. Kernels of both compute the same bits.
SHARED: Final = "shared"


class NeedFloats(Exception):
    """The values of floats must be constants of the signature."""


class Host(Protocol):
    """The members of the specialiser that are used here."""

    b: Builder
    activity: Activity
    floats: Mapping[str, float]  # the values of this call
    views: dict[Abs, inplace.Made]
    blocked: set[Abs]  # tensors that may have copies
    items: dict[Abs, rows.Item]
    writes: list[tuple[Abs, Abs]]
    loop: Op | None  # the innermost loop that is lifted

    def mark(self) -> tuple[int, ...]: ...
    def reset(self, mark: tuple[int, ...]) -> None: ...


def evaluate(host: Host, op: Op, operands: list[Abs]) -> list[Abs]:
    record: Any = opdefs.torch_record(op.name)
    if isinstance(operands[0].value, rows.Rows) and record.name in ("stack", "cat"):
        host.b.loc, host.b.op = op.loc, record.name
        return [Abs(rows.joined(host.b, record.name, operands[0].value, operands[1].value))]
    if op.name != "torch.getitem":
        first = len(host.b.program.defs)
        found = lowered(host, op, record, record.kind, (), [frozen(x) for x in operands])
        if SHARED in op.attrs:
            made = list(host.b.program.defs.items())[first:]
            sums = {n: d.tiles_dtype for n, d in made if d.is_rounded}
            host.b.program.shared_sums = {**host.b.program.shared_sums, **sums}
        return found
    spec = cast("tuple[str, ...]", op.attrs["spec"])
    if isinstance(operands[0].value, Seq):
        return [item(operands, spec)]
    if not isinstance(operands[0].value, Val):
        raise Unsupported("an item of a value that is not a tensor")
    if "unbound" in op.attrs and host.activity.records:
        raise Unsupported("a row is changed in place, which autograd may refuse")
    by_data = any(isinstance(x.value, Val) and x.value.ndim for x in operands[1:])
    kind = "gather" if by_data or "bool" in spec else "view"
    return lowered(host, op, record, kind, (constant(spec),), [frozen(x) for x in operands])


def lowered(
    host: Host, op: Op, record: Any, kind: str, leading: tuple[Abs, ...], operands: list[Abs]
) -> list[Abs]:
    """Return the results of the op as `record` lowers it. `leading`: operands before those of the
    op. `kind`: the op's kind for autodiff and views, which may differ from `record.kind`."""
    if record.lower is None:
        raise Stop("has no kernel")
    may_record = host.activity.records or host.b.may_recompute
    if record.name in ONLY_IN_LOOPS and may_record and not host.activity.in_loop:
        raise Stop("is PyTorch's own, outside of a recurrence")
    given = list(zip(record.params[len(leading) :], operands, strict=False))
    if any("Tensor" in p.types and not p.optional and x.value is None for p, x in given):
        raise Unsupported("raises TypeError")  # of an Optional that is None
    if any(p.types == ("int",) and has_float(x.value) for p, x in given):
        raise Unsupported("raises TypeError")  # of a float
    host.b.loc, host.b.op = op.loc, record.name
    if any(is_too_large(x) for x in operands):
        raise Unsupported("raises OverflowError")
    args = [raw(x, record.kind == "pointwise") for x in (*leading, *operands)]
    mark = host.mark()
    host.activity.before(record.name, (*leading, *operands))
    host.b.masks = kind if host.activity.records else None
    try:
        if host.b.autocast is not None:
            args = under_autocast(host.b, record.name, args)
        found = record.lower(host.b, *args)
        _note_writes(host, operands, mark[5])
    except Unsupported as why:
        host.reset(mark)
        if host.floats and any(has_float(x) for x in args):
            _try_floats(host, record, args, why)
        raise
    finally:
        host.b.masks = None
    if kind != "view":
        host.b.unmasked.update(list(host.b.program.defs)[mark[0] :])
    found = host.activity.after(record.name, found, mark[0])
    origin = Origin(record.eager, (*leading, *operands), record.name)
    made = [*leading, *operands]
    if len(op.results) > 1:
        return [
            _noted(host, _result(r, kind, origin, i), record, made) for i, r in enumerate(found)
        ]
    if len(record.results) > 1:  # bound late: PyTorch's tuple
        parts = tuple(_result(r, kind, origin, i) for i, r in enumerate(found))
        cls = class_of_result(f"torch.{record.name.partition('.')[0]}", record.result_names)
        return [_noted(host, Abs(Seq(RESULTS.get(cls, tuple), parts)), record, made)]
    return [_noted(host, _result(found, kind, origin, None), record, made)]


def _note_writes(host: Host, operands: Sequence[Abs], first: int) -> None:
    """Checks that each write from number `first` on goes to a tensor of the caller's, which is one
    operand of the op, and adds it to `host.writes`."""
    for old, new in host.b.writes[first:]:
        tensors = (t for x in operands for t in tensors_in(x))
        alike = [t for t in tensors if raw(inplace.root_of(t), False).name == old.name]
        if len(alike) != 1 or not isinstance(alike[0].origin, Place):
            raise Unsupported("writes statistics of its own, or that are another operand too")
        if host.loop is not None or host.b.mask is not None:
            raise Unsupported("writes statistics in a loop or branch")
        host.writes.append((alike[0], Abs(new)))


def _noted(host: Host, result: Abs, record: Any, operands: Sequence[Abs]) -> Abs:
    """Notes how views are made, and blocks tensors that may share memory without being views."""
    for x in tensors_in(result):
        if x.base is not None:
            host.views[x] = inplace.Made(record, tuple(operands), x.base, x.base.value, x.value)
            if record.name not in inplace.ALIASING:
                host.blocked.add(inplace.root_of(x))
            continue
        assert isinstance(x.value, Val)
        if record.kind == "copy":
            continue  # the same value, in memory of its own
        for other in (y for o in operands for y in tensors_in(o)):
            if isinstance(other.value, Val) and other.value.name == x.value.name:
                root = inplace.root_of(other)
                host.blocked.update((x, root))
                if root in host.items:
                    host.items[x] = host.items[root]
    return result


def _result(found: object, kind: str, origin: Origin, item: int | None) -> Abs:
    if isinstance(found, Val):
        if kind != "view":
            return Abs(found)
        return Abs(found, origin, item, base=viewed(origin, item))
    if isinstance(found, list | tuple):
        elems: list[Any] = list(found)  # pyright: ignore[reportUnknownArgumentType]
        parts = tuple(_result(e, kind, origin, i) for i, e in enumerate(elems))
        as_shape = origin.name in ("shape", "size", "Tensor.shape", "Tensor.size")
        return Abs(Seq(torch.Size if as_shape else tuple, parts))
    return constant(found)


def _try_floats(host: Host, record: Any, args: list[Any], why: Unsupported) -> None:
    """Raises NeedFloats if the op is lowered once it knows the floats of this call."""
    mark = host.mark()
    try:
        record.lower(host.b, *[with_floats(x, host.floats) for x in args])
    except (Unsupported, ShapeError, NeedConst):
        return
    finally:
        host.reset(mark)
    raise NeedFloats from why
