"""Reads the pickles of a TorchScript archive; no name that a pickle holds is imported or called.

In: the bytes of `data.pkl`, and who builds tensors. Out: tensors, None, bools, numbers, strings,
lists, dicts, tuples, devices, `Instance`s and `EnumMember`s.

    __torch__.M () NEWOBJ {'n': 3} BUILD       Instance("__torch__.M", {"n": 3})
    __torch__.Color 1 REDUCE                   EnumMember("__torch__.Color", 1)
    (3, tensor)                                also a named tuple: its class is in the code alone

The state of an `Instance` is the dict of its attributes, or whatever `__getstate__` returned if the
class has `__setstate__`. A type tag (`restore_type_tag`, `build_intlist`) is dropped: the classes
in the code annotate each attribute, so it says nothing new.
torch.jit.save writes no value that contains itself: it never returns from one.
Invariant: two references to one object are one object. Any bytes give a value or a LoadError, with
loops alone: neither the nesting nor the memory exceeds `limits`.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch

from lowtide.deploy import limits
from lowtide.errors import LoadError
from lowtide.torch_private.private_names import (
    REBUILD_QUANTIZED,
    REBUILD_SPARSE,
    REBUILD_TENSOR,
    SCRIPT_PICKLE,
)


@dataclass(slots=True, eq=False)
class Instance:
    """An object of one of the archive's classes. `cls`: "__torch__.module.Name"."""

    cls: str
    state: object = None
    has_state: bool = False


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of one of the archive's enums, by its value."""

    cls: str
    value: object


@dataclass(frozen=True, slots=True)
class Name:
    """A global that a pickle names, on the way to its use."""

    text: str


class Builder(Protocol):
    """Makes tensors from records. Raises ValueError for arguments that do not fit."""

    def storage(self, key: tuple[object, ...]) -> object: ...

    def tensor(self, rebuild: str, arguments: tuple[object, ...]) -> torch.Tensor: ...


_CLASS: Final = re.compile(r"__torch__(\.[^\W\d]\w*)+")
_LISTS: Final = {
    f"{SCRIPT_PICKLE}build_intlist": int,
    f"{SCRIPT_PICKLE}build_doublelist": float,
    f"{SCRIPT_PICKLE}build_boollist": bool,
    f"{SCRIPT_PICKLE}build_tensorlist": torch.Tensor,
}
_TAG: Final = f"{SCRIPT_PICKLE}restore_type_tag"
_REBUILDS: Final = (REBUILD_TENSOR, REBUILD_QUANTIZED, REBUILD_SPARSE)
_SCHEMES: Final = (
    *("per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams"),
)
_STORAGE: Final = re.compile(r"torch\.\w{1,40}Storage")
_NAMES: Final = frozenset({
    *_LISTS, *_REBUILDS, *(f"torch.{scheme}" for scheme in _SCHEMES), _TAG,
    "torch.device", "builtins.complex", "collections.OrderedDict",
})  # fmt: skip
_LEAVES: Final = frozenset({
    type(None), bool, int, float, complex, str, torch.device, torch.Tensor, EnumMember,
})  # fmt: skip
_KEYS: Final = (bool, int, float, complex, str, torch.device, torch.Tensor)
_BROKEN: Final = (*(ValueError, TypeError, LookupError, OverflowError, RuntimeError, struct.error),)


def unpickle(raw: bytes, what: str, builder: Builder | None = None) -> object:
    """Return the value of a pickle. `what`: its name in messages. Raises LoadError."""
    machine = _Machine(raw, builder)
    begin = 0
    try:
        while True:
            begin = machine.at
            code = raw[begin]
            machine.at = begin + 1
            if code == _STOP:
                break
            _OPCODES[code](machine)
        (value,) = machine.stack
        _check(value)
    except _BROKEN as error:
        raise LoadError(f"{what}, byte {begin}: {_problem(raw, begin, error)}") from error
    return value


def _problem(raw: bytes, at: int, error: Exception) -> str:
    if at >= len(raw):
        return "the pickle has no end"
    name = next((o.name for o in pickletools.opcodes if o.code == chr(raw[at])), f"{raw[at]:#04x}")
    if raw[at] != _STOP and raw[at] not in _OPCODES:
        return f"the opcode {name}, which torch.jit.save does not write"
    return f"{name}: {error}"


