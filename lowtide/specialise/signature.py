"""Signatures: which parts of a region's live-ins are constants of a Program, and which are symbols.

In: live values. Out: a `Binding`: a key that equal programs share, abstract values, and the numbers
of this call.

    x: [1000, 4], y: [1000], n = 7   ->   x: [s0, 4], y: [s0], n: n1     {s0: 1000, n1: 7}

A dim up to 32 is a constant, a larger one a symbol; equal sizes share one symbol. At its second
size, a dim that was 2 to 32 becomes a symbol of its own, from 2 on. Strides are derived from the
sizes of a tensor that has no gaps, in whatever order its dims lie, else each is 0, 1, or a symbol.
An int is a symbol of its own. If an op asks how it compares with sizes, it is a constant up to 32
until it has a second value. A float is a runtime number, all else a constant. `Signature` holds
what calls so far have shown: spots that vary, that must be constants, and that must be equal.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from lowtide import config
from lowtide.ir import dtypes
from lowtide.ir.python_ops.numbers import UNBOUND
from lowtide.runtime import block_kernels
from lowtide.specialise.abstract import OPAQUE, Abs, Map, Place, Seq, constant
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.index import Index, Size, as_index, row_major
from lowtide.texpr.orders import Order, order_of, strides_in
from lowtide.torch_private import torch_state
from lowtide.torch_private.tensors import is_zero_tensor

SMALL = 32  # sizes up to this are constants of the signature until a dim has had another one
TINY = 1  # sizes up to this always are: a dim of size 1 broadcasts, one of size 0 has no elements

LARGE = 1 << 40  # ints from here on are constants, so that products of symbols stay within 64 bits

# MIXED: a dim that was larger than SMALL when it first varied, so that there are kernels for that.
# SIZE_LIKE: an int that ops compare with sizes. ANY, of exported C alone: a dim that may be 0 or 1,
# too, or an int that may be negative, and that ops may compare with sizes.
ANY, MIXED, VARIES, FREE, SIZE_LIKE, CONSTANT = -3, -2, -1, 0, 1, 2


class Spot(NamedTuple):
    """An int at a place (`dim` -1), or one dim of a tensor of this rank there."""

    place: Place
    dim: int = -1
    rank: int = 0

    @property
    def is_int(self) -> bool:
        return self.dim < 0


Levels = dict[Spot, int]
Alike = dict[Spot, int]  # the number of the group of spots that ops require to be equal

PLAIN_TYPES = (bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_OWN_TYPES = (*PLAIN_TYPES, enum.Enum, type(UNBOUND))
TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_GRAD_ON = torch.is_grad_enabled
_STRIDED = torch.strided
CPU = torch.device("cpu")


def _is_known(v: object) -> bool:
    """Return whether the value itself is part of the signature. Of other objects, only the class
    is."""
    return isinstance(v, _OWN_TYPES)


def is_mapping(v: Any) -> bool:
    """Return whether the value is a dict that the signature reads: its keys can stand in source
    text."""
    return type(v) is dict and all(type(k) in (str, int) for k in cast("dict[Any, Any]", v))


class Ineligible(Exception):
    """These values are not eligible for kernels: PyTorch runs the ops. The text says why, for
    `explain()`."""


def dense_key(tensor: torch.Tensor, on_meta: bool = False) -> tuple[Any, ...]:
    """Return all that a Specialisation may depend on. Raises Ineligible for tensors that are not
    plain ones, `on_meta` or on a machine."""
    if type(tensor) not in TENSOR_TYPES:
        raise Ineligible(f"a tensor of type {type(tensor).__name__}")
    is_here = tensor.is_meta if on_meta else tensor.is_cpu or tensor.is_cuda
    if not is_here or tensor.layout is not _STRIDED:
        raise Ineligible("a tensor that is not a dense tensor on the CPU or a GPU")
    if tensor.is_neg() or is_zero_tensor(tensor):
        raise Ineligible("a lazily negated tensor, or one of zeros without memory")
    if tensor.is_nested:
        raise Ineligible("a nested tensor")
    return form_key(tensor)


meta_key = functools.partial(dense_key, on_meta=True)


def form_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the dtype, sizes, strides, whether a gradient is recorded, and the device where it is
    not the CPU. A meta tensor stands for one of the CPU."""
    shape = tensor.shape
    strides = (tensor.is_contiguous() and 1 not in shape) or tensor.stride()
    form = (tensor.dtype, shape, strides, tensor.requires_grad and _GRAD_ON())
    return form if tensor.is_cpu or tensor.is_meta else (tensor.device, *form)


