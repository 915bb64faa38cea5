"""The types of SSA values: frozen records that print and parse.

In: text as it stands in printed IR and in error messages. Out: records, compared by value.

    parse_type("(Tensor, List[int])")  ==  TupleType((TENSOR, ListType(INT)))
    str(OptionalType(TENSOR))          ==  "Optional[Tensor]"

Always holds: `parse_type(str(t)) == t`. A tensor's dtype and shape are no part of its type. The
names are TorchScript's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch


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
    """A fixed number of elements; `names` are the fields of a named tuple, else ()."""

    elems: tuple[Type, ...]
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.names:
            parts = [f"{n}: {t}" for n, t in zip(self.names, self.elems, strict=True)]
        else:
            parts = [str(t) for t in self.elems]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


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
    """What `fork` gives: a value that is still being computed."""

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
    """`(a, b)` without field names."""
    return TupleType(tuple(elems))


def optional(t: Type) -> Type:
    """`t` or None, not nested."""
    return t if t in (NONE, ANY) or isinstance(t, OptionalType) else OptionalType(t)


def is_number(t: Type) -> bool:
    """Whether values are Python ints, floats or bools."""
    return t in _NUMBERS


def may_be_tensor(t: Type) -> bool:
    """Whether a value of this type may be a tensor at run time, so that operators go to PyTorch."""
    match t:
        case UnionType(elems):
            return any(may_be_tensor(e) for e in elems)
        case OptionalType(elem):
            return may_be_tensor(elem)
        case _:
            return t == TENSOR


def is_subtype(t: Type, of: Type) -> bool:
    """Whether a value of type `t` may stand where `of` is expected."""
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
        case DictType(a, x), DictType(b, y):
            return is_subtype(a, b) and is_subtype(x, y)
        case FutureType(a), FutureType(b):
            return is_subtype(a, b)
        case _:
            return of == NUMBER and is_number(t)


def join(a: Type, b: Type) -> Type | None:
    """The least type that holds both, where two branches meet; None if they are not alike."""
    if is_subtype(a, b):
        return b
    if is_subtype(b, a):
        return a
    if NONE in (a, b):
        return optional(b if a == NONE else a)
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = join(_without_none(a), _without_none(b))
        return None if inner is None else optional(inner)
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return _join_tuples(a, b)
    if isinstance(a, ListType) and isinstance(b, ListType):
        inner = join(a.elem, b.elem)
        return None if inner is None else ListType(inner)
    if is_number(a) and is_number(b):
        return NUMBER
    parts = [*_members(a), *(m for m in _members(b) if m not in _members(a))]
    if all(p == TENSOR or is_number(p) for p in parts):
        return UnionType(tuple(parts))
    return None


def _join_tuples(a: TupleType, b: TupleType) -> Type | None:
    if len(a.elems) != len(b.elems):
        return None
    elems = [join(x, y) for x, y in zip(a.elems, b.elems, strict=True)]
    known = tuple(e for e in elems if e is not None)
    names = a.names if a.names == b.names else ()
    return TupleType(known, names) if len(known) == len(elems) else None


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


def type_of(value: object) -> Type | None:
    """The type of a run-time value, as far down as it goes; None for what IR does not hold."""
    if isinstance(value, torch.Tensor):
        return TENSOR
    if type(value) in _OF_PYTHON:
        return _OF_PYTHON[type(value)]
    if isinstance(value, torch.Size):
        return ListType(INT)
    if isinstance(value, tuple | list):
        return _type_of_sequence(value)  # pyright: ignore[reportUnknownArgumentType]
    return None


def _type_of_sequence(value: Sequence[object]) -> Type | None:
    elems = [type_of(v) for v in value]
    known = [e for e in elems if e is not None]
    if len(known) != len(elems):
        return None
    if isinstance(value, tuple):
        names: tuple[str, ...] = getattr(value, "_fields", ())
        return TupleType(tuple(known), tuple(names))
    if not known:
        return ListType(NEVER)
    elem: Type | None = known[0]
    for other in known[1:]:
        elem = None if elem is None else join(elem, other)
    return None if elem is None else ListType(elem)


_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|[\[\](),:]|'[^'\"\\]*')")


def parse_type(text: str) -> Type:
    """The type that this text prints; raises ValueError."""
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

    def rest(self) -> str:
        """What has not been read."""
        return self.text[self.position :].strip()

    def type(self) -> Type:
        """Reads one type."""
        word = self._next()
        if word == "(":
            return self._tuple()
        if word == "Class":
            return self._class()
        if word in _GENERIC:
            self._expect("[")
            elems = self._until("]")
            return _GENERIC[word](elems)
        if word in _NAMED:
            return _NAMED[word]
        raise ValueError(f"not a type: {self.text!r}")

    def _class(self) -> Type:
        self._expect("[")
        name = self._next()
        if not name.startswith("'"):
            raise ValueError(f"not a type: {self.text!r}")
        self._expect("]")
        return ClassType(name.strip("'"))

    def _tuple(self) -> Type:
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


_GENERIC: dict[str, Callable[[Iterable[Type]], Type]] = {
    "List": _single(ListType),
    "Dict": lambda elems: DictType(*elems),
    "Future": _single(FutureType),
    "Optional": _single(OptionalType),
    "Union": lambda elems: UnionType(tuple(elems)),
}
