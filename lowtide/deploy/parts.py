"""Finds the methods of a module that are saved in addition to its entry points.

In: a compiled module. Out: `Entry`s of its submodules, and of itself.

    forward calls self.encoder(x)    forward of `encoder`
    it calls self.layers[0].mix(x)   mix of `layers.0`
    scripted.norm(x), before saving  forward of `norm`, for the types of that call, too

The `forward` and the exported methods of each submodule are compiled for their annotations, the
public methods that a program calls for the types of these calls. A method that does not compile is
left out. Equal modules are compiled once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final

import torch

from lowtide.api.script_method import ScriptMethod
from lowtide.api.script_module import ScriptModule, make_or_get, wrap
from lowtide.deploy.calls import Called, Calls
from lowtide.deploy.class_table import container_of, may_be_method
from lowtide.deploy.entries import Entry, has_hooks, names_of
from lowtide.deploy.fitting import Program, Types
from lowtide.deploy.programs import of_method
from lowtide.deploy.twins import Twins, form_of, standing
from lowtide.errors import CompileError
from lowtide.frontend.script.left_to_python import only_python
from lowtide.frontend.script.module_state import is_torch_class, root_of

_MOST_ROUNDS: Final = 8


def parts_of(m: ScriptModule, known: Iterable[Entry]) -> list[Entry]:
    """Return the callable parts besides the `known` entries, the root's own methods first."""
    taken = {(id(e.module), e.name) for e in known}
    parts = _Parts(_wrapped(m), taken)
    found: list[Entry] = []
    for _ in range(_MOST_ROUNDS):  # a compiled part may call others with new types
        count = parts.calls.count
        found = parts.entries()
        if parts.calls.count == count:
            break
    return found


def _wrapped(m: ScriptModule) -> dict[torch.nn.Module, ScriptModule]:
    """Return the compiled module of every submodule. A subclass of ScriptModule makes none for its
    submodules, so they are made here."""
    found: dict[torch.nn.Module, ScriptModule] = {}
    memo: dict[int, ScriptModule] = {}
    for inner in m.modules():
        module = root_of(inner)
        if not isinstance(inner, ScriptModule):
            inner = memo.get(id(module)) or wrap(module, memo=memo)
        found[module] = inner
    return found


@dataclass(slots=True)
class _Parts:
    """All modules, each with its compiled one. `taken`: methods that exist already."""

    wrapped: Mapping[torch.nn.Module, ScriptModule]
    taken: Set[tuple[int, str]]
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        for wrapper in self.wrapped.values():
            self._note(wrapper, {})

    def entries(self) -> list[Entry]:
        twins, found = Twins(), list[Entry]()
        for module, wrapper in self.wrapped.items():
            if not (only_python(module) or has_hooks(module)):
                found += self._of(module, wrapper, twins)
        return found

    def _of(self, module: torch.nn.Module, wrapper: ScriptModule, twins: Twins) -> list[Entry]:
        called = self.calls.of(module)
        names = [n for n in _names(wrapper, module, called) if (id(module), n) not in self.taken]
        methods = {name: tuple(called.get(name, ())) for name in names}
        if vars(wrapper).get("_lowtide_given"):
            return _made(wrapper, module, methods)
        form = (form_of(module), tuple(methods.items()))
        if not any(method.variants() for method in _methods(wrapper)):
            found = twins.find(module, form)
            if found is not None:
                other, entries = found
                self._note(self.wrapped[other], standing(other, module))
                return [replace(entry, module=module) for entry in entries]
        made = _made(wrapper, module, methods)
        self._note(wrapper, {})
        twins.add(module, form, made)
        return made

    def _note(self, wrapper: ScriptModule, places: Mapping[int, int]) -> None:
        for method in _methods(wrapper):
            self.calls.note(method.callees, places)


def _methods(wrapper: ScriptModule) -> list[ScriptMethod]:
    return [x for x in vars(wrapper).values() if isinstance(x, ScriptMethod)]


def _names(wrapper: ScriptModule, module: torch.nn.Module, called: Called) -> Iterator[str]:
    if vars(wrapper).get("_lowtide_given"):  # traced or loaded: the methods that can be inlined
        yield from vars(module)["_lowtide_programs"]
        return
    yield from dict.fromkeys(n for n in names_of(wrapper, module) if _is_method(module, n))
    for name in sorted(called):
        if not name.startswith("_") and name != "forward" and _is_method(module, name):
            member: Any = inspect.getattr_static(type(module), name)
            if not is_torch_class(member):  # helpers of torch.nn are not part of its interface
                yield name


def _is_method(module: torch.nn.Module, name: str) -> bool:
    """Return whether it is a method, not a property or the like, that a file may contain."""
    own = vars(module).get(name)
    member = inspect.getattr_static(type(module), name, None)
    is_plain = isinstance(member, FunctionType) or hasattr(member, "__lowtide_function__")
    is_own = own is None or isinstance(own, ScriptMethod) or name == "forward"
    return is_plain and is_own and may_be_method(container_of(module), name)


def _made(wrapper: ScriptModule, module: torch.nn.Module, methods: Called) -> list[Entry]:
    found = (_entry(wrapper, module, name, called) for name, called in methods.items())
    return [entry for entry in found if entry is not None]


def _entry(
    wrapper: ScriptModule, module: torch.nn.Module, name: str, called: Iterable[Types]
) -> Entry | None:
    try:
        method = make_or_get(wrapper, name)
        programs = [p for p in of_method(method, called) if not _needs_python(p)]
    except CompileError:
        return None
    return Entry(name, module, method.signature, programs) if programs else None


def _needs_python(program: Program) -> bool:
    return any(op.name == "call_module" for op in program.function.walk())
