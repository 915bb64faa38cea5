"""The state of compiling a module's method: captured parameters, guards, assigned attributes.

In: paths from the root module, such as "fc.weight". Out: captured parameters, one per path or
tensor, and `Guard`s.

    self.fc.weight   →   %weight: Tensor @ "fc.weight"
    self.fc.bias     →   where it is None: a constant None, and Guard("none", "fc.bias")

Invariant: the program is right for every state of the modules in which each guard has the same
value, and each captured value the same type, as while compiling.

An attribute that the program assigns is *dynamic*: it is read and written in place. If the compiler
finds an assignment after it has captured the attribute, it raises `Restart` and begins again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, Literal, cast

import torch

from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.source import has_own_source
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Block, Value

Kind = Literal["value", "none", "same", "type", "fits", "has", "hooks"]
Callees = dict[tuple[int, str], dict[tuple[t.Type, ...], None]]  # see `ModuleState`

_SHARED = (t.ListType, t.DictType)  # which may be written by one name and read by another
HOOKS: Final = (  # where nn.Module keeps them
    *("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"),
    "_forward_hooks_always_called",
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A fact about the modules that a program relies on. `other`: the second path of "same", or the
    type of "fits"."""

    kind: Kind
    path: str
    other: str = ""


class Restart(Exception):
    """An attribute turned out to be dynamic, or of another type: compile again."""


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """The knowledge that outlives a Restart. `dynamic`: attributes that are assigned, `by_python`:
    in functions left to Python. `literal_types`: attributes of these types are constants.

    `container_types`: by path, of lists and dicts into which the program puts more than they hold.

    `read_in_place`: properties, as (id of the module, name), that Python reads where the program
    does, not before the call.

    `as_declared`: what a class declares Optional is read as such, whatever it is now.
    `leaves_parts`: parts from installed packages may be left to Python.
    """

    dynamic: set[str] = field(default_factory=set[str])
    by_python: set[str] = field(default_factory=set[str])
    read_in_place: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    attribute_types: dict[tuple[int, str], t.Type] = field(
        default_factory=dict[tuple[int, str], t.Type]
    )
    container_types: dict[str, t.Type] = field(default_factory=dict[str, t.Type])
    literal_types: tuple[type, ...] = ()
    captured_names: frozenset[str] = frozenset()  # never constants: `freeze(preserved_attrs=)`
    changing: frozenset[str] = frozenset()  # nor these paths, of numbers that have changed before
    varying: frozenset[tuple[int, str]] = frozenset()  # these three: see `Assumptions`
    live: dict[int, object] = field(default_factory=dict[int, object])
    assigned: dict[tuple[int, str], object] = field(default_factory=dict[tuple[int, str], object])
    as_declared: bool = False
    leaves_parts: bool = False


