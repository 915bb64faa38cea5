"""Writes into tensors that the region has made: the tensor's abstract value is replaced.

In: a `mutate` op and abstract operands. Out: the op's result. The `Abs` of the written tensor gets
the new value; aliases share the `Abs`, so they see the write. A view of the tensor is recomputed
from its base at its next use.

    y = x + 1          y: Abs(t1)                   t1[i] = x[i] + 1
    v = y[0]           v: Abs(t2), base y
    y[0] = 5      ->   y: Abs(t3)                   t3[i] = 5 if i == 0 else t1[i]
    return v           v is recomputed: Abs(t4)     t4 = t3[0]

The region ends before a write that is not handled: into a tensor from outside the region, or into
one whose aliases are unknown, such as `x` after `x.reshape(…)`, which may copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch

from lowtide.ir import dtypes
from lowtide.ir.core import Op
from lowtide.ops.additions import ADDITIONS
from lowtide.ops.factories import filled
from lowtide.ops.gathers import with_value_at
from lowtide.ops.indexing import lower_getitem
from lowtide.ops.operands import broadcast_index, cast_to, check_converts
from lowtide.ops.registry import lookup
from lowtide.specialise import late_binding
from lowtide.specialise.abstract import Abs, raw, tensors_in
from lowtide.specialise.activity import Activity
from lowtide.specialise.lifting import updates
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import At, Expr
from lowtide.texpr.index import Index, as_index, deep_atoms, the_axis
from lowtide.texpr.pullback import DETACHED

# Views that are never copies.
ALIASING: Final = frozenset({
    "view", "view_as", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "permute",
    "transpose", "t", "T", "mT", "mH", "movedim", "getitem", "select", "narrow", "split",
    "chunk", "unbind", "detach", "diagonal", "Tensor.unfold",
})  # fmt: skip
_OPERATORS: Final = {
    f"operator.i{n}": f"operator.{n}"
    for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
} | {"operator.iand": "operator.and_", "operator.ior": "operator.or_"}
_ITEMS: Final = frozenset({"int", "slice", "none", "ellipsis"})
# `x[mask] = v`: the mask is of the first dims, or of the last ones.
_MASKED: Final[dict[tuple[str, ...], bool]] = {("tensor",): True, ("ellipsis", "tensor"): False}
_PLACES: Final = ("tensor", "tensor")  # `x[arange(n), columns] = v`
_TRIANGLES: Final = ("Tensor.triu", "Tensor.tril")
_FILLS: Final = ("Tensor.zero_", "Tensor.fill_", "Tensor.copy_", "Tensor.fill_diagonal_")


@dataclass(frozen=True, slots=True)
class Made:
    """The making of a view: the record of its op, the operands, and the value of its base then."""

    record: Any
    operands: tuple[Abs, ...]
    base: Abs
    base_value: object
    value: object


class Host(Protocol):
    """The members of the specialiser that are used here."""

    b: Builder
    activity: Activity
    views: dict[Abs, Made]
    blocked: set[Abs]

    def python(self, op: Op, operands: list[Abs]) -> list[Abs]: ...
    def change(self, x: Abs, value: object) -> None: ...
    def decide(self, index: Index) -> bool | None: ...
    def bound(self, op: Op, source: str, operands: Sequence[Abs]) -> Abs: ...


def out_of_place(op: Op) -> str:
    """Return the function whose result a `mutate` writes; "" if that is not supported."""
    target = str(op.attrs["target"])
    if target == "Tensor.__setitem__":
        spec = cast("tuple[str, ...]", op.attrs["spec"])
        if spec in _MASKED or spec == _PLACES:
            return "masked" if spec in _MASKED else "places"
        return "setitem" if set(spec) <= _ITEMS else ""
    if target in _OPERATORS:
        return _OPERATORS[target]
    if target in _FILLS:
        return target
    source = target.removesuffix("_")
    by_name = target.startswith("Tensor.") and target.endswith("_")
    by_flag = source == target and "out" not in cast("tuple[str, ...]", op.attrs["kwnames"])
    known = (by_name or by_flag) and bool(lookup(source))
    kinds = {r.kind for r in lookup(source)} if known else set[str]()
    return source if source in _TRIANGLES or (kinds and kinds <= {"pointwise"}) else ""


def addition(op: Op) -> str:
    """Return the function of a `mutate` that adds at places which are data. It must have no views,
    which would read the sums."""
    source = str(op.attrs["target"]).removesuffix("_")
    return source if source.removeprefix("Tensor.") in ADDITIONS else ""


def root_of(x: Abs) -> Abs:
    """Return the tensor that owns the memory."""
    while x.base is not None:
        x = x.base
    return x


def refresh(host: Host, x: Abs) -> None:
    """Recompute a view whose base has changed."""
    made = host.views.get(x)
    if made is None:
        return
    refresh(host, made.base)
    if made.base.value is made.base_value and x.value is made.value:
        return
    found = _refreshed_view(host, made.record, made.operands)
    host.change(x, found if x.item is None else found[x.item])
    host.views[x] = Made(made.record, made.operands, made.base, made.base.value, x.value)


def _refreshed_view(host: Host, record: Any, operands: Sequence[Abs]) -> Any:
    """Return a view of its base's present value, with the gradient of that."""
    before, host.b.op = host.b.op, record.name
    first = len(host.b.program.defs)
    try:
        found = record.lower(host.b, *[raw(x) for x in operands])
        return host.activity.after(record.name, found, first)
    finally:
        host.b.op = before


