"""Ops on modules and objects during a dry run: their results, without changing the objects.

In: an op and its operands. Out: its results, or None if only the real run knows them.

    attr.set(%m, %h) {name="h"}     recorded here; the next attr.get returns %h
    object.new()                    a new object, whose attributes are recorded here
    call_module(%rnn, %x)           run on a copy of the module on the meta device
    py.call(%m, %x)                 not run: it may have any side effect
    iter.of(%xs)                    not run if it takes elements from the caller's iterator
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.ir import object_ops, python_objects
from lowtide.ir.core import Op, Value
from lowtide.torch_private.dispatch import OverloadPacket
from lowtide.torch_private.pytree import leaves

OBJECT_OPS: Final = tuple(object_ops.RUN)
_RUNS_OVER: Final = ("iter.of", "py.iter", "iter.whole", "list.of", "set.of", "py.tuple")
_NAMESPACES: Final = ("aten", "prims")
PURE_OPS: Final = ("enum.const", "enum.get", "py.isinstance")  # run as usual


def is_pytorchs(op: Op, env: Mapping[Value, Any]) -> bool:
    """Return whether the op is a tensor's method on a value of unknown type, or a PyTorch operator
    by name that writes into no argument."""
    if op.name == "py.call_method":
        is_tensor = type(env[op.operands[0]]) is torch.Tensor
        return is_tensor and hasattr(torch.Tensor, str(op.attrs["name"]))
    if op.name != "py.call":
        return False
    called = python_objects.find(str(op.attrs["target"]))
    found = [getattr(called, name) for name in _overloads(called)] or [called]
    schemas = [getattr(x, "_schema", None) for x in found]
    is_ours = getattr(found[0], "namespace", "") in _NAMESPACES
    return is_ours and all(x is not None and not x.is_mutable for x in schemas)


def draws(op: Op, env: Mapping[Value, Any]) -> bool:
    """Return whether the op may take elements from an iterator, or runs over an object by Python
    code."""
    values = [env[v] for v in op.operands]
    if op.name in _RUNS_OVER and not isinstance(values[0], torch.Tensor):
        cls = cast("type[Any]", type(values[0]))
        if isinstance(getattr(cls, "__iter__", None), FunctionType):
            return True
    return any(isinstance(v, Iterator) for v in values)


def _overloads(called: Any) -> list[str]:
    is_packet = isinstance(called, OverloadPacket)
    return called.overloads() if is_packet else []


class SimulatedObjects:
    """The attributes that a dry run has assigned, and its copies of modules."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._paused = paused  # a context whose allocations do not count
        self._assigned: dict[tuple[int, str], Any] = {}
        self._copies: dict[int, torch.nn.Module] = {}
        self._made: list[Any] = []  # new objects, identified by id

    def run(self, op: Op, env: dict[Value, Any]) -> list[Any] | None:
        """Return the results of the op; see the module's text."""
        if op.name == "object.new":
            self._made.append(object_ops.RUN[op.name](op, env)[0])
            return [self._made[-1]]
        if op.name not in ("attr.get", "attr.set", "call_module"):
            return None
        module, *values = (env[v] for v in op.operands)
        if op.name == "call_module":
            return self._call(op, module, values)
        key = (id(module), str(op.attrs["name"]))
        if op.name == "attr.set":
            self._assigned[key] = values[0]
            return []
        if key in self._assigned:
            return [self._assigned[key]]
        return [getattr(module, key[1])] if hasattr(module, key[1]) else None

    def tensors_in(self, value: object) -> list[torch.Tensor]:
        """Return the tensors in a value, including those in objects of the dry run."""
        found: list[torch.Tensor] = []
        for x in leaves(value):
            if isinstance(x, torch.Tensor):
                found.append(x)
            elif any(x is made for made in self._made):
                mine = [v for (owner, _), v in self._assigned.items() if owner == id(x)]
                found += self.tensors_in(mine)
        return found

    def _call(self, op: Op, module: torch.nn.Module, values: list[Any]) -> list[Any] | None:
        try:
            made = self._copies.get(id(module))
            if made is None:
                with self._paused():
                    made = self._copies[id(module)] = copy.deepcopy(module).to("meta")
            first, *rest = op.operands
            return object_ops.RUN[op.name](
                op, {first: made, **dict(zip(rest, values, strict=True))}
            )
        except Exception:  # a module may raise anything on meta tensors
            return None
