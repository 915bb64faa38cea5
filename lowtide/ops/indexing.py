"""Indexing: getitem, select, narrow, and gathers.

    x[1:, None, idx]   →   t[i, j, k] = x[i + 1, [idx[k]]]        x: [N, M], idx: [K] i64

The builder clamps indices that are data, and records a check that they were in bounds. `spec` gives
the operands of "getitem", with one word for each item of the subscript: "int",
"slice" (three operands: start, stop, step, each an int or None), "none", "ellipsis" or "tensor".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.operands import Size, broadcast, broadcast_index
from lowtide.ops.registry import OpRecord, Param, op, register
from lowtide.ops.views import view
from lowtide.texpr import bounds
from lowtide.texpr.build import Builder, Unsupported, Val, varies
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv, nonnegative

INDEX_DTYPES = (dtypes.i64, dtypes.i32)


def gathered(
    b: Builder, index: Val, at: Sequence[Index | int], size: Size, *, wraps: bool
) -> Index:
    """Return the element of an integer tensor as a safe index into a dim of `size`."""
    e = b.cast(b.load(index, at), dtypes.i64)
    if wraps:
        negative = b.apply("lt", e, b.const(0, dtypes.i64))
        e = b.select(negative, b.apply("add", e, b.at(size)), e)
    return b.gather(e, size)


def check_index(b: Builder, index: Val, size: Size, *, wraps: bool) -> None:
    """Check that the tensor is one of integers, and that its elements lie within a dim of
    `size`."""
    if index.dtype not in INDEX_DTYPES:
        raise Unsupported(f"an index of {index.dtype}")
    if not b.at_least(size, 1):
        if all(b.at_least(n, 1) for n in index.shape):
            raise Unsupported("an index into a dimension of size 0")
        return  # nothing is read
    b.check_bounds(index, -as_index(size) if wraps else 0, size)


def int_index(b: Builder, value: Any, size: Size) -> Index:
    """Return a whole number as an index into a dim of `size`, wrapped if negative."""
    at = as_index(value) if b.at_least(value, 0) else as_index(size) + value
    if not b.at_least(at, 0) or not b.at_least(as_index(size) - at, 1):
        raise b.error(f"index {value} of a dimension of size {size}")
    return at


@dataclass(frozen=True, slots=True)
class Range:
    """A slice of one dim."""

    start: Index
    step: Size
    length: Size


def slice_range(b: Builder, size: Size, start: Any, stop: Any, step: Any) -> Range:
    """Return the elements of a dim that start:stop:step picks, clamped as in Python. Raises
    Unsupported, and an error for a step that is not positive."""
    if any(not isinstance(part, int | Index | None) for part in (start, stop, step)):
        raise Unsupported("a slice bound that is a tensor, or a number of the run")
    step = 1 if step is None else step
    if not b.at_least(step, 1):
        raise b.error("a slice step that is not positive")
    if not nonnegative(as_index(step) - 1):
        step = b.static_int(step)  # divided by in indices, which are divided by sizes only
    first = _bound(b, 0 if start is None else start, size)
    last = as_index(size) if stop is None else _bound(b, stop, size)
    if varies(last - first) and as_index(step).const == 1 and b.at_least(last - first, 0):
        return Range(first, 1, last - first)  # in some iterations of a loop there may be nothing
    if not b.at_least(last - first, 1):
        return Range(as_index(0), 1, 0)
    return Range(first, step, floordiv(last - first + step - 1, step))


def _bound(b: Builder, value: Any, size: Size) -> Index:
    v, n = as_index(value), as_index(size)
    if v is n:
        return v
    if not b.at_least(v, 0):
        v = v + n
        if not b.at_least(v, 0):
            return as_index(0)
    if varies(v) and not b.is_always(n - v):  # in some iterations it is beyond the end
        held = bounds.smaller(n, v, b.ask)
        if held is not None:
            return held
    return v if b.at_least(n - v, 0) else n


# ---- getitem ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slot:
    """One dim of the indexed tensor before index tensors are broadcast together."""

    source: int | None  # the dim of x; None for a new one
    range: Range | None = None
    tensor: Val | None = None


def lower_getitem(
    b: Builder, spec: Sequence[str], x: Val, *items: Any, copies: bool = False
) -> Val:
    """Basic and advanced indexing, in PyTorch's order of dims. `copies`: whatever the index is."""
    consumed = sum(word in ("int", "slice", "tensor") for word in spec)
    if consumed > x.ndim:
        raise b.error("too many indices")
    if list(spec).count("ellipsis") > 1:
        raise Unsupported("more than one ellipsis")
    operands = list(items)
    slots: list[_Slot] = []
    fixed: dict[int, Index] = {}
    gathers_a_view = False  # by an index tensor without dims, PyTorch gives a view
    d = 0

    def skip(n: int) -> None:
        nonlocal d
        for _ in range(n):
            slots.append(_Slot(d, Range(as_index(0), 1, x.shape[d])))
            d += 1

    for word in spec:
        if word == "none":
            slots.append(_Slot(None))
        elif word == "ellipsis":
            skip(x.ndim - consumed)
        elif word == "slice":
            start, stop, step = operands.pop(0), operands.pop(0), operands.pop(0)
            slots.append(_Slot(d, slice_range(b, x.shape[d], start, stop, step)))
            d += 1
        elif word == "int":
            value = operands.pop(0)
            if isinstance(value, bool) or not isinstance(value, int | Index):
                raise Unsupported("a subscript that is a bool or a number of the run")
            fixed[d] = int_index(b, value, x.shape[d])
            d += 1
        elif word == "tensor":
            index = operands.pop(0)
            if not isinstance(index, Val):
                raise Unsupported("a list as a subscript")
            check_index(b, index, x.shape[d], wraps=True)
            if index.ndim == 0:
                gathers_a_view = not copies
                fixed[d] = gathered(b, index, [], x.shape[d], wraps=True)
            else:
                slots.append(_Slot(d, tensor=index))
            d += 1
        else:
            raise Unsupported(f"a subscript {word!r}")
    skip(x.ndim - d)
    is_view = gathers_a_view and not any(s.tensor is not None for s in slots)
    if is_view and not b.lifts:
        raise Unsupported("a view at an index from data")
    return _pick(b, x, slots, fixed)