def mutate(host: Host, op: Op, operands: list[Abs]) -> Abs:
    """Runs the op on abstract values; raises Unsupported where PyTorch must."""
    instead = late_binding.on_number(op, operands[0])
    if instead is not None:
        return host.python(instead, operands)[0]
    x, source, since = operands[0], out_of_place(op) or addition(op), len(host.b.program.defs)
    if not host.b.op:
        host.b.loc, host.b.op = op.loc, str(op.attrs["target"])
    root = _writable(host, x)
    others = [t for other in operands[1:] for t in tensors_in(other)]
    if addition(op) and any(root_of(v) is root for v in (*host.views, *others)):
        raise Unsupported("adds to a tensor that has views, or to itself")
    for other in operands[1:]:
        for t in tensors_in(other):
            refresh(host, t)
            if root_of(t) is root and not (_same_part(op, x, t) or _are_apart(host, x, t)):
                raise Unsupported("writes parts of a tensor into itself")
    assert isinstance(root.value, Val)
    assert isinstance(x.value, Val)
    view = x.value
    if source == "setitem":
        spec = cast("tuple[str, ...]", op.attrs["spec"])
        part = lower_getitem(host.b, spec, view, *[raw(i) for i in operands[1:-1]])
        if _is_own_part(host, op, operands, part):
            return x  # `y[i] += 1` ends with y[i] = y[i]
        view = part
    if source in ("setitem", "Tensor.fill_", "Tensor.copy_"):
        if len(operands) < 2 or op.attrs.get("kwnames"):
            raise Unsupported("changes a tensor in place")
        value = _assigned(host.b, view, operands[-1])
    elif source == "masked":
        value = _masked(host.b, op, view, operands)
    elif source == "places":
        value = _with_places(host.b, view, operands)
    elif source == "Tensor.fill_diagonal_":
        value = _with_diagonal(host, op, view, operands)
    elif source == "Tensor.zero_":
        value = filled(host.b, view.shape, view.dtype, 0)
    else:
        value = _computed(host, op, source, view, operands)
    if view.name != root.value.name:
        if not _has_elements(host, view):
            _check_empty(host, root.value, value, since)
            return x
        value = updates.write(host.b, root.value, view, value)
    check_gradient(host, root.value, value, since)
    host.change(root, value)
    refresh(host, x)
    return x


def check_gradient(host: Host, before: object, after: object, since: int) -> None:
    """Raises Unsupported if a tensor's new value carries no gradient, and the one before did:
    PyTorch's tensor goes on to require gradients, which are 0. `since`: the first definition that
    is new."""
    if not isinstance(before, Val) or not isinstance(after, Val):
        return
    if host.activity.carries(before, since) and not host.activity.carries(after, since):
        raise Unsupported("writes over all of a tensor that has a gradient")


def _check_empty(host: Host, root: Val, value: Val, since: int) -> None:
    """Raises Unsupported if a write of no elements hands a gradient on: PyTorch's tensor requires
    gradients from then on."""
    if host.activity.carries(value, since) and not host.activity.carries(root, since):
        raise Unsupported("writes no elements, of what has a gradient")


