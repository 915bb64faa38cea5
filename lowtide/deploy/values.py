"""Encodes values of attributes, defaults and guards as JSON, and decodes them.

In: Python values, or nodes. Out: JSON, or values.

    3, "x", None, 0.5       themselves
    torch.float32, 1j, nan  {"literal": "torch.float32"}
    (1, t)                  {"tuple": [1, {"tensor": 0}]}       {"named": "Point", "items": [1, 2]}
    Color.RED               {"enum": "Color", "member": "RED"}
    Mode.R | Mode.W         {"enum": "Mode", "flags": 3}
    a list, dict, record    {"object": 4}: row 4 of the table of objects

Invariant: an object that is reached by several paths is one row and one object; cycles are allowed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch

from lowtide.deploy import class_rows, class_table, limits
from lowtide.deploy.class_table import ClassEntry, NotSaved
from lowtide.deploy.jsontext import Node
from lowtide.deploy.storages import TensorTable, why_not
from lowtide.errors import LoadError
from lowtide.ir.literals import is_literal, print_literal

_LARGEST: Final = 2**63


@dataclass(slots=True)
class Encoder:
    """Encodes values. `class_id`: gives a class its id in the file, or raises NotSaved. `used`:
    is called with each class and attribute of an encoded object."""

    tensors: TensorTable
    class_id: Callable[[type], str]
    used: Callable[[type, str], None]
    objects: list[object] = field(default_factory=list[object])
    _known: dict[int, int] = field(default_factory=dict[int, int])
    _alive: list[object] = field(default_factory=list[object])

    def value(self, value: object, hint: str, *, records: bool = True) -> object:
        """Return the JSON of a value. `records`: whether objects of the user's classes are allowed.
        Raises NotSaved."""
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        if type(value) is int and -_LARGEST <= value < _LARGEST:
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, hint)
        if isinstance(value, enum.Enum):
            if value.name in type(value).__members__:
                return {"enum": self.class_id(type(value)), "member": value.name}
            return {"enum": self.class_id(type(value)), "flags": value.value}
        if isinstance(value, tuple):
            return self._tuple(cast("tuple[object, ...]", value), hint, records)
        if is_literal(value):
            return {"literal": print_literal(value)}
        return {"object": self._object(value, hint, records)}

    def _tensor(self, tensor: torch.Tensor, hint: str) -> object:
        reason = why_not(tensor)
        if reason:
            raise NotSaved(reason)
        return {"tensor": self.tensors.add(tensor, hint)}

    def _tuple(self, value: tuple[object, ...], hint: str, records: bool) -> object:
        parts = [self.value(v, f"{hint}.{k}", records=records) for k, v in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": parts}
        if isinstance(value, torch.Size):
            return {"size": parts}
        if hasattr(value, "_fields"):
            return {"named": self.class_id(type(value)), "items": parts}
        raise NotSaved(f"a {type(value).__name__}")

    def _object(self, value: object, hint: str, records: bool) -> int:
        known = self._known.get(id(value))
        if known is not None:
            return known
        row: list[object] = []
        place = self._known[id(value)] = len(self.objects)
        self._alive.append(value)
        self.objects.append(row)

        def inner(x: object, name: object) -> object:
            return self.value(x, f"{hint}.{name}", records=records)

        match value:
            case list():
                row += ["list", [inner(v, k) for k, v in enumerate(cast("list[object]", value))]]
            case dict() if type(value) is dict:  # pyright: ignore[reportUnknownArgumentType]
                pairs = cast("dict[object, object]", value).items()
                row += ["dict", [[inner(k, "key"), inner(v, k)] for k, v in pairs]]
            case set() if type(value) is set:  # pyright: ignore[reportUnknownArgumentType]
                elems = sorted(cast("set[Any]", value), key=repr)
                row += ["set", [inner(v, "key") for v in elems]]
            case _ if records and not isinstance(value, torch.nn.Module | type):
                id_ = self.class_id(type(value))
                class_table.kind_of(type(value))
                row += ["record", id_, self._fields(value, inner)]
            case _:
                raise NotSaved(f"a {type(value).__name__}")
        return place

    def _fields(self, value: object, inner: Callable[[object, object], object]) -> object:
        # A file's class has no attributes that are None, so the object gets these.
        names = {n for c in type(value).__mro__ for n, x in vars(c).items() if x is None}
        found = dict[str, object].fromkeys(filter(limits.is_public, sorted(names)))
        for cls in type(value).__mro__:
            for name in getattr(cls, "__slots__", ()):
                if hasattr(value, name):
                    found[name] = getattr(value, name)
        found |= getattr(value, "__dict__", {})
        for name in found:
            self.used(type(value), name)
        return [[name, inner(v, name)] for name, v in found.items()]


def can_encode(value: object, depth: int = 0) -> bool:
    """Return whether a value has plain parts only, so that it is saved even if no program reads
    it."""
    if depth > limits.TUPLES:
        return False
    if isinstance(value, torch.Tensor):
        return not why_not(value)
    inner: list[object]
    if isinstance(value, tuple):  # a user's subclass may have further state
        held = cast("tuple[object, ...]", value)
        if type(held) not in (tuple, torch.Size) and not hasattr(held, "_fields"):
            return False
        inner = list(held)
    elif is_literal(value):
        return True
    elif type(value) is list:
        inner = list(cast("list[object]", value))
    elif type(value) is dict:
        pairs = cast("dict[object, object]", value)
        inner = [*pairs, *pairs.values()]
    else:
        return False
    return all(can_encode(v, depth + 1) for v in inner)


# ---- reading ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Decoder:
    """Decodes values. `entries`, `classes`: by id. `tensors`, `objects`: by row."""

    tensors: list[torch.Tensor]
    entries: Mapping[str, ClassEntry]
    classes: Mapping[str, type]
    objects: list[Any] = field(default_factory=list[Any])

    def read_objects(self, rows: Node) -> None:
        """Make all objects empty, then fill them, since they may refer to each other."""
        nodes = rows.items_of()
        for row in nodes:
            self.objects.append(self._empty(row))
        for row, made in zip(nodes, self.objects, strict=True):
            self._fill(row, made)

    def _empty(self, row: Node) -> Any:
        kind = row.items_of(3)[0].text(("list", "dict", "set", "record")) if row.items_of() else ""
        parts = row.row(3 if kind == "record" else 2)
        if kind == "record":
            cls = self._class(parts[1], "record")
            return cls.__new__(cls)
        empty: Any = {"list": list, "dict": dict, "set": set}[kind]
        return empty()

    def _fill(self, row: Node, made: Any) -> None:
        *_, kind, content = (row.items_of()[0], row.items_of()[-1])
        match kind.text():
            case "list":
                made.extend(self.value(v) for v in content.items_of())
            case "set":
                made.update(self._key(v) for v in content.items_of())
            case "dict":
                for pair in content.items_of():
                    key, value = pair.row(2)
                    made[self._key(key)] = self.value(value)
            case _:
                entry = self.entries[row.items_of()[1].text()]
                for pair in content.items_of():
                    name, value = pair.row(2)
                    if not entry.has(name.text()):
                        raise name.fail(f"a field of {entry.name}")
                    object.__setattr__(made, name.text(), self.value(value))

    def _key(self, node: Node) -> Any:
        key = self.value(node)
        try:
            hash(key)
        except Exception as error:  # such as the hash of a record that is not filled yet
            raise node.fail("a key") from error
        return key

    def _class(self, node: Node, *kinds: str) -> Any:
        entry = self.entries.get(node.text())
        if entry is None or entry.kind not in kinds:
            raise node.fail(f"the id of a class that is a {' or '.join(kinds)}")
        return self.classes[entry.id]

    def value(self, node: Node, depth: int = 0) -> Any:
        """Return the value of a node. Raises LoadError."""
        if node.value is None or isinstance(node.value, bool | int | float | str):
            return node.value
        if depth > limits.TUPLES:
            raise node.fail(f"tuples at most {limits.TUPLES} deep")
        names = {name for name, _ in node.items()}
        if names == {"tuple"}:
            return tuple(self.value(v, depth + 1) for v in node.get("tuple").items_of())
        if names == {"size"}:
            return torch.Size([n.size() for n in node.get("size").items_of(limits.DIMENSIONS)])
        if names == {"literal"}:
            return class_rows.constant(node.get("literal"))
        if names == {"tensor"}:
            return self.tensors[node.get("tensor").index(len(self.tensors))]
        if names == {"object"}:
            return self.objects[node.get("object").index(len(self.objects))]
        if names == {"enum", "member"}:
            return self._member(node)
        if names == {"enum", "flags"}:
            return self._flags(node)
        if names == {"named", "items"}:
            cls = self._class(node.get("named"), "named_tuple")
            count = len(self.entries[node.get("named").text()].fields)
            return cls._make([self.value(v, depth + 1) for v in node.get("items").row(count)])
        raise node.fail("a value")

    def _member(self, node: Node) -> Any:
        members: Any = self._class(node.get("enum"), "enum")
        name = node.get("member")
        if name.text() not in members.__members__:
            raise name.fail(f"a member of {members.__name__}")
        return members[name.text()]

    def _flags(self, node: Node) -> Any:
        members: Any = self._class(node.get("enum"), "enum")
        flags = node.get("flags")
        if not issubclass(members, enum.Flag):
            raise flags.fail("a member by its name")
        try:
            return members(flags.size())
        except ValueError as error:
            raise flags.fail(f"flags of {members.__name__}") from error

    def tensor(self, node: Node) -> torch.Tensor | None:
        """Return a node's tensor, None for null. Raises LoadError."""
        found = self.value(node)
        if found is not None and not isinstance(found, torch.Tensor):
            raise LoadError(f"{node.where}: expected a tensor")
        return found