class _Machine:
    """The stack and the memo. Each method below is an opcode of Python's pickle protocol 2."""

    def __init__(self, raw: bytes, builder: Builder | None) -> None:
        self.raw = raw
        self.at = 0
        self.builder = builder
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.containers = 0

    def take(self, count: int) -> bytes:
        begin, end = self.at, self.at + count
        if end > len(self.raw):
            raise ValueError(f"{count} bytes from byte {begin} on; the pickle ends before")
        self.at = end
        return self.raw[begin:end]

    def number(self, form: struct.Struct) -> Any:
        self.at += form.size
        return form.unpack_from(self.raw, self.at - form.size)[0]

    def line(self) -> str:
        end = self.raw.index(b"\n", self.at, self.at + 2000)
        begin, self.at = self.at, end + 1
        return self.raw[begin:end].decode()

    def items(self) -> list[Any]:
        """Remove and return what is above the last mark."""
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def push(self, container: object) -> None:
        self.containers += 1
        if self.containers > limits.PICKLE_CONTAINERS:
            raise ValueError(f"more than {limits.PICKLE_CONTAINERS} containers")
        self.stack.append(container)

    # ---- values

    def protocol(self) -> None:
        if self.at != 1 or self.take(1) != b"\2":
            raise ValueError("a pickle of protocol 2 is expected")

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def none(self) -> None:
        self.stack.append(None)

    def true(self) -> None:
        self.stack.append(True)

    def false(self) -> None:
        self.stack.append(False)

    def byte(self) -> None:
        self.stack.append(self.raw[self.at])
        self.at += 1

    def short(self) -> None:
        self.stack.append(self.number(_U16))

    def integer(self) -> None:
        self.stack.append(self.number(_I32))

    def long(self) -> None:
        size = self.take(1)[0]
        if size > 8:
            raise ValueError(f"an integer of {size} bytes, at most 8")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def double(self) -> None:
        self.stack.append(self.number(_F64))

    def text(self) -> None:
        self.stack.append(self.take(self.number(_U32)).decode())

    # ---- containers

    def empty_tuple(self) -> None:
        self.stack.append(())

    def tuple1(self) -> None:
        self.push((self.stack.pop(),))

    def tuple2(self) -> None:
        second = self.stack.pop()
        self.push((self.stack.pop(), second))

    def tuple3(self) -> None:
        third, second = self.stack.pop(), self.stack.pop()
        self.push((self.stack.pop(), second, third))

    def make_tuple(self) -> None:
        self.push(tuple(self.items()))

    def empty_list(self) -> None:
        self.push([])

    def make_list(self) -> None:
        self.push(self.items())

    def append(self) -> None:
        item = self.stack.pop()
        _expect(self.stack[-1], list).append(item)

    def appends(self) -> None:
        items = self.items()
        _expect(self.stack[-1], list).extend(items)

    def empty_dict(self) -> None:
        self.push({})

    def make_dict(self) -> None:
        self.push(_put({}, self.items()))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _put(self.stack[-1], [key, value])

    def set_items(self) -> None:
        items = self.items()
        _put(self.stack[-1], items)

    # ---- memo

    def put(self) -> None:
        self.memo[self.raw[self.at]] = self.stack[-1]
        self.at += 1

    def long_put(self) -> None:
        self.memo[self.number(_U32)] = self.stack[-1]

    def get(self) -> None:
        self.stack.append(self.memo[self.raw[self.at]])
        self.at += 1

    def long_get(self) -> None:
        self.stack.append(self.memo[self.number(_U32)])

    # ---- objects

    def name(self) -> None:
        found = f"{self.line()}.{self.line()}"
        if found not in _NAMES and not _CLASS.fullmatch(found) and not _STORAGE.fullmatch(found):
            raise ValueError(f"the global {found!r}, which TorchScript archives do not name")
        self.push(Name(found))

    def new(self) -> None:
        arguments, name = self.stack.pop(), _expect(self.stack.pop(), Name)
        if arguments != () or not name.text.startswith("__torch__."):
            raise ValueError(f"an object of {name.text} with arguments")
        self.push(Instance(name.text))

    def build(self) -> None:
        state, made = self.stack.pop(), _expect(self.stack[-1], Instance)
        if made.has_state:
            raise ValueError(f"an object of {made.cls} has a state already")
        made.state, made.has_state = state, True

    def storage(self) -> None:
        if self.builder is None:
            raise ValueError("a tensor where there is none")
        self.push(self.builder.storage(_expect(self.stack.pop(), tuple)))

    def reduce(self) -> None:
        arguments: Any = self.stack.pop()
        name = _expect(self.stack.pop(), Name).text
        if name.startswith("__torch__."):
            if type(arguments) not in (int, float, str):
                raise ValueError(f"a member of {name} by a {type(arguments).__name__}")
            self.push(EnumMember(name, arguments))
            return
        if type(arguments) is not tuple:
            raise ValueError(f"{name} of a {type(arguments).__name__}, not a tuple")
        self.push(self._made(name, cast("Any", arguments)))

    def _made(self, name: str, arguments: Any) -> object:
        if name in _REBUILDS and self.builder is not None:
            return self.builder.tensor(name, arguments)
        if name in _LISTS:
            (items,) = arguments
            if any(type(i) is not _LISTS[name] for i in _expect(items, list)):
                raise ValueError(f"{name} of other items")
            return items
        match name, arguments:
            case _, (list() | dict(), str()) if name == _TAG:
                return cast("object", arguments[0])
            case "collections.OrderedDict", ():
                return {}
            case "builtins.complex", (float(real), float(imaginary)):
                return complex(real, imaginary)
            case "torch.device", (str(text),):
                return torch.device(text)
            case _:
                raise ValueError(f"{name} of other arguments")


