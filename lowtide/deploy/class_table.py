"""The class table of a file: the classes of its programs and attributes, as data.

In: Python classes (saving) or JSON (loading). Out: `ClassEntry`s; the file refers to them by `id`.

    class Color(Enum): RED = 1      {"id": "Color", "name": "Color", "kind": "enum",
                                     "base": "Enum", "members": [["RED", "1"]]}

Invariant: an entry holds names and constants, no behaviour; `check` refuses ops that need a method
of the class. Classes of Python and PyTorch have a dot in their id and no entry.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import inspect
import numbers
import os
import sysconfig
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Literal, cast

import torch

from lowtide.api.script_module import ScriptModule, is_own_name
from lowtide.deploy import limits
from lowtide.ir import python_objects
from lowtide.ir.literals import is_literal, print_literal
from lowtide.ir.named_results import RESULTS

Kind = Literal["enum", "named_tuple", "record", "exception", "module"]
KINDS: Final = ("enum", "named_tuple", "record", "exception", "module")

FOREIGN: Final[Mapping[str, type]] = {
    **{f"builtins.{c.__name__}": c for c in (tuple, list, dict, set, frozenset, slice, range)},
    **{f"builtins.{c.__name__}": c for c in (int, float, bool, complex, str, bytes, object)},
    # for isinstance() only
    **{f"collections.abc.{c.__name__}": c for c in (abc.Sequence, abc.MutableSequence, abc.Set)},
    **{f"collections.abc.{c.__name__}": c for c in (abc.Mapping, abc.MutableMapping, abc.Sized)},
    **{f"collections.abc.{c.__name__}": c for c in (abc.Iterable, abc.Collection, abc.Hashable)},
    **{f"numbers.{c.__name__}": c for c in (numbers.Number, numbers.Real, numbers.Integral)},
    "torch.Size": torch.Size,
    "torch.finfo": torch.finfo,
    "torch.iinfo": torch.iinfo,
    "torch.Tensor": torch.Tensor,
    **RESULTS,
}
ENUM_BASES: Final[Mapping[str, Callable[..., Any]]] = {
    **{c.__name__: c for c in (enum.IntFlag, enum.Flag, enum.StrEnum, enum.IntEnum, enum.Enum)},
}
MIXINS: Final[Mapping[str, Any]] = {"": object, "int": int, "str": str, "float": float}
CONTAINERS: Final[Mapping[str, type]] = {
    "": torch.nn.Module,
    "Sequential": torch.nn.Sequential,
    "ModuleList": torch.nn.ModuleList,
    "ModuleDict": torch.nn.ModuleDict,
}
_FORWARDS: Final = tuple(
    inspect.getattr_static(cls, "forward") for cls in (torch.nn.Sequential, torch.nn.Module)
)
EXCEPTIONS: Final[Mapping[str, type[Exception]]] = {
    e.__name__: e
    for e in vars(builtins).values()
    if isinstance(e, type) and issubclass(e, Exception)
}
WARNINGS: Final = frozenset(n for n, e in EXCEPTIONS.items() if issubclass(e, Warning))
OPTIONS: Final = ("eq", "order", "frozen", "repr", "unsafe_hash")


class NotSaved(Exception):
    """Something cannot be saved; the text says what and why. `remedy`: what to write instead."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field. Flags: whether __init__, __repr__ and __eq__ use it. Also the text of its default,
    or None."""

    name: str
    init: bool = False
    repr: bool = True
    compare: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassEntry:
    """One class. Constants are texts of literals. `options`: of a dataclass, None for others."""

    id: str
    name: str
    kind: Kind
    base: str = ""  # of an enum or exception; of a module: its container class
    mixin: str = ""
    members: tuple[tuple[str, str], ...] = ()  # of an enum; else constants of the class
    fields: tuple[Field, ...] = ()
    options: frozenset[str] | None = None

    def has(self, name: str) -> bool:
        """Return whether programs may read or write this attribute."""
        if self.kind == "enum":
            return name in ("name", "value")
        return any(f.name == name for f in self.fields) or any(m == name for m, _ in self.members)


# What to write instead of objects that PyTorch implements in C++.
_REMEDIES: Final[Mapping[type, str]] = {
    torch.ScriptObject: "the module before torch.ao.quantization converts it: packed weights are "
    "objects of this process",
}


# ---- from Python ------------------------------------------------------------------------------


def foreign_id(cls: type) -> str:
    """Return the id of a class of Python or PyTorch, "" for any other."""
    return next((name for name, known in FOREIGN.items() if known is cls), "")


def kind_of(cls: type) -> Kind:
    """Return the kind of entry that a class needs. Raises NotSaved."""
    hooks = user_methods(cls) & {"__getattr__", "__getattribute__", "__setattr__"}
    if issubclass(cls, torch.nn.Module):
        return "module"
    if issubclass(cls, enum.Enum):
        return "enum"
    if _is_named_tuple(cls):
        return "named_tuple"
    if issubclass(cls, Exception):
        return "exception"
    base = next(b for b in reversed(cls.__mro__[:-1] or (object,)) if b.__name__ != "Generic")
    if cls.__module__.split(".")[0] in ("torch", "builtins", "numpy") or base is object:
        remedy = next((r for known, r in _REMEDIES.items() if known is cls), "")
        raise NotSaved(f"an object of {cls.__module__}.{cls.__qualname__}", remedy)
    if base.__module__ == "builtins":
        raise NotSaved(f"{cls.__qualname__} derives from {base.__name__}")
    if hooks:
        raise NotSaved(f"{cls.__qualname__} has a {min(hooks)} of its own")
    return "record"


def _is_named_tuple(cls: Any) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")  # pyright: ignore[reportUnknownArgumentType]


def describe(cls: type, id_: str, used: Mapping[str, object]) -> ClassEntry:
    """Return the entry of a class. `used`: attributes that programs use, with the class's own value
    or None. Raises NotSaved."""
    kind = kind_of(cls)
    head = {"id": id_, "name": cls.__name__, "kind": kind}
    match kind:
        case "enum":
            return ClassEntry(**head, **_enum(cast("type[enum.Enum]", cls)))  # pyright: ignore[reportArgumentType]
        case "named_tuple":
            return ClassEntry(**head, fields=_tuple_fields(cls))  # pyright: ignore[reportArgumentType]
        case "exception":
            return ClassEntry(**head, base=_exception_base(cls))  # pyright: ignore[reportArgumentType]
        case "module":
            base = next((n for n, c in CONTAINERS.items() if n and issubclass(cls, c)), "")
            fields = tuple(Field(name=name) for name in sorted(used))
            computes = inspect.getattr_static(cls, "forward")
            if cls.__name__ == base == "Sequential" and computes not in _FORWARDS:
                head["name"] += "_"  # "Sequential" is for modules with PyTorch's own forward
            return ClassEntry(**head, base=base, fields=fields)  # pyright: ignore[reportArgumentType]
        case "record":
            return _record(cls, head, used)


def _enum(cls: type[enum.Enum]) -> dict[str, Any]:
    base = next(name for name, c in ENUM_BASES.items() if issubclass(cls, cast("type", c)))
    mixin = ""
    if base in ("Enum", "Flag"):
        mixin = next((n for n, c in MIXINS.items() if n and issubclass(cls, c)), "")
    flags: Any = cls
    if issubclass(cls, enum.Flag) and flags._boundary_ is not flags.__mro__[1]._boundary_:
        raise NotSaved(f"{cls.__name__}, flags with a boundary of their own")
    members: list[tuple[str, str]] = []
    for name, member in cls.__members__.items():
        if not is_literal(member.value):
            raise NotSaved(f"{cls.__name__}.{name} is {member.value!r}")
        members.append((name, print_literal(member.value)))
    return {"base": base, "mixin": mixin, "members": tuple(members)}


def _tuple_fields(cls: type) -> tuple[Field, ...]:
    defaults: dict[str, object] = getattr(cls, "_field_defaults", {})
    names: tuple[str, ...] = cast("Any", cls)._fields
    return tuple(Field(name=n, init=True, default=_default(defaults, n)) for n in names)


def _default(defaults: Mapping[str, object], name: str) -> str | None:
    value = defaults.get(name, ...)
    return print_literal(value) if is_literal(value) else None


def _exception_base(cls: type) -> str:
    own = user_methods(cls) & {"__init__", "__new__", "__str__", "__repr__"}
    if own:
        raise NotSaved(f"the exception {cls.__name__} has a {min(own)} of its own")
    return next((c.__name__ for c in cls.__mro__ if EXCEPTIONS.get(c.__name__) is c), "Exception")


def _record(cls: type, head: dict[str, Any], used: Mapping[str, object]) -> ClassEntry:
    fields: dict[str, Field] = {}
    options: frozenset[str] | None = None
    if dataclasses.is_dataclass(cls):
        parameters: Any = cast("Any", cls).__dataclass_params__
        options = frozenset(o for o in OPTIONS if getattr(parameters, o))
        for f in dataclasses.fields(cls):
            default = _default({f.name: f.default}, f.name)
            flags = {"init": f.init, "repr": f.repr, "compare": f.compare}
            fields[f.name] = Field(name=f.name, **flags, default=default)
    constants: list[tuple[str, str]] = []
    for name, value in used.items():
        if is_literal(value) and value is not None:
            constants.append((name, print_literal(value)))
        elif value is not None and name not in fields:
            raise NotSaved(f"{cls.__name__}.{name} of the class is {value!r}")
        fields.setdefault(name, Field(name=name, repr=False, compare=False))
    rows = tuple(fields.values())
    return ClassEntry(**head, fields=rows, options=options, members=tuple(constants))


_NOT_THE_USERS: Final = (
    *("<", sysconfig.get_path("stdlib"), os.path.dirname(__file__)),
    os.path.dirname(torch.__file__),
)


def user_methods(cls: type) -> set[str]:
    """Return the dunder methods that a class has from the user's source."""
    found: set[str] = set()
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if name.startswith("__") and isinstance(member, FunctionType):
                file = member.__code__.co_filename
                if not file.startswith(_NOT_THE_USERS):
                    found.add(name)
    return found


