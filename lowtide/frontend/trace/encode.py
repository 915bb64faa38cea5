"""Encodes the arguments of a recorded call as values, and subscripts as an `Indexing` spec.

In: Python objects: tensors, traced numbers, constants, members of enums, values; tuples, lists and
dicts of these. Out: values.

    (x, [1, n], torch.float32)   →  %x, list.make(%1, %n), const {value=torch.float32}
    x[1:n, None, mask]           →  Items(("slice", "none", "tensor"), (%1, %n, %none, %mask))

Raises NotEncodable for what IR has no constant for (an array, a generator, any other object), which
`is_encodable` tells before anything is recorded.
"""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, Protocol, cast

import numpy as np
import torch

from lowtide.frontend.trace.numbers import Traced, plain_number
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import Builder
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal


class NotEncodable(Exception):
    """There is no constant for an object; the text names its kind."""


class Known(Protocol):
    """The interface of the recorder for encoding."""

    builder: Builder

    def tensor(self, tensor: torch.Tensor) -> Value:
        """Return the value of a tensor, captured if it is new."""
        ...

    def number(self, number: Any) -> Value | None:
        """Return the value of a number of this run, None for any other."""
        ...

    def data(self, tensor: torch.Tensor) -> Value:
        """Return the captured value of a tensor that nothing else refers to."""
        ...


_CLASSES: Final[dict[object, torch.dtype]] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_LEGACY: Final[Any] = type(torch.FloatTensor)


def encode(known: Known, x: Any) -> Value:
    """Return the value of an argument."""
    if isinstance(x, Value):
        return x
    if isinstance(x, torch.Tensor):
        return known.tensor(x)
    if isinstance(x, Traced):
        return known.number(x) or known.builder.const(plain_number(x))
    if isinstance(x, tuple | list):
        return _sequence(known, x)  # pyright: ignore[reportUnknownArgumentType]
    if type(x) is dict:
        held = cast("dict[Any, Any]", x)
        keys = [encode(known, k) for k in held]
        return dict_make(known.builder, keys, [encode(known, v) for v in held.values()])
    if isinstance(x, np.generic):
        return encode(known, x.item())
    if _is_member(x):
        return _member(known, x)
    if isinstance(x, type) and x in _CLASSES:
        return known.builder.const(_CLASSES[x])
    if isinstance(x, _LEGACY):
        return known.builder.const(f"{x.__module__}.{x.__name__}")  # as `Tensor.type` takes it
    if isinstance(x, int | float) and type(x) not in (bool, int, float):
        x = int(x) if isinstance(x, int) else float(x)  # an IntEnum, a NumPy float
    if not is_literal(x):
        raise NotEncodable(f"a {type(x).__name__}")
    return known.builder.const(x)


def _sequence(known: Known, x: Sequence[Any]) -> Value:
    if isinstance(x, tuple) and is_literal(x):
        return known.builder.const(tuple(x))
    elems = [encode(known, e) for e in x]
    if isinstance(x, list):
        return known.builder.list_make(elems)
    return known.builder.tuple_make(elems)


def dict_make(builder: Builder, keys: Sequence[Value], values: Sequence[Value]) -> Value:
    """Return a dict of values."""
    type_ = t.DictType(t.join_all(k.type for k in keys), t.join_all(v.type for v in values))
    operands = [v for pair in zip(keys, values, strict=True) for v in pair]
    return builder.emit("dict.make", operands, [type_]).result


def _is_member(x: object) -> bool:
    """Return whether it is one member of an enum that is not a number or string as well."""
    if not isinstance(x, enum.Enum) or isinstance(x, int | float | str):
        return False
    return x.name in type(x).__members__


def _member(known: Known, x: enum.Enum) -> Value:
    name = python_objects.name_of(type(x))
    type_ = t.ClassType(name)
    return known.builder.emit("enum.const", (), [type_], enum=name, member=x.name).result


def is_encodable(x: Any) -> bool:
    """Return whether `encode` accepts it."""
    if isinstance(x, tuple | list):
        return all(map(is_encodable, cast("Sequence[Any]", x)))
    if type(x) is dict:
        pairs = cast("dict[Any, Any]", x).items()
        return all(is_encodable(part) for pair in pairs for part in pair)
    if isinstance(x, Value | torch.Tensor | Traced | np.generic | int | float) or _is_member(x):
        return True
    return (isinstance(x, type) and x in _CLASSES) or isinstance(x, _LEGACY) or is_literal(x)


