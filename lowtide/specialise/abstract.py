"""Abstract values: the knowledge about an SSA value while a region is specialised.

    Val       a tensor of the region           Index   an int made of sizes and free ints
    Expr      a float known at the call, or a number or bool per iteration of a lifted loop
    Seq       a tuple, list or torch.Size of these
    Map       a dict whose keys are constants
    Ragged    a number of steps that differs between iterations
    Selection what a mask selects of a tensor
    OPAQUE    a number known at the call, and unknown now
    others    a constant: None, bool, int, float, str, dtype, device, ...

Invariant: an `Abs` that is neither a constant nor an Index of plain sizes has a place among the
live-ins or an `Origin`. By either, the host makes the value at run time. A kernel computes a tensor
that has neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from lowtide.ir import dtypes
from lowtide.ir.core import Op, Value
from lowtide.ir.named_results import build
from lowtide.texpr.build import Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index


class _Opaque:
    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE: Final = _Opaque()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value in the live-ins: `position`, then subscripts, which may be keys of
    dicts."""

    position: int
    path: tuple[int | str, ...] = ()

    def of(self, key: int | str) -> Place:
        """Return the place of an element."""
        return Place(self.position, (*self.path, key))


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """One call of a Python function on operands: how a number or a view is made at run time.
    Invariant: the operands are as they are at the call, whatever becomes of lists and dicts."""

    fn: Callable[..., Any]
    operands: tuple[Abs, ...]
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", tuple(map(frozen, self.operands)))


@dataclass(frozen=True, slots=True)
class Seq:
    """A sequence whose length is known; `kind` is the Python type."""

    kind: type
    elems: tuple[Abs, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """A dict whose keys are known, in order."""

    keys: tuple[Any, ...]
    elems: tuple[Abs, ...]

    def entries(self) -> dict[Any, Abs]:
        """As a dict."""
        return dict(zip(self.keys, self.elems, strict=True))


@dataclass(frozen=True, slots=True)
class Ragged:
    """A number of steps, another one in each iteration of a lifted loop; none if negative."""

    count: Index


@dataclass(frozen=True, slots=True)
class Selection:
    """The elements of `full`, or its rows, at which `mask` holds, in order. `op` selects; `place`:
    they are the indices along this dim of the mask. See `selections`."""

    full: Val
    mask: Val
    op: Op
    place: int | None = None


class Pending:
    """A list whose elements a lifted loop is still making: only the lifting may read it."""


@dataclass(slots=True, eq=False)
class Abs:
    """An abstract value.

    `item`: the element of the origin's result that this is, None for the whole.
    `base`: the tensor that this one is a view of. `dynamic`: it depends on the value of a float."""

    value: object
    origin: Place | Origin | None = None
    item: int | None = None
    base: Abs | None = None
    dynamic: bool = False


def frozen(x: Abs) -> Abs:
    """Return a copy of a value as it is now, because the region may change a list or dict later."""
    if x.origin is not None or not isinstance(x.value, Seq | Map):
        return x
    elems = tuple(map(frozen, x.value.elems))
    changes = isinstance(x.value, Map) or x.value.kind is list
    if not changes and all(map(operator.is_, elems, x.value.elems)):
        return x
    return Abs(replace(x.value, elems=elems), dynamic=x.dynamic)


def constant(value: object) -> Abs:
    """Return a Python constant; tuples and lists become sequences."""
    if isinstance(value, Index) and value.const is not None:
        return Abs(value.const)
    if isinstance(value, tuple | list):
        elems = cast("Sequence[object]", value)
        return Abs(Seq(type(elems), tuple(constant(v) for v in elems)))
    return Abs(value)


def is_constant(x: Abs) -> bool:
    """Return whether the value is the same in every run of the signature."""
    if isinstance(x.value, Seq | Map):
        return isinstance(x.value, Seq) and all(is_constant(e) for e in x.value.elems)
    is_known = not isinstance(x.value, Val | Index | Expr | Ragged | Selection | Pending)
    return is_known and x.value is not OPAQUE


def holds_list(x: Abs) -> bool:
    """Return whether the value is a list, or a sequence that contains one. A copy cannot replace
    it."""
    if not isinstance(x.value, Seq):
        return False
    return x.value.kind is list or any(map(holds_list, x.value.elems))


def is_int(x: Abs) -> bool:
    """Return whether the value is an int or bool that is known, or known as an Index."""
    return isinstance(x.value, int | Index)


def operands_of(op: Op, env: Mapping[Value, Abs]) -> list[Abs]:
    """Return the operands of an op. Raises Unsupported if one is no live-in of the region: a list
    or an index that an earlier region changed."""
    if any(v not in env for v in op.operands):
        raise Unsupported("changes what was made before")
    return [env[v] for v in op.operands]


def concrete(x: Abs) -> Any:
    """Return the Python value of a constant."""
    if isinstance(x.value, Seq):
        return build(x.value.kind, [concrete(e) for e in x.value.elems])
    return x.value


def wrapped(found: object) -> Abs:
    """Return the abstract value of a nest of abstract values, or of a constant."""
    if isinstance(found, Abs):
        return found
    if isinstance(found, dict):
        entries = cast("dict[Any, object]", found)
        return Abs(Map(tuple(entries), tuple(map(wrapped, entries.values()))))
    if isinstance(found, list | tuple):
        kind = list if isinstance(found, list) else tuple
        return Abs(Seq(kind, tuple(map(wrapped, cast("Sequence[object]", found)))))
    return constant(found)


def raw(x: Abs, computes: bool = False) -> Any:
    """Return the value as a lowering takes it. Raises Unsupported for a number that only the call
    knows. `computes`: the lowering computes with ints, and does not use them as places or sizes."""
    if x.value is OPAQUE or isinstance(x.value, Map | Ragged | Selection | Pending):
        raise Unsupported("a value that is known only at run time")
    if isinstance(x.value, Seq):
        elems = [raw(e) for e in x.value.elems]
        return elems if x.value.kind is list else tuple(elems)
    if isinstance(x.value, Expr):
        dtype = x.value.dtype
        if dtype is dtypes.boolean or not (computes or dtype.is_float):
            raise Unsupported("a number or bool that differs between iterations")
    if isinstance(x.value, complex):
        raise Unsupported("a complex number")
    return x.value


def tensors_in(x: Abs) -> list[Abs]:
    """Return every tensor in a value, in order."""
    if isinstance(x.value, Seq | Map):
        return [t for e in x.value.elems for t in tensors_in(e)]
    return [x] if isinstance(x.value, Val) else []


def is_dynamic(x: Abs) -> bool:
    """Return whether the value depends on a float of the call."""
    if isinstance(x.value, Seq | Map):
        return any(is_dynamic(e) for e in x.value.elems)
    return x.dynamic