def is_computed(member: object) -> bool:
    """Return whether a class member computes a value: a property, a method."""
    return hasattr(type(member), "__get__")


def may_be_field(kind: Kind, name: str) -> bool:
    """Return whether a class of this kind may have a field of this name: Python's and PyTorch's
    names are reserved."""
    if not limits.is_public(name):
        return False
    match kind:
        case "module":
            is_internal = name in vars(torch.nn.Module()) or name.startswith("_lowtide_")
            return name == "training" or not (hasattr(torch.nn.Module, name) or is_internal)
        case "named_tuple":
            return not name.startswith("_")
        case _:
            return not hasattr(object, name)


# Methods that move and convert a module. Neither PyTorch nor Lowtide calls them, so a program may
# replace them.
_REPLACEABLE: Final = frozenset(
    (
        *("bfloat16", "double", "float", "half", "type"),
        *("cpu", "cuda", "ipu", "mtia", "share_memory", "to", "to_empty", "xpu"),
    )
)


def may_be_method(cls: type, name: str) -> bool:
    """Return whether programs may implement this method of a loaded module. `cls`: one of
    `CONTAINERS`, or derived from it. Methods that PyTorch and Lowtide call keep their meaning."""
    if name == "forward" or name in _REPLACEABLE:
        return True
    return not (hasattr(cls, name) or name in vars(torch.nn.Module()) or is_own_name(name))


def sets_in_python(cls: type) -> bool:
    """Return whether the module's attribute assignment does more than that of nn.Module."""
    found = next(c for c in cls.__mro__ if "__setattr__" in vars(c))
    return issubclass(cls, torch.nn.Module) and found not in (torch.nn.Module, ScriptModule)


def container_of(module: torch.nn.Module) -> type:
    """Return the class of `CONTAINERS` that a module is an instance of; its loaded class derives
    from it."""
    containers: dict[str, Any] = dict(CONTAINERS)
    return [base for base in containers.values() if isinstance(module, base)][-1]


def class_named(name: str) -> type:
    """Return the class of this process with this name in IR. Raises NotSaved."""
    try:
        found = python_objects.find(name)
    except KeyError as error:  # such as KeyboardInterrupt, which is no Exception
        raise NotSaved(name) from error
    if not isinstance(found, type):
        raise NotSaved(f"{name} as a value")
    return found