def plain(x: Any) -> Any:
    """Return an argument without traced numbers; the same object if there are none."""
    if isinstance(x, Traced):
        return plain_number(x)
    if isinstance(x, tuple | list):
        return _plain_sequence(x)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(x, slice):
        return slice(plain(x.start), plain(x.stop), plain(x.step))
    if type(x) is dict:
        held = cast("dict[Any, Any]", x)
        made = {k: plain(v) for k, v in held.items()}
        return held if all(made[k] is v for k, v in held.items()) else made
    return x


def _plain_sequence(x: Sequence[Any]) -> Any:
    elems = [plain(e) for e in x]
    if all(a is b for a, b in zip(elems, x, strict=True)):
        return x
    kind = type(x)
    make: Any = getattr(kind, "_make", None)
    return make(elems) if make is not None else kind(elems)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, slots=True)
class Items:
    """The items of a subscript."""

    spec: tuple[str, ...]
    operands: tuple[Value, ...]


def encode_items(known: Known, index: Any) -> Items:
    """Return the items of `x[index]`."""
    spec: list[str] = []
    operands: list[Value] = []
    several = isinstance(index, tuple) or (isinstance(index, list) and _stands_for_a_tuple(index))  # pyright: ignore[reportUnknownArgumentType]
    for item in cast("Sequence[Any]", index if several else (index,)):
        word, values = _item(known, item)
        spec.append(word)
        operands.extend(values)
    return Items(tuple(spec), tuple(operands))


_SHORT: Final = 32  # a longer list is always an index tensor
_WORDS: Final[dict[t.Type, str]] = {t.INT: "int", t.BOOL: "bool"}


def _stands_for_a_tuple(index: list[Any]) -> bool:
    """Return whether PyTorch reads this list as a tuple of items, as `x[[[0, 1], [2, 3]]]` for
    `x[[0, 1], [2, 3]]`. Such a list is short and holds more than numbers. The rule is that of
    `treatSequenceAsTuple` in torch/csrc/autograd/python_variable_indexing.cpp."""
    kinds = (torch.Tensor, np.ndarray, list, tuple, range, slice, EllipsisType, type(None))
    if len(index) >= _SHORT or not _lists_are_tuples():
        return False
    return any(
        isinstance(x, kinds) or (isinstance(x, Value) and x.type not in (t.INT, t.BOOL, t.FLOAT))
        for x in index
    )


@functools.cache
def _lists_are_tuples() -> bool:
    """Return whether this PyTorch still reads lists as tuples. It warns that this will end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.zeros(2, 2, device="cpu")[[[0], [1]]].dim() == 1


def _item(known: Known, item: Any) -> tuple[str, list[Value]]:
    if item is None:
        return "none", []
    if isinstance(item, EllipsisType):
        return "ellipsis", []
    if isinstance(item, slice):
        parts = cast("tuple[Any, Any, Any]", (item.start, item.stop, item.step))
        return "slice", [encode(known, part) for part in parts]
    if isinstance(item, Value):
        return _WORDS.get(item.type, "tensor"), [item]
    if isinstance(item, np.generic):
        return _item(known, cast("Any", item).item())
    if isinstance(item, bool):
        return "bool", [known.builder.const(item)]
    if isinstance(item, int):
        return "int", [encode(known, item)]
    if isinstance(item, list | range | np.ndarray) and not has_traced(known, item):
        return "tensor", [known.data(_index_tensor(item))]
    return "tensor", [encode(known, item)]


def _index_tensor(item: Any) -> torch.Tensor:
    """Return the tensor that PyTorch makes of a list or array as an index: of bools, bytes or
    int64. So an empty list selects nothing, and `x[[1.0]]` is `x[[1]]`."""
    made = torch.as_tensor(item)
    return made if made.dtype in (torch.bool, torch.uint8) else made.long()


def has_traced(known: Known, x: Any) -> bool:
    """Return whether an argument holds a tensor, or a number of this run."""
    if isinstance(x, torch.Tensor | Value):
        return True
    if isinstance(x, Traced):
        return known.number(x) is not None
    if isinstance(x, tuple | list):
        return any(has_traced(known, e) for e in cast("Sequence[Any]", x))
    if isinstance(x, dict):
        return any(has_traced(known, e) for e in cast("dict[Any, Any]", x).values())
    return False
