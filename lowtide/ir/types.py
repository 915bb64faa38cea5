"""The types of SSA values: frozen records that print and parse.

In: text as it stands in printed IR and in error messages. Out: records, compared by value.

    parse_type("(Tensor, List[int])")  ==  TupleType((TENSOR, ListType(INT)))
    str(OptionalType(TENSOR))          ==  "Optional[Tensor]"

Invariant: `parse_type(str(t)) == t`. A tensor's dtype and shape are no part of its type. The
names are TorchScript's.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch

from lowtide.ir import python_objects
from lowtide.ir.named_results import field_names


@dataclass(frozen=True, slots=True)
class Type:
    """The root of all types; the subclasses below are the whole list."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, repr=False)
class NamedType(Type):
    """A type without parts, known by its printed name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class TupleType(Type):
    """A fixed number of elements. `names`: the fields of a named tuple, else (). `cls`: the name of
    its class in `ir.python_objects`. It is "" for a plain tuple, or if several classes with these
    fields are possible."""

    elems: tuple[Type, ...]
    names: tuple[str, ...] = ()
    cls: str = ""

    def __str__(self) -> str:
        if self.names:
            parts = [f"{n}: {t}" for n, t in zip(self.names, self.elems, strict=True)]
        else:
            parts = [str(t) for t in self.elems]
        text = f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        return f"NamedTuple[{self.cls!r}]{text}" if self.cls else text


@dataclass(frozen=True, slots=True, repr=False)
class ListType(Type):
    """Any number of elements of one type; also what `x.shape` and `x.chunk(n)` give."""

    elem: Type

    def __str__(self) -> str:
        return f"List[{self.elem}]"


@dataclass(frozen=True, slots=True, repr=False)
class DictType(Type):
    """Any number of keys of one type, each with a value of another."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"Dict[{self.key}, {self.value}]"


@dataclass(frozen=True, slots=True, repr=False)
class FutureType(Type):
    """The type of what `fork` returns: a value that is still being computed."""

    elem: Type

    def __str__(self) -> str:
        return f"Future[{self.elem}]"


@dataclass(frozen=True, slots=True, repr=False)
class ClassType(Type):
    """An object of a Python class, or an nn.Module; `name` is its name in `ir.python_objects`."""

    name: str

    def __str__(self) -> str:
        return f"Class[{self.name!r}]"


@dataclass(frozen=True, slots=True, repr=False)
class FunctionType(Type):
    """One Python function, known when the program is compiled; `name` as of a class."""

    name: str

    def __str__(self) -> str:
        return f"Function[{self.name!r}]"


@dataclass(frozen=True, slots=True, repr=False)
class OptionalType(Type):
    """`elem` or None; `elem` is never itself optional, nor None."""

    elem: Type

    def __str__(self) -> str:
        return f"Optional[{self.elem}]"


@dataclass(frozen=True, slots=True, repr=False)
class UnionType(Type):
    """One of several types, as plain Python lets a variable be: `loss = 0; loss = loss + t`."""

    elems: tuple[Type, ...]

    def __str__(self) -> str:
        return f"Union[{', '.join(map(str, self.elems))}]"


TENSOR = NamedType("Tensor")
INT = NamedType("int")
FLOAT = NamedType("float")
BOOL = NamedType("bool")
COMPLEX = NamedType("complex")
STR = NamedType("str")
NONE = NamedType("None")
NUMBER = NamedType("number")  # int, float or bool: what `.item()` gives
DTYPE = NamedType("dtype")
DEVICE = NamedType("device")
LAYOUT = NamedType("layout")
MEMORY_FORMAT = NamedType("memory_format")
GENERATOR = NamedType("Generator")
ANY = NamedType("Any")
SLICE = ClassType(python_objects.name_of(slice))
NEVER = NamedType("never")  # no value: the element of `[]`, the type of what is never looked at

_NAMED = {
    t.name: t
    for t in (
        *(TENSOR, INT, FLOAT, BOOL, COMPLEX, STR, NONE, NUMBER),
        *(DTYPE, DEVICE, LAYOUT, MEMORY_FORMAT, GENERATOR, ANY, NEVER),
    )
}
_NUMBERS = (BOOL, INT, FLOAT, NUMBER)