def _has_elements(host: Host, view: Val) -> bool:
    """Return whether a write into the view changes anything. The formula reads the new value at
    clamped indices, which needs at least one element. Raises Unsupported if that is open."""
    known = [host.decide(as_index(size) - 1) for size in view.shape]
    if None in known:
        raise Unsupported("writes into a part that may be empty")
    return all(known)


def _writable(host: Host, x: Abs) -> Abs:
    root = root_of(x)
    if not isinstance(x.value, Val) or not isinstance(root.value, Val):
        raise Unsupported("changes a value that is known only at run time")
    if root.origin is not None:
        raise Unsupported("changes a tensor in place that was made before")
    if root in host.blocked:
        raise Unsupported("changes a tensor in place of which there may be a copy")
    if host.b.records and _is_detached(host, x):
        raise Unsupported("changes a tensor in place without autograd seeing it")
    if host.activity.carries(root.value, 0) and _has_several(host, root, x):
        raise Unsupported("changes one of several views in place, which autograd may refuse")
    if root.value.name in host.b.program.inputs:  # a copy of that: it becomes a value of its own
        source = root.value
        load = host.b.load
        host.change(root, host.b.tensor(source.shape, source.dtype, lambda i: load(source, i)))
        refresh(host, x)
    return root


def _is_detached(host: Host, x: Abs) -> bool:
    """Return whether the tensor is a view that passes no gradient on. A write into it changes the
    values of its base, but not the gradient."""
    made = host.views.get(x)
    while made is not None and made.record.name not in DETACHED:
        made = host.views.get(made.base)
    return made is not None


def _has_several(host: Host, root: Abs, x: Abs) -> bool:
    """Return whether `split`, `chunk` or `unbind` has made parts of the tensor."""
    return any(v.item is not None and root_of(v) is root for v in (*host.views, x))


def _same_part(op: Op, x: Abs, t: Abs) -> bool:
    """Return whether `t` is the very tensor that is changed. `y += y` is allowed, `y += y.t()`
    raises."""
    return t is x or str(op.attrs["target"]) == "Tensor.__setitem__"


def _are_apart(host: Host, x: Abs, t: Abs) -> bool:
    """Return whether two views of one tensor lie at different places of some dim: y[i] and y[i -
    1]."""
    return isinstance(x.value, Val) and _apart(host, x, x.value, t)


def _apart(host: Host, x: Abs, part: Val, t: Abs) -> bool:
    whole = root_of(x).value
    if not isinstance(whole, Val) or not isinstance(t.value, Val):
        return False
    if whole.name in (part.name, t.value.name):
        return False
    mine, at = updates.index_map(host.b, part, whole)
    others, read = updates.index_map(host.b, t.value, whole)
    places = ((host.b.freed(i), host.b.freed(j)) for i, j in zip(at, read, strict=True))
    return any(
        (i - j).const not in (None, 0)
        and deep_atoms(i).keys().isdisjoint(mine)
        and deep_atoms(j).keys().isdisjoint(others)
        for i, j in places
    )


def _is_own_part(host: Host, op: Op, operands: Sequence[Abs], part: Val) -> bool:
    """y[i] = y[i], with the view that this very subscript made; raises for other parts of y, unless
    they are apart."""
    x, value = operands[0], operands[-1]
    if not isinstance(value.value, Val) or root_of(value) is not root_of(x):
        return False
    if _apart(host, x, part, value):
        return False
    origin: Any = value.origin
    if value.base is not x or origin is None or origin.name != "getitem":
        raise Unsupported("writes parts of a tensor into itself")
    spec, base, *items = origin.operands
    words = tuple(e.value for e in spec.value.elems)
    same = len(items) == len(operands) - 2 and all(
        i.value is j.value or (type(i.value) is type(j.value) and i.value == j.value)
        for i, j in zip(items, operands[1:-1], strict=True)
    )
    if base is not x or words != op.attrs["spec"] or not same:
        raise Unsupported("writes parts of a tensor into itself")
    return True