def exact_key(
    values: Any,
    parts: list[Any],
    floats: bool = False,
    tensor_key: Callable[[torch.Tensor], tuple[Any, ...]] = dense_key,
) -> list[Any]:
    """Append all that tells calls with these values apart: of tensors `tensor_key`, of numbers,
    strings and constants themselves, of tuples, lists and dicts their parts, of other objects the
    class. `floats`: the values of floats too."""
    for v in values:
        kind = type(v)  # pyright: ignore[reportUnknownVariableType]
        if isinstance(v, torch.Tensor):
            parts += tensor_key(v)
        elif kind is float:
            parts += (float, v.hex()) if floats else (float,)
        elif kind is int or kind in PLAIN_TYPES:
            parts += (kind, v)
        elif isinstance(v, tuple | list):
            parts += (kind, len(v))  # pyright: ignore[reportUnknownArgumentType]
            exact_key(v, parts, floats, tensor_key)
        elif kind is dict:
            parts += (kind, *v)
            exact_key(v.values(), parts, floats, tensor_key)
        else:
            parts += (kind, v) if isinstance(v, enum.Enum) else (kind,)
    return parts


@dataclass(frozen=True, slots=True)
class Dense:
    """Stands for the strides of a dense tensor, which its sizes and memory order determine: see
    `texpr/orders`."""

    order: Order


Code = int | str  # a size: a constant, or the name of a symbol
# The least value of symbols, by the letter of their names; others may be anything. Two different
# symbols s have different values, all others may be equal.
LEAST = {"s": SMALL + 1, "v": TINY + 1, "i": 0, "w": 0}