def tuple_of(*elems: Type) -> TupleType:
    """Return `(a, b)` without field names."""
    return TupleType(tuple(elems))


def optional(t: Type) -> Type:
    """Return `t` or None, not nested."""
    return t if t in (NONE, ANY) or isinstance(t, OptionalType) else OptionalType(t)


def is_number(t: Type) -> bool:
    """Return whether values are Python ints, floats or bools."""
    return t in _NUMBERS


def is_tensor(t: Type) -> bool:
    """Return whether a value is a tensor, or possibly None, so that operators are PyTorch's."""
    return t == TENSOR or (isinstance(t, OptionalType) and is_tensor(t.elem))


def is_tensor_or_number(t: Type) -> bool:
    """Return whether a value is a tensor on some paths and a number on all others: `1.0 if c else
    x`. Only the run knows what an operator does with it. With a tensor operand it is PyTorch's."""
    match t:
        case UnionType(elems):
            numeric = all(is_tensor(e) or is_number(e) or e in (COMPLEX, NONE) for e in elems)
            return numeric and any(map(is_tensor, elems))
        case OptionalType(elem):
            return is_tensor_or_number(elem)
        case _:
            return False


def may_be_tensor(t: Type) -> bool:
    """Return whether a value is a tensor, or possibly a number or None instead."""
    return is_tensor(t) or is_tensor_or_number(t)


def is_dynamic(t: Type) -> bool:
    """Return whether only the run knows the kind of value, so that Python must look."""
    if isinstance(t, OptionalType):
        return is_dynamic(t.elem)
    return t in (ANY, NEVER) or isinstance(t, UnionType)


def is_immutable(t: Type) -> bool:
    """Return whether values never change, so that equal ones are interchangeable."""
    match t:
        case NamedType():
            return t not in (ANY, TENSOR, GENERATOR)
        case TupleType(elems) | UnionType(elems):
            return all(map(is_immutable, elems))
        case OptionalType(elem):
            return is_immutable(elem)
        case _:
            return False


def holds_items(t: Type) -> bool:
    """Return whether the type is a list, a dict or a tuple, or possibly None instead."""
    plain = t.elem if isinstance(t, OptionalType) else t
    return isinstance(plain, ListType | DictType | TupleType)


def types_in(type_: Type) -> Iterator[Type]:
    """Yield the type and all types in it."""
    yield type_
    match type_:
        case TupleType(elems) | UnionType(elems):
            for elem in elems:
                yield from types_in(elem)
        case ListType(elem) | FutureType(elem) | OptionalType(elem):
            yield from types_in(elem)
        case DictType(key, value):
            yield from types_in(key)
            yield from types_in(value)
        case _:
            pass


def is_subtype(t: Type, of: Type) -> bool:
    """Return whether a value of type `t` is valid where `of` is expected."""
    if t in (of, NEVER) or of == ANY:
        return True
    match t, of:
        case UnionType(elems), _:
            return all(is_subtype(e, of) for e in elems)
        case OptionalType(a), OptionalType(b):
            return is_subtype(a, b)
        case _, OptionalType(elem):
            return t == NONE or is_subtype(t, elem)
        case _, UnionType(elems):
            return any(is_subtype(t, e) for e in elems)
        case TupleType(a), TupleType(b):
            return len(a) == len(b) and all(map(is_subtype, a, b))
        case ListType(a), ListType(b):
            return is_subtype(a, b)
        case TupleType(_, _, cls), ClassType(name):
            return name in ("builtins.tuple", cls)
        case DictType(a, x), DictType(b, y):
            return is_subtype(a, b) and is_subtype(x, y)
        case FutureType(a), FutureType(b):
            return is_subtype(a, b)
        case _:
            return of == NUMBER and is_number(t)


def join(a: Type, b: Type) -> Type:
    """Return the least type that holds both, where two branches meet; Any where they are many."""
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.elems) == len(b.elems):
        elems = tuple(join(p, q) for p, q in zip(a.elems, b.elems, strict=True))
        names = a.names if a.names == b.names else ()
        return TupleType(elems, names, a.cls if names and a.cls == b.cls else "")
    if is_subtype(b, a):
        return a  # of two that hold the same the first, so that a loop's types settle
    if is_subtype(a, b):
        return b
    if NONE in (a, b):
        return optional(b if a == NONE else a)
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        return optional(join(_without_none(a), _without_none(b)))
    match a, b:
        case ListType(x), ListType(y):
            return ListType(join(x, y))
        case DictType(k, x), DictType(m, y):
            return DictType(join(k, m), join(x, y))
        case _ if is_number(a) and is_number(b):
            return NUMBER
        case _:
            return _union(a, b)