def _assigned(b: Builder, view: Val, x: Abs) -> Val:
    """Return the value, broadcast to the view and in its dtype."""
    value = x.value
    if not isinstance(value, Val):
        if not isinstance(value, bool | int | float | Index | Expr):
            raise Unsupported("assigns a value that is neither a number nor a tensor")
        return filled(b, view.shape, view.dtype, value)
    if value.ndim > view.ndim:
        raise Unsupported("assigns a tensor of more dimensions")
    for mine, size in zip(value.shape, view.shape[view.ndim - value.ndim :], strict=True):
        if not b.is_one(mine):
            b.require_equal(mine, size, "assigned sizes differ")
    return b.tensor(
        view.shape,
        view.dtype,
        lambda idx: b.cast(b.load(value, broadcast_index(b, value.shape, idx)), view.dtype),
    )


def _masked(b: Builder, op: Op, view: Val, operands: Sequence[Abs]) -> Val:
    """Return the tensor after `x[mask] = v`, for one number v. Raises Unsupported."""
    mask, given = operands[-2].value, operands[-1].value
    if not isinstance(mask, Val) or mask.dtype is not dtypes.boolean or mask.ndim > view.ndim:
        raise Unsupported("changes a tensor in place at indices")
    if isinstance(given, Val) and (given.ndim or given.dtype is not view.dtype):
        raise Unsupported("assigns several values to where a mask holds")
    check_converts(b, view.dtype, given)
    spec = cast("tuple[str, ...]", op.attrs["spec"])
    first = 0 if _MASKED.get(spec) else view.ndim - mask.ndim
    for size, whole in zip(mask.shape, view.shape[first:], strict=False):
        b.require_equal(size, whole, "a mask of another size")
    value = _assigned(b, view, operands[-1])
    return b.tensor(
        view.shape,
        view.dtype,
        lambda idx: b.select(
            b.load(mask, idx[first : first + mask.ndim]), b.load(value, idx), b.load(view, idx)
        ),
    )


def _with_places(b: Builder, view: Val, operands: Sequence[Abs]) -> Val:
    """Return a matrix after `x[arange(n), columns] = v`, which writes one place of each row. Raises
    Unsupported."""
    rows, columns, given = (x.value for x in operands[1:])
    if not isinstance(rows, Val) or not isinstance(columns, Val) or isinstance(given, Val):
        raise Unsupported("changes a tensor in place at indices")
    made = b.program.defs.get(rows.name)
    place = made.expr.index if made is not None and isinstance(made.expr, At) else as_index(0)
    if view.ndim != 2 or rows.ndim != 1 or columns.ndim != 1 or the_axis(place) is None:
        raise Unsupported("changes a tensor in place at indices")
    for v in (rows, columns):
        b.require_equal(v.shape[0], view.shape[0], "indices of fewer rows")
    return with_value_at(b, view, 1, columns, cast("float", given))


def _with_diagonal(host: Host, op: Op, view: Val, operands: Sequence[Abs]) -> Val:
    """Return a matrix after `fill_diagonal_(v)`. Raises Unsupported."""
    if len(operands) != 2 or op.attrs.get("kwnames") or view.ndim != 2:
        raise Unsupported("changes a tensor in place")
    b, value = host.b, _assigned(host.b, view, operands[1])
    if isinstance(operands[1].value, Val):
        raise Unsupported("fills a diagonal with a tensor")
    check_converts(b, view.dtype, operands[1].value)

    def body(idx: tuple[Index, ...]) -> Expr:
        is_on = b.apply("eq", b.at(idx[0]), b.at(idx[1]))
        return b.select(is_on, b.load(value, idx), b.load(view, idx))

    return b.tensor(view.shape, view.dtype, body)


def _computed(host: Host, op: Op, source: str, view: Val, operands: Sequence[Abs]) -> Val:
    found = host.bound(op, source, operands).value
    if not isinstance(found, Val) or found.ndim != view.ndim:
        raise Unsupported("an in-place result of another shape")
    if not torch.can_cast(found.dtype.torch, view.dtype.torch):
        raise Unsupported("an in-place result of another dtype")
    if any(as_index(s) is not as_index(t) for s, t in zip(found.shape, view.shape, strict=True)):
        raise Unsupported("an in-place result of another shape")
    if found.name == view.name or (view.dtype is dtypes.boolean and found.dtype is not view.dtype):
        raise Unsupported("an in-place operation without effect")
    return cast_to(host.b, found, view.dtype)