@dataclass(slots=True, kw_only=True)
class ModuleState:
    """One compilation; `block` is the method's own, whose last arguments are the captures.

    `callees`: the methods that were inlined, as (id of the module, name), each with the types of
    the arguments that it was called with; a call that hands in a function or module has none.
    `read`: the properties that the program has read so far and that Python computes."""

    root: torch.nn.Module
    block: Block
    knowledge: Knowledge
    paths: list[str] = field(default_factory=list[str])
    guards: dict[Guard, None] = field(default_factory=dict[Guard, None])
    callees: Callees = field(default_factory=Callees)
    read: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    _dynamic: list[tuple[tuple[int, str], Value, t.Type]] = field(
        default_factory=list[tuple[tuple[int, str], Value, t.Type]]
    )
    _values: dict[str, Value] = field(default_factory=dict[str, Value])
    _given: dict[str, t.Type] = field(default_factory=dict[str, t.Type])
    _objects: dict[int, tuple[str, Value, object]] = field(  # an id is good while the object lives
        default_factory=dict[int, tuple[str, Value, object]]
    )

    def capture(self, path: str, found: object, type_: t.Type) -> Value:
        """Return the captured parameter for the object at `path`; one for each tensor, list or
        dict, whatever its path."""
        known = self._values.get(path)
        if known is not None:
            return known
        is_one = found is not None and (type_ == t.TENSOR or isinstance(type_, _SHARED))
        if is_one:
            first = self._objects.get(id(found))
            if first is not None:
                self.guards[Guard("same", first[0], path)] = None
                return first[1]
        name = path.rpartition("|")[2].rpartition(".")[2]
        wider = self.knowledge.container_types.get(path, t.NEVER)
        value = Value(name or "self", t.join(type_, wider))
        self._given[path] = value.type
        self.block.args.append(value)
        self.paths.append(path)
        self._values[path] = value
        if is_one:
            self._objects[id(found)] = (path, value, found)
        return value

    def note_dynamic(self, module: torch.nn.Module, name: str, value: Value, type_: t.Type) -> None:
        """Note the type of what the program reads from, or writes to, a dynamic attribute."""
        self._dynamic.append(((id(module), name), value, type_))

    def settle(self) -> None:
        """Raises Restart if the program puts other types into a list or dict than it held: earlier
        branches were decided by these."""
        grown = {p: v.type for p, v in self._values.items() if v.type != self._given[p]}
        self.knowledge.container_types.update(grown)
        types = self.knowledge.attribute_types
        for place, value, before in self._dynamic:
            known = types.get(place, before)
            if (now := t.join(known, value.type)) != known:
                types[place] = grown[place[1]] = now
        if grown:
            raise Restart(", ".join(grown))

    def object(self, path: str, module: torch.nn.Module) -> Value:
        """Return the module itself, as an operand of an op that the driver runs."""
        return self.capture(path, module, t.ClassType(python_objects.name_of(type(module))))

    def guard(self, kind: Kind, path: str) -> None:
        """Rely on this fact."""
        self.guards[Guard(kind, path)] = None

    def note_call(self, owner: int, name: str, arguments: Sequence[object]) -> None:
        """Note the argument types of a call of one of `callees`."""
        known = self.callees.get((owner, name))
        types = tuple(a.type for a in arguments if isinstance(a, Value))
        if known is not None and len(types) == len(arguments):
            known[types] = None


def join_path(path: str, name: str) -> str:
    """Return the path of a name below a path: `layers.0`; the root's path is empty."""
    return f"{path}.{name}" if path else name


def root_of(module: Any) -> torch.nn.Module:
    """Return the user's module behind a compiled one; for one of torch.jit its twin, if it has one;
    any other module itself."""
    own = getattr(cast("type[object]", type(module)), "__lowtide_root__", None)
    if own is not None:
        return own.__get__(module)
    if torch_jit_twins.is_module(module):
        twin = torch_jit_twins.twin_or_none(module)
        own = cast("dict[str, Any]", vars(module))
        return own.get("_actual_script_module", module) if twin is None else twin
    return module


def child(module: torch.nn.Module, name: str) -> torch.nn.Module | None:
    """Return the submodule of this name, unwrapped."""
    found = vars(module)["_modules"].get(name)
    return None if found is None else root_of(found)


def follow(root: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    """Return the module that owns the object at `path`, and its name there ("" for the root
    itself). For "@name|path" the root is another one, perhaps a dict of globals."""
    if path.startswith("@"):
        name, _, path = path[1:].partition("|")
        root = cast("torch.nn.Module", python_objects.find(name))
    *owners, name = path.split(".")
    for owner in owners:
        found = child(root, owner)
        if found is None:
            raise KeyError(path)
        root = found
    return root, name


def own_call(module: torch.nn.Module) -> FunctionType | None:
    """Return the `__call__` that the user's class defines, None if it is nn.Module's."""
    found = inspect.getattr_static(type(module), "__call__")
    is_own = isinstance(found, FunctionType) and not _is_pytorchs(found)
    return cast("FunctionType", found) if is_own else None


def _is_pytorchs(fn: FunctionType) -> bool:
    if has_own_source(fn):
        return False
    return fn is torch.nn.Module.__call__ or fn.__module__.split(".")[0] in ("torch", "lowtide")


def is_torch_class(cls: type | FunctionType) -> bool:
    """Return whether a class, or a method of one, is PyTorch's."""
    return str(cls.__module__).split(".")[0] == "torch"  # None: made by exec


def names_of(module: torch.nn.Module) -> Iterable[str]:
    """Return every name that may be meant, for an error about a missing one."""
    return {n for n in dir(module) if not n.startswith("_")}