class Binding:
    """One call's live-ins seen through the signature; raises Ineligible for unsupported dtypes.

    | field | content |
    | --- | --- |
    | `key` | identifies the signature |
    | `numbers` | values of the symbols in this call |
    | `spots` | the places of each symbol |
    | `tensors`, `floats` | places of the values that a Program names |
    | `wanted` | the tensors that require a gradient |
    | `free` | symbols of ints that no op has compared with sizes |
    | `device` | where all tensors are; for meta tensors, the given one |
    | `is_contiguous` | True if all tensors are |
    """

    def __init__(
        self,
        values: Sequence[Any],
        levels: Levels,
        floats_constant: bool,
        device: torch.device = CPU,
        alike: Alike | None = None,
    ) -> None:
        self.values = values
        self._meta_device = device
        self.numbers: dict[str, int] = {}
        self.spots: dict[str, list[Spot]] = {}
        self.tensors: dict[str, Place] = {}
        self.floats: dict[str, Place] = {}
        self.wanted: list[str] = []
        self.free: set[str] = set()
        self.is_contiguous = True
        self.may_recompute = False  # see `Builder`
        self._device: torch.device | None = None
        self._levels = levels
        self._floats_constant = floats_constant
        self._shared_names: dict[int, str] = {}
        self._alike = alike or {}
        self._groups: dict[tuple[int, int], list[Spot]] = {}
        self._of_group: dict[tuple[int, int], Code] = {}
        if alike:
            for spot, n in sizes(values):
                if spot in alike:
                    self._groups.setdefault((alike[spot], n), []).append(spot)
        self._forms: list[Any] = []
        for i, v in enumerate(values):
            self._describe(v, Place(i))
        self.key = tuple(self._forms)

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors; the CPU if there are none."""
        return self._device or CPU

    @property
    def machine(self) -> str:
        """Return the machine for which kernels are compiled: see `codegen/machines`."""
        if self.device.type == "cuda":
            return str(self.device)
        return "interpreter" if config.current().interpret_blocks else "cpu"

    def _describe(self, v: Any, place: Place) -> None:
        if isinstance(v, torch.Tensor):
            self._forms.append(self._tensor(v, place))
        elif type(v) is int:
            self._forms.append((int, self._size(v, Spot(place))))
        elif type(v) is float:
            if not self._floats_constant:
                self.floats[f"f{len(self.floats)}"] = place
            self._forms.append((float, v.hex() if self._floats_constant else ""))
        elif isinstance(v, tuple | list):
            elems: list[Any] = list(v)  # pyright: ignore[reportUnknownArgumentType]
            self._forms.append((type(v), len(elems)))  # pyright: ignore[reportUnknownArgumentType]
            for i, e in enumerate(elems):
                self._describe(e, place.of(i))
        elif is_mapping(v):
            self._forms.append((dict, *v))
            for key, e in v.items():
                self._describe(e, place.of(key))
        else:
            self._forms.append((type(v), v if _is_known(v) else ""))

    def _size(self, v: int, spot: Spot) -> Code:
        """Return the code of a dim or int. Those of its group that are equal in this call have one
        code."""
        level = self._levels.get(spot, FREE) if self._levels else FREE
        if level == CONSTANT or spot not in self._alike:
            return self._alone(v, spot, level)
        group = (self._alike[spot], v)
        if group not in self._of_group:
            first = min(self._groups[group], key=self._vagueness)
            self._of_group[group] = self._alone(v, first, self._levels.get(first, FREE))
        code = self._of_group[group]
        if isinstance(code, str) and spot not in self.spots[code]:
            self.spots[code].append(spot)
        return code

    def _vagueness(self, spot: Spot) -> tuple[bool, bool]:
        """Orders spots by how little their codes say of a size."""
        return spot.is_int, self._levels.get(spot, FREE) == VARIES

    def _alone(self, v: int, spot: Spot, level: int) -> Code:
        if spot.is_int:
            return self._int(v, spot, level)
        if level == ANY:
            return self._symbol("w", v, spot)
        if level == CONSTANT or v <= TINY or (v <= SMALL and level >= FREE):
            return v
        if level == VARIES or v <= SMALL:
            return self._symbol("v", v, spot)
        found = self._shared_names.get(v)
        if found is None:
            found = self._shared_names[v] = self._symbol("s", v, spot)
        elif spot not in self.spots[found]:
            self.spots[found].append(spot)
        return found

    def _int(self, v: int, spot: Spot, level: int) -> Code:
        if level == ANY:
            return self._symbol("n", v, spot)
        if level == CONSTANT or abs(v) >= LARGE or (level == SIZE_LIKE and v <= SMALL):
            return v
        name = self._symbol("n" if level == FREE or v < 0 else "i", v, spot)
        if level == FREE:
            self.free.add(name)
        return name

    def _tensor(self, t: torch.Tensor, place: Place) -> tuple[Any, ...]:
        dtype = dtypes.from_torch(t.dtype)
        if dtype is None:
            raise Ineligible(f"a tensor of {t.dtype}")
        device = self._meta_device if t.is_meta else t.device
        if device.type == "cuda" and block_kernels.missing():
            if not t.is_meta:  # it is a call
                block_kernels.warn_missing()
            raise Ineligible(block_kernels.missing())
        if self._device not in (None, device):
            raise Ineligible("tensors on several devices")
        self._device = device
        name = f"x{len(self.tensors)}"
        self.tensors[name] = place
        records = t.requires_grad and _GRAD_ON()
        if records:
            self.wanted.append(name)
        sizes, rank = t.shape, t.dim()
        is_new = not self._levels and not self._alike  # no spot is anything but FREE
        shape = tuple(
            n if is_new and n <= SMALL else self._size(n, Spot(place, d, rank))
            for d, n in enumerate(sizes)
        )
        order = order_of(sizes, t.stride()) if 1 in sizes or not t.is_contiguous() else None
        if order is None and t.is_contiguous():
            return (dtype, shape, None, records)
        self.is_contiguous = False
        if order is not None:
            return (dtype, shape, Dense(order), records)
        strides = tuple(
            0 if size == 1 else stride if stride in (0, 1) else self._symbol("d", stride, None)
            for size, stride in zip(t.shape, t.stride(), strict=True)
        )
        return (dtype, shape, strides, records)

    def _symbol(self, letter: str, value: int, spot: Spot | None) -> str:
        name = f"{letter}{len(self.numbers)}"
        self.numbers[name] = value
        self.spots[name] = [spot] if spot is not None else []
        return name

    def abstract(self) -> tuple[Builder, list[Abs]]:
        """Return a builder with the tensors as inputs, and the abstract live-ins."""
        builder = Builder()
        builder.device = self.device
        builder.adds = torch_state.may_add(self.machine)
        builder.default_device = torch_state.default_device() or CPU
        lower = torch_state.autocast_dtype(self.device.type)
        builder.autocast = None if lower is None else dtypes.from_torch(lower)
        source = _Source(builder, iter(self._forms), iter(self.tensors), iter(self.floats))
        live = [self._abstract(v, Place(i), source) for i, v in enumerate(self.values)]
        return source.builder, live

    def _abstract(self, v: Any, place: Place, source: _Source) -> Abs:
        kind, *form = next(source.forms)
        if isinstance(v, torch.Tensor):
            return Abs(_input(source.builder, next(source.tensors), kind, *form[:2]), place)
        if kind is int:
            code: Code = form[0]
            return Abs(code if isinstance(code, int) else size_of(code), place)
        if kind is float and self._floats_constant:
            return constant(v)
        if kind is float:
            return Abs(ex.scalar(next(source.floats), dtypes.f64), place, dynamic=True)
        if isinstance(v, tuple | list):
            elems: list[Any] = list(v)  # pyright: ignore[reportUnknownArgumentType]
            inner = [self._abstract(e, place.of(i), source) for i, e in enumerate(elems)]
            return Abs(Seq(kind, tuple(inner)), place)
        if is_mapping(v):
            inner = [self._abstract(e, place.of(key), source) for key, e in v.items()]
            return Abs(Map(tuple(v), tuple(inner)), place)
        return constant(v) if _is_known(v) else Abs(OPAQUE, place)


@dataclass(slots=True)
class _Source:
    """The parts of a binding that are not abstract yet."""

    builder: Builder
    forms: Iterator[Any]
    tensors: Iterator[str]
    floats: Iterator[str]


def _input(
    builder: Builder,
    name: str,
    dtype: dtypes.DType,
    shape: tuple[Code, ...],
    strides: tuple[Code, ...] | Dense | None,
) -> Val:
    sizes = [size_of(code) for code in shape]
    if strides is None:
        return builder.input(name, sizes, row_major(sizes), dtype)
    if isinstance(strides, Dense):
        steps = strides_in(sizes, strides.order)
        return builder.input(name, sizes, steps, dtype, strides.order)
    return builder.input(name, sizes, [size_of(code) for code in strides], dtype)


def size_of(code: Code) -> Index:
    """Return a constant, or the symbol of this name."""
    if isinstance(code, int):
        return as_index(code)
    return size_symbol(code, LEAST.get(code[0]))


@functools.cache
def size_symbol(name: str, low: int | None) -> Index:
    """Return the symbol of this name; the same object in every signature, so that guards can be
    compared."""
    return as_index(Size(name, low))


def sizes(values: Sequence[Any]) -> Iterator[tuple[Spot, int]]:
    """Yield every dim of every tensor among live-ins, and every int."""
    for k, v in enumerate(values):
        yield from _sizes(v, Place(k))


def _sizes(v: Any, place: Place) -> Iterator[tuple[Spot, int]]:
    if isinstance(v, torch.Tensor):
        yield from ((Spot(place, d, v.ndim), n) for d, n in enumerate(v.shape))
        return
    if type(v) is int:
        yield Spot(place), v
        return
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(v, tuple | list):
        entries = enumerate(cast("Sequence[Any]", v))
    elif is_mapping(v):
        entries = v.items()
    for key, e in entries:
        yield from _sizes(e, place.of(key))


def with_varying(
    levels: Levels, values: Sequence[Any], seen: dict[Spot, set[int]]
) -> Levels | None:
    """Return the levels in which dims and ints are symbols that have had two sizes, one of them
    small. None if there are no new ones. `seen`: their sizes, SMALL + 1 for all larger ones."""
    found: Levels = {}
    for spot, n in sizes(values):
        if levels.get(spot, FREE) != (SIZE_LIKE if spot.is_int else FREE):
            continue
        before = seen.setdefault(spot, set())
        before.add(min(n, SMALL + 1))
        if spot.is_int:
            if len(before) > 1:
                found[spot] = VARIES
        elif n > SMALL:
            if any(TINY < m <= SMALL for m in before):
                found[spot] = VARIES
        elif n > TINY and len(before) > 1:
            found[spot] = MIXED if SMALL + 1 in before else VARIES
    return levels | found if found else None


def escalated(levels: Levels, binding: Binding, symbols: frozenset[str]) -> Levels | None:
    """Return the levels with these symbols nearer to constants: first free ints, then size-like
    ints, then dims. None if none can be raised."""
    spots = [s for name in symbols for s in binding.spots.get(name, [])]
    ints = {s: levels.get(s, FREE) for s in spots if s.is_int}
    if ints:
        return levels | {s: SIZE_LIKE if n == FREE else CONSTANT for s, n in ints.items()}
    dims = dict.fromkeys(spots, CONSTANT)
    return levels | dims if dims else None


def size_like(levels: Levels, binding: Binding, symbols: frozenset[str]) -> Levels:
    """Return the levels with these free ints as sizes."""
    return levels | {s: SIZE_LIKE for name in symbols for s in binding.spots[name]}


def grouped(alike: Alike, binding: Binding, symbols: Iterable[str]) -> Alike:
    """Return the groups with the spots of these symbols in one."""
    spots = [s for name in symbols for s in binding.spots[name]]
    old = {alike[s] for s in spots if s in alike}
    group = min(old, default=len(alike))
    joined = [s for s, n in alike.items() if n in old]
    return alike | dict.fromkeys([*spots, *joined], group)
