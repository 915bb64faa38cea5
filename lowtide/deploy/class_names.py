"""Collects the classes of a file that is written: the id and the used attributes of each.

In: classes, and names of `ir.python_objects`. Out: ids, and at the end the entries.

    shop.Color → "Color"      another class named Color → "Color_2"

Invariant: an id is a short ASCII name, unique in the file. Saving equal programs gives equal ids.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any, Final, cast

import torch

from lowtide.deploy import class_table, records
from lowtide.deploy.allowed import WARN
from lowtide.deploy.class_table import EXCEPTIONS, WARNINGS, ClassEntry, NotSaved
from lowtide.frontend.script.left_to_python import warn_at
from lowtide.ir import python_objects
from lowtide.ir.core import Op
from lowtide.ir.types import ClassType, OptionalType, TupleType, Type, types_in

# Ops that call dunder methods of their operands. `_DEEP`: of elements of the operands, too.
_EQUAL: Final = frozenset({"__eq__", "__ne__", "__hash__"})
_ORDER: Final = frozenset({"__lt__", "__le__", "__gt__", "__ge__", *_EQUAL})
_TEXT: Final = frozenset({"__str__", "__repr__", "__format__"})
_TRUTH: Final = frozenset({"__bool__", "__len__"})
_ITERATED: Final = frozenset({"__iter__", "__getitem__", "__next__"})
_DEEP: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("py.eq", "py.ne", "py.contains", "py.hash", "set.make", "set.of"), _EQUAL),
    **dict.fromkeys(("set.frozen", "dict.goes_on"), _EQUAL),
    **dict.fromkeys(("list.index", "list.count", "list.remove", "dict.make", "dict.of"), _EQUAL),
    **dict.fromkeys(("py.lt", "py.le", "py.gt", "py.ge", "py.max", "py.min"), _ORDER),
    **dict.fromkeys(("list.sort", "list.sorted", "list.sorted_by"), _ORDER),
    **dict.fromkeys(("py.str", "py.repr", "py.format", "str.format", "print", "py.mod"), _TEXT),
}
_DIRECT: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("py.bool", "py.not"), _TRUTH),
    "py.len": frozenset({"__len__"}),
    **dict.fromkeys(("py.iter", "iter.of", "iter.whole", "list.of", "list.zipped"), _ITERATED),
    "py.contains": frozenset({"__contains__", "__iter__", "__getitem__"}),
}


class ClassNames:
    """See the module's text."""

    def __init__(self) -> None:
        self._ids: dict[type, str] = {}
        self._used: dict[type, dict[str, object]] = {}

    def id(self, cls: type) -> str:
        """Return the id of a class. Raises NotSaved."""
        foreign = class_table.foreign_id(cls)
        if foreign:
            return foreign
        if cls not in self._ids:
            class_table.kind_of(cls)
            stem = re.sub(r"\W", "_", cls.__name__, flags=re.ASCII)[:64].lstrip("_0123456789")
            name, count = stem or "Class", 1
            while name in self._ids.values() or name in EXCEPTIONS:
                count += 1
                name = f"{stem or 'Class'}_{count}"
            self._ids[cls] = name
            self._used[cls] = {}
        return self._ids[cls]

    def id_of_name(self, name: str) -> str:
        """Return the id for a name of `ir.python_objects`. For an unknown one, return a name that
        no file has: the check of the program then reports the line."""
        found: Any = python_objects.find(name)
        if isinstance(found, type):
            with contextlib.suppress(NotSaved):
                return self.id(found)
        if isinstance(found, functools.partial) and found.func is warn_at:  # pyright: ignore[reportUnknownMemberType]
            category: Any = found.keywords["category"]
            if EXCEPTIONS.get(category.__name__) is category and category.__name__ in WARNINGS:
                return f"{WARN}{category.__name__}"
        return str(getattr(cast("object", found), "__qualname__", name))

    def use(self, cls: type, name: str) -> None:
        """Note that programs, or objects in the file, use this attribute. Raises NotSaved."""
        id_ = self.id(cls)
        if cls not in self._used:
            return  # a class of Python or PyTorch
        kind = class_table.kind_of(cls)
        if kind == "enum":
            return
        if not class_table.may_be_field(kind, name):
            raise NotSaved(f"the attribute {id_}.{name}, a name that is taken")
        found = inspect.getattr_static(cls, name, None)
        is_slot = isinstance(found, MemberDescriptorType)
        is_mode = kind == "module" and name == "training"  # the file has it in any case
        if found is not None and not is_slot and not is_mode and class_table.is_computed(found):
            raise NotSaved(f"{id_}.{name}, which is computed in Python")
        self._used[cls][name] = None if is_slot or kind == "module" else found

    def entries(self) -> dict[str, ClassEntry]:
        """Return the table, in order of first use. Raises NotSaved."""
        return {id_: self._entry(cls, id_) for cls, id_ in self._ids.items()}

    def _entry(self, cls: type, id_: str) -> ClassEntry:
        loaded = records.entry_of(cls)
        if loaded is not None and loaded.kind == "record":
            new = [n for n in self._used[cls] if not loaded.has(n)]  # assigned after loading
            more = tuple(class_table.Field(name=n, repr=False, compare=False) for n in new)
            return dataclasses.replace(loaded, id=id_, fields=(*loaded.fields, *more))
        return class_table.describe(cls, id_, self._used[cls])


def needed_method(op: Op) -> str:
    """Return the method of the user's class that an op would call, "" if it calls none."""
    for value in op.operands:
        for part in types_in(value.type):
            for cls in _classes(part):
                wanted = _DEEP.get(op.name, frozenset())
                if _without_none(value.type) == part:
                    wanted |= _DIRECT.get(op.name, frozenset()) | _operator(op.name)
                found = class_table.user_methods(cls) & wanted
                if found:
                    return f"{cls.__name__}.{min(found)}"
    return ""


_OPERATORS: Final = frozenset(
    f"py.{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
        *("lshift", "rshift", "neg", "pos", "invert", "abs", "round", "int", "float", "complex"),
    )
)


def _operator(op_name: str) -> frozenset[str]:
    name = op_name.removeprefix("py.")
    return frozenset({f"__{name}__", f"__r{name}__"} if op_name in _OPERATORS else ())


def _without_none(type_: Type) -> Type:
    return type_.elem if isinstance(type_, OptionalType) else type_


def _classes(type_: Type) -> list[type]:
    name = type_.name if isinstance(type_, ClassType) else ""
    if isinstance(type_, TupleType):
        name = type_.cls
    found: Any = python_objects.find(name) if name else None
    if not isinstance(found, type) or issubclass(found, torch.nn.Module):
        return []
    return [found]