def join_all(types: Iterable[Type]) -> Type:
    """Return the least type that holds all; `never` for none."""
    joined: Type = NEVER
    for type_ in types:
        joined = join(joined, type_)
    return joined


_LARGEST_UNION = 6


def _union(a: Type, b: Type) -> Type:
    parts: list[Type] = []
    for part in (*_members(a), *_members(b)):
        if not any(is_subtype(part, p) for p in parts):
            parts = [p for p in parts if not is_subtype(p, part)] + [part]
    return UnionType(tuple(parts)) if len(parts) <= _LARGEST_UNION else ANY


def _without_none(t: Type) -> Type:
    return t.elem if isinstance(t, OptionalType) else t


def _members(t: Type) -> tuple[Type, ...]:
    return t.elems if isinstance(t, UnionType) else (t,)


_OF_PYTHON: dict[type, Type] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    complex: COMPLEX,
    str: STR,
    type(None): NONE,
    torch.dtype: DTYPE,
    torch.device: DEVICE,
    torch.layout: LAYOUT,
    torch.memory_format: MEMORY_FORMAT,
    torch.Generator: GENERATOR,
}


_LIST_OF_PYTHON: dict[type, Type] = {cls: ListType(type_) for cls, type_ in _OF_PYTHON.items()}
_MATRIX_OF_PYTHON = {cls: ListType(type_) for cls, type_ in _LIST_OF_PYTHON.items()}


def type_of(value: object) -> Type | None:
    """Return the type of a run-time value, as far down as it goes; None for what IR does not
    hold."""
    if (found := _OF_PYTHON.get(type(value))) is not None:
        return found
    if type(value) is list:  # before the slow test for tensors
        return _type_of_sequence(cast("list[object]", value))
    if isinstance(value, torch.Tensor):
        return TENSOR
    if isinstance(value, torch.Size):
        return ListType(INT)
    if isinstance(value, tuple | list):
        return _type_of_sequence(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, dict):
        return _type_of_dict(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, torch.futures.Future):
        return FutureType(ANY)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        return FunctionType(python_objects.name_of(value))
    if isinstance(value, type | types.ModuleType | types.MethodType | types.GeneratorType):
        return None
    return ClassType(python_objects.name_of(type(value)))


def _type_of_sequence(value: Sequence[object]) -> Type | None:
    if value and isinstance(value, list):
        class_ = _only(map(type, value))
        if (found := _LIST_OF_PYTHON.get(class_)) is not None:  # perhaps a long list of numbers
            return found
        if class_ is list and all(value):  # perhaps a matrix
            class_ = _only(map(type, chain.from_iterable(cast("list[list[object]]", value))))
            if (found := _MATRIX_OF_PYTHON.get(class_)) is not None:
                return found
    elems = [type_of(v) for v in value]
    known = [e for e in elems if e is not None]
    if len(known) != len(elems):
        return None
    if isinstance(value, tuple):
        names = field_names(type(value))
        cls = python_objects.name_of(type(value)) if names else ""
        return TupleType(tuple(known), names, cls)
    return ListType(join_all(dict.fromkeys(known)))


def _only(classes: Iterable[type]) -> type:
    """Return the class if all are the same, else `object`. Counting is faster than making a set."""
    all_ = [*classes]
    return all_[0] if all_.count(all_[0]) == len(all_) else object


def _type_of_dict(value: Mapping[object, object]) -> Type | None:
    keys, values = _type_of_sequence([*value]), _type_of_sequence([*value.values()])
    if not isinstance(keys, ListType) or not isinstance(values, ListType):
        return None
    return DictType(keys.elem, values.elem)


_CLASSES: dict[Type, type] = {type_: cls for cls, type_ in _OF_PYTHON.items()}


