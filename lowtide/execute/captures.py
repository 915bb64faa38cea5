"""Reads the captured values of a program (parameters, buffers), by generated lambdas.

In: the root module, the paths and guards of a program. Out: a `Reader`, whose functions do one
look-up per value:

    lambda: ((d0["weight"], d1["training"]), (d2["stride"], d3["bias"] is None))
             captured values                 guards

    lambda: [*d3.values(), None, *d4.values(), None]             submodules

where `d0`, `d1`, … are the dicts in which the modules store parameters, buffers and submodules.

If a name has moved to another dict, for instance from buffers to parameters, `read` raises
KeyError, and the caller makes a new Reader.
Invariant: the dicts are the modules' own, so a call sees a new parameter, number or submodule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import getattr_static, isdatadescriptor
from typing import Any, Final, cast

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from lowtide.frontend.script.module_state import HOOKS, Guard, follow, join_path, root_of
from lowtide.ir import types as t

Values = tuple[Any, ...]
GLOBAL_HOOKS: Final = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)
Read = Callable[[], tuple[Values, Values]]


def hook_count() -> int:
    """Return a counter that grows with every hook registered on any module."""
    return int(RemovableHandle.next_id)


class Reader:
    """`read()` returns the captured values and the current values of the guards. `submodules()`
    returns all submodules that the program depends on, None if there are none. `computed`:
    positions of the paths whose values each read computes, such as a parametrized weight."""

    def __init__(
        self, root: torch.nn.Module, paths: Sequence[str], guards: Sequence[Guard]
    ) -> None:
        self._root = root
        self.paths = tuple(paths)
        self._names: dict[str, Any] = {}
        self._bound: dict[int, str] = {}
        hooked = [g.path for g in guards if g.kind == "hooks"]
        self._modules = [_module(root, path) for path in hooked]
        with_hooks = [g for g in guards if g.kind == "hooks" and _hooks(_module(root, g.path))]
        facts = [g for g in guards if g.kind != "hooks"]
        values = [self._value(path) for path in paths]
        self.computed = tuple(k for k, text in enumerate(values) if text.startswith(_GETATTR))
        self.guards = (*facts, *with_hooks)  # in the order of `read`
        checks = [self._check(g) for g in self.guards]
        text = f"lambda: (({_joined(values)}), ({_joined(checks)}))"
        self.read: Read = eval(text, self._names)
        parents = {id(m): m for _, m in _tree(root) if vars(m)["_modules"]}.values()
        held = "".join(f"*{self._bind(vars(m)['_modules'])}.values(), None, " for m in parents)
        self.submodules: Callable[[], list[Any]] | None = None
        if parents:
            self.submodules = eval(f"lambda: [{held}]", self._names)

    def hooks(self) -> tuple[Any, ...]:
        """Return the hooks of all modules that the program depends on."""
        return tuple(_hooks(m) for m in self._modules)

    def tree(self) -> dict[str, torch.nn.Module]:
        """Return the current submodules by path."""
        return tree(self._root)

    def _bind(self, obj: object) -> str:
        known = self._bound.get(id(obj))
        if known is None:
            known = self._bound[id(obj)] = f"o{len(self._bound)}"
            self._names[known] = obj
        return known

    def _value(self, path: str) -> str:
        owner, name = follow(self._root, path)
        if isinstance(owner, dict):  # globals
            return self._item(cast("dict[str, Any]", owner), name)
        if not name:
            return self._bind(owner)
        own = vars(owner)
        if name in own["_modules"] and name not in own:
            found = _module(self._root, path) if own["_modules"][name] is not None else None
            return self._bind(found) if found is not None else self._item(own["_modules"], name)
        if name == "training" and isdatadescriptor(getattr_static(type(owner), name, None)):
            return f"{self._bind(owner)}.training"  # that of a module of torch.jit
        for held in (own, own["_parameters"], own["_buffers"]):  # as Python looks it up
            if name in held:
                return self._item(held, name)
        return f"{_GETATTR}{self._bind(owner)}, {name!r})"

    def _item(self, held: dict[str, Any], name: str) -> str:
        return f"{self._bind(held)}[{name!r}]"

    def _check(self, guard: Guard) -> str:
        if guard.kind == "hooks":
            return f"{self._bind(_hooks)}({self._bind(_module(self._root, guard.path))})"
        if guard.kind == "has":
            owner, name = follow(self._root, guard.path)
            return f"hasattr({self._bind(owner)}, {name!r})"
        value = self._value(guard.path)
        match guard.kind:
            case "none":
                return f"{value} is None"
            case "same":
                return f"{value} is {self._value(guard.other)}"
            case "type":
                return f"type({value})"
            case "fits":
                type_ = t.parse_type(guard.other)
                return f"{self._bind(type_of_value)}({value}, {self._bind(type_)})"
            case _:
                return value


def tree(root: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the module and all its submodules, by path."""
    return dict(_tree(root))


def stands_for(now: torch.nn.Module | None, before: torch.nn.Module) -> bool:
    """Return whether a program recorded with the module `before` is right for `now`: tensors are
    read at each call, everything else was recorded as a constant."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    rows = [{k: v for k, v in vars(m).items() if k not in _NOT_ASSUMED} for m in (now, before)]
    return repr(rows[0]) == repr(rows[1])


_GETATTR: Final = "getattr("  # of a value that is stored nowhere
_NOT_ASSUMED = frozenset({"_parameters", "_buffers", "_modules", "training"})


def _tree(
    root: torch.nn.Module, path: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the module and its submodules by path; the submodules of a shared module only once."""
    seen = set() if seen is None else seen
    yield path, root
    if id(root) in seen:
        return
    seen.add(id(root))
    for name, held in vars(root)["_modules"].items():
        if held is not None:
            yield from _tree(root_of(held), join_path(path, name), seen)


def _joined(parts: Sequence[str]) -> str:
    return "".join(f"{p}, " for p in parts)


def _module(root: torch.nn.Module, path: str) -> torch.nn.Module:
    owner, name = follow(root, f"{path}.") if path else (root, "")
    assert not name
    return owner


def _hooks(module: torch.nn.Module) -> tuple[int, ...]:
    own = vars(module)
    return tuple(key for name in HOOKS for key in own.get(name, ()))


def hooks_on_all() -> tuple[int, ...]:
    """Return the global module hooks, as set by
    `torch.nn.modules.module.register_module_forward_hook`."""
    return tuple(key for name in GLOBAL_HOOKS for key in getattr(torch_module, name, ()))


def type_of_value(value: object, expected: t.Type) -> bool:
    """Return whether a captured value still has the type that the program was compiled for."""
    if isinstance(expected, t.ClassType):
        return True  # the module itself
    found = t.type_of(value)
    return found is None or t.is_subtype(found, expected)