def _expect(value: object, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected, not a {type(value).__name__}")
    return value


def _put(target: object, items: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = _expect(target, dict)
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in _KEYS:  # a nested tuple would be hashed by recursion
            raise ValueError(f"a {type(key).__name__} as a key")
        found[key] = value
    return found


_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_F64: Final = struct.Struct(">d")
_STOP: Final = ord(".")
_OPCODES: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _Machine.protocol, 0x81: _Machine.new, 0x85: _Machine.tuple1, 0x86: _Machine.tuple2,
    0x87: _Machine.tuple3, 0x88: _Machine.true, 0x89: _Machine.false, 0x8A: _Machine.long,
    **{ord(letter): method for letter, method in {
        "(": _Machine.mark, "N": _Machine.none, "K": _Machine.byte, "M": _Machine.short,
        "J": _Machine.integer, "G": _Machine.double, "X": _Machine.text,
        ")": _Machine.empty_tuple, "t": _Machine.make_tuple, "]": _Machine.empty_list,
        "l": _Machine.make_list, "a": _Machine.append, "e": _Machine.appends,
        "}": _Machine.empty_dict, "d": _Machine.make_dict, "s": _Machine.set_item,
        "u": _Machine.set_items, "q": _Machine.put, "r": _Machine.long_put,
        "h": _Machine.get, "j": _Machine.long_get, "c": _Machine.name, "b": _Machine.build,
        "Q": _Machine.storage, "R": _Machine.reduce,
    }.items()},
}  # fmt: skip


@dataclass(slots=True)
class _Visit:
    """A container on the path from the root. `height`: the levels below; `size`: the values in it
    if it were written out without sharing, each object once."""

    value: object
    rest: Iterator[object]
    height: int = 0
    size: int = 1


def _check(root: object) -> None:
    """Raise ValueError for what is no value, for cycles, and for what is nested too deeply."""
    known: dict[int, tuple[int, int] | None] = {}  # height and size; None while it is visited
    top = _Visit(None, iter((root,)))
    path = [top]
    while path:
        visit = path[-1]
        value = next(visit.rest, _END)
        if value is _END:
            path.pop()
            size = 1 if type(visit.value) is Instance else visit.size
            known[id(visit.value)] = visit.height + 1, size
            if path:
                _count(path, visit.height + 1, size)
            continue
        if type(value) in _LEAVES:
            visit.size += 1
            continue
        if id(value) not in known:
            known[id(value)] = None
            path.append(_Visit(value, iter(_children(value))))
            _count(path, 0, 0)
        else:
            done = known[id(value)]
            if done is None:
                raise ValueError(f"a {type(value).__name__} that contains itself")
            _count(path, *done)


def _count(path: list[_Visit], height: int, size: int) -> None:
    visit = path[-1]
    visit.height = max(visit.height, height)
    visit.size += size
    if len(path) + height > limits.PICKLE_NESTING:
        raise ValueError(f"values nested more than {limits.PICKLE_NESTING} deep")
    if visit.size > limits.PICKLE_UNFOLDED:
        raise ValueError(f"a value of more than {limits.PICKLE_UNFOLDED} parts")


_END: Final = object()


def _children(value: Any) -> Iterable[object]:
    match value:
        case tuple() | list():
            return cast("Iterable[object]", value)
        case dict():
            return cast("dict[object, object]", value).values()
        case Instance(has_state=True):
            return (value.state,)
        case Instance():
            raise ValueError(f"an object of {value.cls} without a state")
        case _:
            raise ValueError(f"a {type(value).__name__} as a value")
