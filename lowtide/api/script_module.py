"""`lt.ScriptModule`: an nn.Module whose methods are compiled.

In: an nn.Module, the *root*, which owns the state. Out: a module that is called, trained, moved and
saved like the root; both share parameters, buffers, hooks and every attribute.

    c = lt.script(Net())                     class Net(lt.ScriptModule):
    c(x); c.encode(x); c.layer1(x)               @lt.script_method
    c.load_state_dict(state); c.eval()           def forward(self, x): ...

Invariant: a compiled module's submodules are compiled modules around the root's submodules, one
for each, however often it is shared. In the class style the module is its own root.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch.utils.hooks import RemovableHandle

from lowtide.api import names
from lowtide.api.entry_point_errors import what_can_be_called
from lowtide.api.pickled import clone_results, is_from_file, reduced
from lowtide.api.script_method import MethodMaker, ScriptMethod
from lowtide.api.torch_jit_members import INSTEAD, replacement_error, saved_to_buffer
from lowtide.execute.captures import hooks_on_all
from lowtide.execute.options import Options
from lowtide.frontend.script import decorators
from lowtide.frontend.script.module_state import is_torch_class, own_call, root_of
from lowtide.frontend.script.programs import note_ties
from lowtide.frontend.script.source import unwrap
from lowtide.ir.core import Function

_Module = torch.nn.Module
_UNSHARED: Final = ("_modules", "training")
_OF_FORWARD: Final = (  # of the program of forward
    *("graph", "code", "explain", "memory", "stages"),
    *("inlined_graph", "graph_for", "code_with_constants"),
)
_CHANGING: Final = ("append", "extend", "insert", "pop", "update", "clear")  # of a container
_MISSING: Final = object()
_ATTRIBUTES: Final[Any] = (decorators.Attribute, torch.jit.Attribute)  # pyright: ignore


class LazyMethod:
    """A method that is compiled at its first use; `lt.script_method` makes one."""

    def __init__(self, fn: Callable[..., Any] | None, name: str = "") -> None:
        self.__lowtide_function__ = fn
        self._name = name or getattr(fn, "__name__", "")
        if fn is not None:
            functools.update_wrapper(cast("Any", self), fn)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        made = make_method(instance, self._name)
        instance.__dict__[self._name] = made
        return made


def script_method(fn: Callable[..., Any]) -> Any:
    """Mark a method to be compiled, in a class derived from `lt.ScriptModule`."""
    return LazyMethod(fn)


class ScriptModule(_Module):
    """A compiled module, which `lt.script` and `lt.trace` return; in the class style, its base
    class.

    It shares parameters, buffers, hooks and attributes with the module that it was made from, and
    is called, trained, moved and saved like it.
    """

    # Of the program of forward; resolved in __getattr__, so that a module may use the names itself.
    graph: Any
    code: Any
    explain: Any
    memory: Any
    stages: Any
    inlined_graph: Any
    graph_for: Any
    code_with_constants: Any

    @property
    def __lowtide_root__(self) -> _Module:
        return self.__dict__.get("_lowtide_root", self)

    @property
    def original_name(self) -> str:
        """The name of the module's own class."""
        return type(self.__lowtide_root__).__name__

    def save(self, f: Any, _extra_files: dict[str, Any] | None = None) -> None:
        """Write the module to a file: `lt.save(self, f, _extra_files)`."""
        names.find("save")(self, f, _extra_files)

    def save_to_buffer(self, _extra_files: dict[str, Any] | None = None) -> bytes:
        """Return the bytes that `save` writes."""
        return saved_to_buffer(self, _extra_files)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        if own.get("_lowtide_quiet") == RemovableHandle.next_id:
            return own["forward"](*args, **kwargs)
        root = self.__lowtide_root__
        if root is not self and getattr(root, "has_uninitialized_params", bool)():
            return root(*args, **kwargs)  # its sizes come from the first input
        if own_call(root) is not None:
            made = own.get("_lowtide_call")
            if made is None:
                made = own["_lowtide_call"] = make_method(self, "__call__")
            return made(*args, **kwargs)
        if not _has_hooks(self) and isinstance(self.forward, ScriptMethod):
            object.__setattr__(self, "_lowtide_quiet", RemovableHandle.next_id)
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FORWARD:
            return getattr(self.forward, name)
        if name in INSTEAD:
            raise replacement_error(name, f"the compiled {self.original_name}")
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, decorators.Attribute):
            self.__dict__.setdefault("_lowtide_types", {})[name] = value.type
            value = value.value
        if name in self.__dict__ and isinstance(self.__dict__[name], ScriptMethod):
            del self.__dict__[name], self.__dict__["_lowtide_quiet"]
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            if not isinstance(value, ScriptMethod) and name != "_lowtide_quiet":
                made.__dict__[name] = copy.deepcopy(value, memo)
        return made

    def __reduce_ex__(self, protocol: object) -> Any:
        return reduced(self)


