"""Reads what a program captures from its modules: one generated lambda, a dict look-up each.

In: the root module, the paths and guards of a program. Out: a `Reader`.

    lambda: ((d0["weight"], d1["training"]), (d2["stride"], d3["bias"] is None))
             captured values                 guards

Always holds: the dicts are the modules' own, so a new parameter or number is seen at the next call.
Where a name has moved (from buffers to parameters, say), `read` raises KeyError: make a new Reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
from torch.utils.hooks import RemovableHandle

from lowtide.frontend.script.module_state import Guard, follow
from lowtide.ir import types as t

Values = tuple[Any, ...]
Read = Callable[[], tuple[Values, Values]]

_HOOKS: Final = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"),
    "_forward_hooks_always_called",
)


def hook_count() -> int:
    """Grows with every hook that is registered on any module."""
    return int(RemovableHandle.next_id)


class Reader:
    """`read()` gives the captured values, and what the guards say now."""

    def __init__(
        self, root: torch.nn.Module, paths: Sequence[str], guards: Sequence[Guard]
    ) -> None:
        self._root = root
        self._names: dict[str, Any] = {}
        self._bound: dict[int, str] = {}
        hooked = [g.path for g in guards if g.kind == "hooks"]
        self._modules = [_module(root, path) for path in hooked]
        with_hooks = [g for g in guards if g.kind == "hooks" and _hooks(_module(root, g.path))]
        facts = [g for g in guards if g.kind != "hooks"]
        values = [self._value(path) for path in paths]
        checks = [self._check(g) for g in (*facts, *with_hooks)]
        text = f"lambda: (({_joined(values)}), ({_joined(checks)}))"
        self.read: Read = eval(text, self._names)

    def hooks(self) -> tuple[Any, ...]:
        """The hooks of all modules that the program looks into."""
        return tuple(_hooks(m) for m in self._modules)

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
        if name in own["_modules"]:
            found = _module(self._root, path) if own["_modules"][name] is not None else None
            return self._bind(found) if found is not None else self._item(own["_modules"], name)
        for held in (own["_parameters"], own["_buffers"], own):
            if name in held:
                return self._item(held, name)
        return f"getattr({self._bind(owner)}, {name!r})"

    def _item(self, held: dict[str, Any], name: str) -> str:
        return f"{self._bind(held)}[{name!r}]"

    def _check(self, guard: Guard) -> str:
        if guard.kind == "hooks":
            return f"{self._bind(_hooks)}({self._bind(_module(self._root, guard.path))})"
        value = self._value(guard.path)
        match guard.kind:
            case "none":
                return f"{value} is None"
            case "same":
                return f"{value} is {self._value(guard.other)}"
            case "type":
                return f"type({value})"
            case _:
                return value


def _joined(parts: Sequence[str]) -> str:
    return "".join(f"{p}, " for p in parts)


def _module(root: torch.nn.Module, path: str) -> torch.nn.Module:
    owner, name = follow(root, f"{path}.") if path else (root, "")
    assert not name
    return owner


def _hooks(module: torch.nn.Module) -> tuple[int, ...]:
    own = vars(module)
    return tuple(key for name in _HOOKS for key in own.get(name, ()))


def type_of_value(value: object, expected: t.Type) -> bool:
    """Whether a captured value still has the type that the program was compiled for."""
    if isinstance(expected, t.ClassType):
        return True  # the module itself
    found = t.type_of(value)
    return found is None or t.is_subtype(found, expected)
