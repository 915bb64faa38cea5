"""Makes the objects of an archive: modules, objects of its classes, members of its enums.

In: what the reader found (`Instance`s) and the archive's code. Out: nn.Modules and plain objects.

    Instance("__torch__.net.Net", {"training": True, "fc": Instance(…)})   →  a Net with its fc

A class with `__setstate__` gets its state from that method, compiled.
Invariant: one object for each Instance, each tensor as it was read, so what was shared stays so.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import make_method, make_or_get, wrap
from lowtide.deploy.torchscript.calls import Calls
from lowtide.deploy.torchscript.pickles import EnumMember, Instance
from lowtide.errors import LoadError
from lowtide.frontend.torchscript.code import UNUSED, Code, ModuleClass
from lowtide.ir.object_ops import CALLS

_KEPT: Final = frozenset(vars(torch.nn.Module())) - {"training", "_is_full_backward_hook"}
_NATIVE: Final = "__torch__.torch.classes."  # classes of C++
_NO_INFO: Final = ModuleClass((), (), {})


@dataclass(slots=True)
class Objects:
    """See the module's text."""

    code: Code
    made: dict[int, Any] = field(default_factory=dict[int, Any])
    waiting: list[tuple[Any, object, ModuleClass]] = field(
        default_factory=list[tuple[Any, object, ModuleClass]]
    )

    def value(self, found: object) -> Any:
        """Return the object for what the reader found. Raises LoadError."""
        match found:
            case Instance():
                known = self.made.get(id(found))
                return self._instance(found) if known is None else known
            case EnumMember(cls, value):
                return self._member(cls, value)
            case list():
                return self._list(cast("list[object]", found))
            case dict():
                return self._dict(cast("dict[object, object]", found))
            case tuple():
                return tuple(map(self.value, cast("tuple[object, ...]", found)))
            case _:
                return found

    def settle(self) -> None:
        """Give the objects of classes with `__setstate__` their state."""
        for made, state, info in self.waiting:
            set_state(made, state)
            _register(made, info)
        self.waiting.clear()

    def _list(self, found: list[object]) -> Any:
        made: list[Any] = self.made.setdefault(id(found), [])
        if not made:
            made.extend(map(self.value, found))
        return made

    def _dict(self, found: dict[object, object]) -> Any:
        made: dict[Any, Any] = self.made.setdefault(id(found), {})
        if not made:
            made.update((self.value(k), self.value(v)) for k, v in found.items())
        return made

    def _member(self, path: str, value: object) -> Any:
        cls = self.code.find(path)
        if not isinstance(cls, enum.EnumMeta):
            raise LoadError(f"{path} is no enum, but a value of the archive is one of its members")
        try:
            return cls(value)
        except ValueError as error:
            raise LoadError(f"{path} has no member of the value {value!r}") from error

    def _instance(self, found: Instance) -> Any:
        if found.cls.startswith(_NATIVE):
            self.code.missing.setdefault(found.cls, [])
            return None
        cls: Any = self.code.find(found.cls)
        if not isinstance(cls, type) or issubclass(cls, enum.Enum | tuple):
            raise LoadError(f"{found.cls} is no class, but the archive has an object of it")
        made: Any = object.__new__(cast("Any", cls))
        is_module = isinstance(made, torch.nn.Module)
        if is_module:
            torch.nn.Module.__init__(made)
            vars(made)[CALLS] = Calls()
        self.made[id(found)] = made
        info = self.code.infos.get(found.cls, _NO_INFO)
        for name, value in info.constants.items():
            object.__setattr__(made, name, value)
        if is_module and info.constants:
            vars(made)["_lowtide_adopts"] = functools.partial(_assigned, info.constants)
        if "__setstate__" in vars(cast("Any", cls)):
            self._prepare(made, info)
            self.waiting.append((made, self.value(found.state), info))
        elif isinstance(found.state, dict):
            for name, value in cast("dict[object, object]", found.state).items():
                self._set(found.cls, made, info, name, self.value(value))
        elif found.has_state:
            raise LoadError(f"the state of an object of {found.cls} is no dict of attributes")
        return made

    def _prepare(self, made: Any, info: ModuleClass) -> None:
        """Give an object its attributes without values, which `__setstate__` sets. It sets plain
        tensors, also those that are to be parameters."""
        for name in type(made).__annotations__:
            if name in info.buffers:
                vars(made)["_buffers"][name] = None
            elif name not in vars(made):
                object.__setattr__(made, name, None)

    def _set(self, path: str, made: Any, info: ModuleClass, name: object, value: Any) -> None:
        if name in UNUSED:
            return
        if not isinstance(name, str) or name in _KEPT or name.startswith("__"):
            raise LoadError(f"an object of {path} has an attribute {name!r}")
        if not isinstance(made, torch.nn.Module):
            object.__setattr__(made, name, value)
            return
        own = vars(made)
        if isinstance(value, torch.nn.Module):
            own["_modules"][name] = value
        elif name in info.parameters and isinstance(value, torch.Tensor | None):
            own["_parameters"][name] = None if value is None else _parameter(value)
        elif name in info.buffers and isinstance(value, torch.Tensor | None):
            own["_buffers"][name] = value
        else:
            own[name] = value


def _register(made: Any, info: ModuleClass) -> None:
    """Make parameters of the tensors that `__setstate__` has set for them."""
    own = cast("dict[str, Any]", vars(made))
    for name in info.parameters:
        value = cast("torch.Tensor | None", own.pop(name, None))
        own["_parameters"][name] = None if value is None else _parameter(value)


def _parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    """Return the tensor itself, as a parameter; lists of parameters hold it, too."""
    if not isinstance(tensor, torch.nn.Parameter):
        tensor.__class__ = torch.nn.Parameter
    return cast("torch.nn.Parameter", tensor)


def _assigned(constants: Mapping[str, object], made: Any, name: str, value: object) -> object:
    """Return the value that a user assigns. Raises RuntimeError for a constant of the program."""
    if name in constants:
        raise RuntimeError(
            f"can't set the constant {name!r} of {type(made).__name__}: the program has its value, "
            f"{constants[name]!r}, in it"
        )
    return value


def called(fn: FunctionType, *args: Any, **named: Any) -> Any:
    """Call a function of the archive, compiled; what Python does where it meets one."""
    owner = args[0] if args else None
    if (
        isinstance(owner, torch.nn.Module)
        and inspect.getattr_static(type(owner), fn.__name__) is fn
    ):
        return make_or_get(wrap(owner), fn.__name__)(*args[1:], **named)
    return _compiled(fn)(*args, **named)


@functools.lru_cache(maxsize=1024)
def _compiled(fn: FunctionType) -> ScriptFunction:
    return ScriptFunction(fn)


def set_state(made: Any, state: object) -> None:
    """Run the object's `__setstate__`, compiled."""
    if isinstance(made, torch.nn.Module):
        make_method(wrap(made), "__setstate__")(state)
    else:
        made.__setstate__(state)