class _OfItsRootsClass:
    """Lets isinstance() accept an object as one of its root's class, too: `for m in net.modules():
    if isinstance(m, nn.BatchNorm2d): m.eval()`. It is a class of its own, because `super()` binds
    the name to its own class."""

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        root: object = self.__dict__["_lowtide_root"]
        return type(root)

    @__class__.setter
    def __class__(self, cls: type[Any]) -> None:
        self.__dict__["_lowtide_root"].__class__ = cls


class WrappedModule(_OfItsRootsClass, ScriptModule):
    """A compiled module around a root of another class."""

    forward: Any = LazyMethod(None, "forward")

    def __init__(
        self,
        root: _Module,
        methods: Mapping[str, Function | MethodMaker] | None = None,
        memo: dict[int, ScriptModule] | None = None,
        *,
        frozen: bool = False,
        preserved: frozenset[str] = frozenset(),
    ) -> None:
        memo = {} if memo is None else memo
        memo[id(root)] = self
        own = self.__dict__
        own.update({k: root.__dict__[k] for k in _internals() if k in root.__dict__})
        own["_lowtide_root"] = root
        own["_lowtide_given"] = dict(methods or {})
        if methods and methods is not root.__dict__.get("_lowtide_programs"):
            root.__dict__["_lowtide_programs"] = dict(methods)
            note_ties(root)
        own["_lowtide_options"] = {"frozen": frozen, "preserved": preserved}
        own["_lowtide_wraps"] = memo
        own["_version"] = getattr(root, "_version", 1)
        _ = self._modules
        _unwrap_attributes(root)
        for name in own["_lowtide_given"]:
            own[name] = make_method(self, name)
        for name in _overridden(type(root)):
            own.setdefault(name, functools.partial(self._as_root_does, name))

    def _as_root_does(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the root's own method, such as `train`, if its class overrides it."""
        root = self.__lowtide_root__
        found = getattr(root, name)(*args, **kwargs)
        return self if found is root else found

    @property
    def _modules(self) -> dict[str, ScriptModule | None]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The root's submodules, each wrapped, as they are now."""
        own = self.__dict__
        held: dict[str, _Module | None] = own["_lowtide_root"].__dict__["_modules"]
        if own.get("_lowtide_wrapped") != list(held.items()):
            own["_lowtide_wrapped"] = list(held.items())
            wrapped = {k: None if m is None else self._wrap(m) for k, m in held.items()}
            own["_modules"] = _Parts(held, wrapped)
        return own["_modules"]

    def _wrap(self, module: _Module) -> ScriptModule:
        if isinstance(module, ScriptModule):
            return module
        own, module = self.__dict__, root_of(module)
        known = own["_lowtide_wraps"].get(id(module))
        if known is not None:
            return known
        return wrap(module, memo=own["_lowtide_wraps"], **own["_lowtide_options"])

    def _get_name(self) -> str:
        return "ScriptModule"

    def extra_repr(self) -> str:
        """Return the text that `repr` shows besides the submodules."""
        return f"original_name={self.original_name}"

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for held in (own["_parameters"], own["_buffers"], self._modules):
            if name in held:
                return held[name]
        root: _Module = own["_lowtide_root"]
        if name in root.__dict__:  # first, as Dynamo follows this and no more
            return getattr(root, name)
        found = inspect.getattr_static(root, name, _MISSING)
        if found is _MISSING and own["_lowtide_given"] and name not in {*_OF_FORWARD, *INSTEAD}:
            raise AttributeError(f"{self.original_name} has no {name!r}{what_can_be_called(self)}")
        if found is _MISSING:
            return super().__getattr__(name)
        if not callable(found) or isinstance(found, staticmethod):
            return getattr(root, name)
        return self._method(root, name, found)

    def _method(self, root: _Module, name: str, found: Any) -> Any:
        if isinstance(cast("object", found), classmethod) or decorators.modifier(found) is not None:
            bound = getattr(root, name)
            if decorators.modifier(found) not in decorators.EXPORTED:
                return bound
        elif not self._is_compiled(root, name):
            raise AttributeError(
                f"{self.original_name}.{name}() is not compiled; write `@lt.export` above "
                f"`def {name}` to compile it, or `@lt.ignore` to leave it to Python"
            )
        made = self.__dict__[name] = make_method(self, name)
        return made

    def _is_compiled(self, root: _Module, name: str) -> bool:
        """Return whether an entry point of the whole module calls the method."""
        wraps: dict[int, ScriptModule] = self.__dict__["_lowtide_wraps"]
        methods = [m for w in wraps.values() for m in w.__dict__.values()]
        compiled = [m for m in methods if isinstance(m, ScriptMethod)]
        if not compiled:  # a copy that has not been called
            whole = next(iter(wraps.values()))
            compiled = [make_or_get(whole, entry) for entry in entry_points(root_of(whole))]
            for method in compiled:
                method.compile()
        return any((id(root), name) in method.callees for method in compiled)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        root: _Module = own["_lowtide_root"]
        is_method = name in own and isinstance(own[name], ScriptMethod)
        if is_method or name in ("forward", "__class__"):
            whole = next(iter(own["_lowtide_wraps"].values()))
            is_given = own["_lowtide_given"] or whole.__dict__["_lowtide_given"]
            if is_given and (whole is not self or name != "forward"):
                what = name if name == "__class__" else f"{name}()"
                raise AttributeError(
                    f"{what} of a traced or loaded module cannot be replaced: programs that call "
                    "it have it in them; replace it in the Python module, then trace or save it"
                )
        if is_method:
            own[name] = value
            if own["_lowtide_given"]:
                return
        if "_lowtide_adopts" in root.__dict__:
            value = root.__dict__["_lowtide_adopts"](root, name, value)
        setattr(root, name, _bare(value) if isinstance(value, _Module) else value)

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raises a RuntimeError for a part of a traced module, whose program would not call it."""
        self._check_hooked()
        return super().register_forward_hook(*args, **kwargs)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raises a RuntimeError for a part of a traced module, whose program would not call it."""
        self._check_hooked()
        return super().register_forward_pre_hook(*args, **kwargs)

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raises a RuntimeError for a part of a traced module, whose program would not call it."""
        self._check_hooked()
        return super().register_full_backward_hook(*args, **kwargs)

    def _check_hooked(self) -> None:
        whole = next(iter(self.__dict__["_lowtide_wraps"].values()))
        is_part = whole is not self and not self.__dict__["_lowtide_given"]
        if is_part and whole.__dict__["_lowtide_given"]:
            raise RuntimeError(
                "a hook of a part of a traced or loaded module would never be called: the program "
                "of the whole has the part in it; register it before tracing or saving"
            )

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_lowtide_root"], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.__dict__["_lowtide_root"])})

    def add_module(self, name: str, module: _Module | None) -> None:
        """Adds a submodule, to the root too."""
        setattr(self, name, module)

    def get_extra_state(self) -> Any:
        """Return the root's extra state, if its class has one."""
        return self.__lowtide_root__.get_extra_state()

    def set_extra_state(self, state: Any) -> None:
        """Set the root's extra state."""
        self.__lowtide_root__.set_extra_state(state)

    def _save_to_state_dict(self, *args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.__lowtide_root__._save_to_state_dict(*args)  # pyright: ignore[reportPrivateUsage]

    def _load_from_state_dict(self, *args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.__lowtide_root__._load_from_state_dict(*args)  # pyright: ignore[reportPrivateUsage]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if is_from_file(root := self.__dict__["_lowtide_root"]):
            clone_results(root, memo)
        made = self._around(copy.deepcopy(root, memo))
        memo[id(self)] = made
        return made

    def __copy__(self) -> Any:
        return self._around(copy.copy(self.__dict__["_lowtide_root"]))

    def _around(self, root: _Module) -> ScriptModule:
        own = self.__dict__
        made = wrap(root, own["_lowtide_given"], **own["_lowtide_options"])
        made.__dict__["_lowtide_call_options"] = own.get("_lowtide_call_options", Options())
        return made


_OVERRIDABLE: Final = frozenset(
    name
    for name, member in vars(_Module).items()
    if isinstance(member, FunctionType) and (name[0] != "_" or name == "_apply")
    if name not in vars(WrappedModule) and not name.endswith(("modules", "children"))
) - {"forward", "extra_repr"}


@functools.lru_cache(maxsize=1024)
def _overridden(cls: type[_Module]) -> tuple[str, ...]:
    """Return the methods of nn.Module that users' classes override, such as `def train(self,
    mode)`. Entry points of the program are excluded."""
    own = [c for c in cls.__mro__[: cls.__mro__.index(_Module)] if not is_torch_class(c)]
    found = {name: member for c in own for name, member in vars(c).items() if name in _OVERRIDABLE}
    return tuple(name for name, member in found.items() if decorators.modifier(member) is None)


class _Parts(dict[str, Any]):
    """The wrapped submodules of a compiled module. Changes go to the submodules of the root."""

    def __init__(self, held: dict[str, _Module | None], wrapped: dict[str, Any]) -> None:
        super().__init__(wrapped)
        self._held = held

    def __setitem__(self, name: str, value: Any) -> None:
        self._held[name] = _bare(value)

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def pop(self, name: str, *default: Any) -> Any:
        found = self.get(name)
        held = self._held.pop(name, *default)
        return held if found is None else found

    def update(self, *args: Any, **more: Any) -> None:
        self._held.update(_bare(dict(*args, **more)))

    def clear(self) -> None:
        self._held.clear()


class _Container(WrappedModule):
    """A compiled ModuleList, ModuleDict, Sequential, …"""

    def _own(self, found: Any) -> Any:
        return self._wrap(found) if isinstance(found, _Module) else found

    def __len__(self) -> int:
        return len(cast("Any", self.__lowtide_root__))

    def __iter__(self) -> Iterator[Any]:
        return map(self._own, cast("Any", self.__lowtide_root__))

    def __getitem__(self, key: Any) -> Any:
        return self._own(cast("Any", self.__lowtide_root__)[key])

    def __setitem__(self, key: Any, module: _Module) -> None:
        cast("Any", self.__lowtide_root__)[key] = _bare(module)

    def __delitem__(self, key: Any) -> None:
        del cast("Any", self.__lowtide_root__)[key]

    def _method(self, root: _Module, name: str, found: Any) -> Any:
        if name in _CHANGING and type(root).__module__.startswith("torch."):
            return functools.partial(self._change, name)
        return super()._method(root, name, found)

    def _change(self, name: str, *args: Any) -> Any:
        """Return the root's method, such as `append`, for modules that are not compiled."""
        found = getattr(self.__lowtide_root__, name)(*map(_bare, args))
        return self if found is self.__lowtide_root__ else self._own(found)

    def __contains__(self, key: Any) -> bool:
        return root_of(key) in cast("Any", self.__lowtide_root__)

    def keys(self) -> Any:
        """Return the names of the elements."""
        return cast("Any", self.__lowtide_root__).keys()

    def values(self) -> Any:
        """Return the elements."""
        return [self._own(v) for v in cast("Any", self.__lowtide_root__).values()]

    def items(self) -> Any:
        """Return the names and the elements."""
        return [(k, self._own(v)) for k, v in cast("Any", self.__lowtide_root__).items()]


def is_own_name(name: str) -> bool:
    """Return whether compiled modules have an attribute of this name that they need."""
    return name.startswith("_lowtide") or (name.startswith("_") and hasattr(_Container, name))


def _bare(value: Any) -> Any:
    """Return the module as its root stores it. A traced or loaded one stays, because its root has
    no methods."""
    if isinstance(value, _Module):
        return value if value.__dict__.get("_lowtide_given") else root_of(value)
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in cast("dict[Any, Any]", value).items()}
    is_row = isinstance(value, list | tuple)
    return [_bare(v) for v in cast("list[Any]", value)] if is_row else value


def wrap(
    root: _Module,
    methods: Mapping[str, Function | MethodMaker] | None = None,
    memo: dict[int, ScriptModule] | None = None,
    *,
    frozen: bool = False,
    preserved: frozenset[str] = frozenset(),
) -> ScriptModule:
    """Return the compiled module around a root. `methods`: finished programs, for modules without
    source (traced, loaded). Their captures are paths from the root, which stays alive."""
    if isinstance(root, ScriptModule) and not isinstance(root, WrappedModule):
        return root
    methods = methods or root.__dict__.get("_lowtide_programs")
    base = _Container if hasattr(type(root), "__len__") else WrappedModule
    cls = _named(base, type(root).__name__)
    return cls(root, methods, memo, frozen=frozen, preserved=preserved)


@functools.lru_cache(maxsize=1024)
def _named(cls: type[WrappedModule], name: str) -> type[WrappedModule]:
    """Return a class with the name of the user's own, which Python's error messages show."""
    return type(name, (cls,), {})


def entry_points(module: torch.nn.Module) -> list[str]:
    """forward, if there is one, and the exported methods."""
    names = [] if method_source(module, "forward") is torch.nn.Module.forward else ["forward"]
    for name in dir(type(module)):
        found = inspect.getattr_static(type(module), name)
        if decorators.modifier(found) in decorators.EXPORTED and name != "forward":
            names.append(name)
    return names


def make_or_get(module: ScriptModule, name: str) -> ScriptMethod:
    """Return the compiled method of this name."""
    known = module.__dict__.get(name)
    if not isinstance(known, ScriptMethod):
        known = module.__dict__[name] = make_method(module, name)
    return known


def make_method(module: ScriptModule, name: str) -> ScriptMethod:
    """Return a method of a compiled module without a program, with the options of the module."""
    made = _method(module, name)
    made.set_options(module.__dict__.get("_lowtide_call_options", Options()))
    return made


def _method(module: ScriptModule, name: str) -> ScriptMethod:
    own = module.__dict__
    root = root_of(module)
    given: Mapping[str, Function | MethodMaker] = own.get("_lowtide_given", {})
    options: dict[str, Any] = own.get("_lowtide_options", {})
    source = given.get(name) or method_source(root, name)
    if isinstance(source, MethodMaker):
        return source.make(root)
    if source is _Module.forward:
        raise NotImplementedError(
            f"{type(root).__name__} has no forward(){what_can_be_called(module)}"
        )
    return ScriptMethod(root, name, source, **options)


def method_source(root: _Module, name: str) -> FunctionType:
    """Return the Python function behind a method of this name."""
    own = root.__dict__.get(name)
    if own is not None and not isinstance(own, ScriptMethod):
        return unwrap(own)
    return unwrap(inspect.getattr_static(type(root), name))


@functools.cache
def _internals() -> tuple[str, ...]:
    """Return the names of the attributes that nn.Module sets on every module, except submodules and
    mode."""
    return tuple(k for k in _Module().__dict__ if k not in _UNSHARED)


def _has_hooks(module: _Module) -> bool:
    own = module.__dict__
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(own[n] for n in names) or bool(hooks_on_all())


def _unwrap_attributes(root: _Module) -> None:
    """Replace `lt.Attribute(value, type)` in the module's attributes by the value, and remember the
    type."""
    for name, value in list(root.__dict__.items()):
        if isinstance(value, _ATTRIBUTES):
            types = root.__dict__.setdefault("_lowtide_types", {})
            types[name] = value.type
            root.__dict__[name] = value.value