def _pick(b: Builder, x: Val, slots: Sequence[_Slot], fixed: dict[int, Index]) -> Val:
    tensors = [k for k, s in enumerate(slots) if s.tensor is not None]
    index_shape = broadcast(b, *(s.tensor.shape for s in slots if s.tensor is not None))
    adjacent = not tensors or tensors[-1] - tensors[0] == len(tensors) - 1
    front = tensors[0] if tensors and adjacent else 0
    shape: list[Size] = [
        1 if s.range is None else s.range.length for s in slots if s.tensor is None
    ]
    shape[front:front] = index_shape

    def index(idx: tuple[Index, ...]) -> list[Index]:
        common = idx[front : front + len(index_shape)]
        plain = [*idx[:front], *idx[front + len(index_shape) :]]
        at = dict(fixed)
        for s in slots:
            if s.tensor is not None and s.source is not None:
                inside = broadcast_index(b, s.tensor.shape, common)
                at[s.source] = gathered(b, s.tensor, inside, x.shape[s.source], wraps=True)
                continue
            i = plain.pop(0)
            if s.source is not None and s.range is not None:
                at[s.source] = i * s.range.step + s.range.start
        return [at[d] for d in range(x.ndim)]

    return view(b, x, shape, index)


def _eager_getitem(spec: Sequence[str], x: Any, *items: Any) -> Any:
    operands = list(items)
    subscript: list[Any] = []
    for word in spec:
        if word == "slice":
            subscript.append(slice(operands.pop(0), operands.pop(0), operands.pop(0)))
        elif word == "none":
            subscript.append(None)
        elif word == "ellipsis":
            subscript.append(...)
        else:
            subscript.append(operands.pop(0))
    return x[subscript[0] if len(subscript) == 1 else tuple(subscript)]


register(
    OpRecord(
        name="getitem",
        params=(
            Param(name="spec", type="str[]"),
            Param(name="self", type="Tensor"),
            Param(name="items", type="any[]", variadic=True),
        ),
        results=("Tensor",),
        sources=("operator.getitem", "Tensor.__getitem__"),
        kind="view",
        eager=_eager_getitem,
        lower=lower_getitem,
        doc="x[...]; see the module's text for the operands.",
    )
)


@op(
    "index",
    "(self: Tensor, indices: any[]) -> Tensor",
    "torch.ops.aten.index.Tensor",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_index(b: Builder, x: Val, indices: Any) -> Val:
    """`x[i, :, j]` for `(i, None, j)`, of tensors alone: new memory, also for one of no dims."""
    words = ["slice" if i is None else "tensor" for i in indices]
    items = [part for i in indices for part in ((None, None, None) if i is None else (i,))]
    return lower_getitem(b, words, x, *items, copies=True)