def is_instance(value: object, type_: Type) -> bool:
    """Python's isinstance() for a type of IR: an element's type is looked at, too."""
    match type_:
        case NamedType():
            if type_ in (TENSOR, NUMBER):
                return isinstance(value, torch.Tensor if type_ == TENSOR else int | float)
            return type_ == ANY or isinstance(value, _CLASSES.get(type_, ()))
        case ListType(elem):
            return isinstance(value, list) and all(
                is_instance(v, elem) for v in _values(cast(Any, value))
            )
        case DictType(key, elem):
            return isinstance(value, dict) and all(
                is_instance(k, key) and is_instance(v, elem) for k, v in _pairs(cast(Any, value))
            )
        case TupleType(_, _, cls) if cls:
            return isinstance(value, cast("type", python_objects.find(cls)))
        case TupleType(elems):
            return (
                isinstance(value, tuple)
                and len(value) == len(elems)  # pyright: ignore[reportUnknownArgumentType]
                and all(map(is_instance, _values(cast(Any, value)), elems))
            )
        case OptionalType(elem):
            return value is None or is_instance(value, elem)
        case UnionType(elems):
            return any(is_instance(value, e) for e in elems)
        case ClassType(name):
            return isinstance(value, cast("type", python_objects.find(name)))
        case _:
            return isinstance(value, torch.futures.Future)


def _values(value: Any) -> list[Any]:
    return list(value)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|[\[\](),:]|'[^'\"\\]*')")


_DEEPEST = 64  # types in types


def parse_type(text: str) -> Type:
    """Return the type that this text prints; raises ValueError."""
    reader = TypeReader(text)
    found = reader.type()
    if reader.rest():
        raise ValueError(f"not a type: {text!r}")
    return found


class TypeReader:
    """Reads types from the front of a text; `position` is where the next token begins."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self._depth = 0

    def rest(self) -> str:
        """Return the unread text."""
        return self.text[self.position :].strip()

    def type(self) -> Type:
        """Reads one type."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"types nested more than {_DEEPEST} deep")
        found = self._type()
        self._depth -= 1
        return found

    def _type(self) -> Type:
        word = self._next()
        if word == "(":
            return self._tuple()
        if word == "NamedTuple":
            name = self._quoted()
            self._expect("(")
            made = self._tuple()
            return dataclasses.replace(made, cls=name)
        if word in _BY_NAME:
            return _BY_NAME[word](self._quoted())
        if word in _GENERIC:
            self._expect("[")
            elems = self._until("]")
            return _GENERIC[word](elems)
        if word in _NAMED:
            return _NAMED[word]
        raise ValueError(f"not a type: {self.text!r}")

    def _quoted(self) -> str:
        self._expect("[")
        name = self._next()
        if not name.startswith("'"):
            raise ValueError(f"not a type: {self.text!r}")
        self._expect("]")
        return name.strip("'")

    def _tuple(self) -> TupleType:
        elems: list[Type] = []
        names: list[str] = []
        while self._peek() != ")":
            field = re.compile(r"\s*([A-Za-z_]\w*)\s*:").match(self.text, self.position)
            if field is not None:
                names.append(field[1])
                self.position = field.end()
            elems.append(self.type())
            if self._peek() == ",":
                self._next()
        self._next()
        return TupleType(tuple(elems), tuple(names))

    def _until(self, end: str) -> list[Type]:
        elems = [self.type()]
        while self._peek() == ",":
            self._next()
            elems.append(self.type())
        self._expect(end)
        return elems

    def _peek(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise ValueError(f"not a type: {self.text!r}")
        return match[1]

    def _next(self) -> str:
        word = self._peek()
        match = _TOKEN.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return word

    def _expect(self, word: str) -> None:
        if self._next() != word:
            raise ValueError(f"not a type: {self.text!r}")


def _single(make: Callable[[Type], Type]) -> Callable[[Iterable[Type]], Type]:
    def of(elems: Iterable[Type]) -> Type:
        (elem,) = elems
        return make(elem)

    return of


_BY_NAME: dict[str, Callable[[str], Type]] = {"Class": ClassType, "Function": FunctionType}

_GENERIC: dict[str, Callable[[Iterable[Type]], Type]] = {
    "List": _single(ListType),
    "Dict": lambda elems: DictType(*elems),
    "Future": _single(FutureType),
    "Optional": _single(OptionalType),
    "Union": lambda elems: UnionType(tuple(elems)),
}
