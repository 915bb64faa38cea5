"""Modules and functions of torch.jit in memory, as modules and functions that Lowtide compiles.

In: what `torch.jit.load`, `torch.jit.script` or `torch.jit.trace` returned. Out: a *twin*: the
nn.Module, or function, that `lt.load` makes of the bytes that `torch.jit.save` writes.

    twin = module_twin(old)             twin.fc.weight is old.fc.weight
    function_twin(torch.jit.script(f))  a function for lt.script

A twin reads and writes the old module's parameters, buffers and mode, whichever of the two changes
them. Other attributes are copies, made at once.
Invariant: a module has one twin. A deep copy of a twin has a state of its own.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import wrap
from lowtide.deploy import archive, storages
from lowtide.deploy.torchscript import load
from lowtide.deploy.torchscript.calls import Calls
from lowtide.diagnostics import faults
from lowtide.errors import CompileError, LoadError
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.module_state import root_of
from lowtide.frontend.script.torch_jit_twins import MODE, TWIN
from lowtide.frontend.torchscript.functions import without_module
from lowtide.ir.object_ops import CALLS
from lowtide.memory import watching
from lowtide.torch_private import torch_jit

_REMEDY: Final = "lt.script of the nn.Module that it was made of"
_lock = threading.RLock()
_twins: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()


def module_twin(given: Any) -> torch.nn.Module:
    """Return the twin of a module of torch.jit. Raises CompileError if there is none."""
    old: Any = _behind(given)
    if not old._c._has_method("forward") and old is not given:
        raise CompileError(f"{type(given).__name__}.forward is not compiled by torch.jit")
    with _lock, watching.aside():
        own = cast("dict[str, Any]", vars(old))
        found = own.get(TWIN)
        if found is None:
            found = own[TWIN] = _twins.get(hash(old._c)) or _made(old)
    if isinstance(found, CompileError):
        raise found
    return found


def _behind(given: Any) -> Any:
    """Return the module that has the C++ object, for one of a class of the user's or of a trace."""
    return cast("dict[str, Any]", vars(given)).get("_actual_script_module", given)


def _made(old: Any) -> torch.nn.Module | CompileError:
    shown = f"the torch.jit module {old.original_name}"
    try:
        twin = root_of(_loaded(old, shown)[0])
    except (LoadError, CompileError) as error:
        return CompileError(f"{shown} is not compiled: {error}", remedy=_REMEDY)
    except Exception as error:
        fault = faults.survive(error, f"{shown} in compiled code")
        return CompileError(fault, remedy=_REMEDY)
    for module, inner in _pairs(twin, old, set()):
        _tie(module, inner)
        _twins[hash(inner._c)] = module  # which has the C++ object, so that its address stays taken
    return twin


def _loaded(old: Any, shown: str) -> tuple[Any, Any]:
    """Return the module of what torch.jit would save, and the archive's code. Raises LoadError."""
    try:
        raw: bytes = old.save_to_buffer()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoadError(f"torch.jit does not save it: {reason}") from error
    with archive.open_archive(raw) as opened:
        return load.load(opened, storages.placing(None), shown)


def _pairs(
    twin: torch.nn.Module, old: Any, seen: set[int]
) -> Iterator[tuple[torch.nn.Module, Any]]:
    """Yield each module of the twin, with the old one."""
    old = _behind(old)
    if id(twin) in seen:
        return
    seen.add(id(twin))
    yield twin, old
    held: dict[str, Any] = dict(old._modules.items())
    for name, inner in vars(twin)["_modules"].items():
        if inner is not None and held.get(name) is not None:
            yield from _pairs(inner, held[name], seen)


def _tie(module: torch.nn.Module, old: Any) -> None:
    own = vars(module)
    for held in ("_parameters", "_buffers"):
        own[held] = _Tied(own[held], old._c)
    for parameter in own["_parameters"].values():
        if parameter is not None and not isinstance(parameter, torch.nn.Parameter):
            parameter._is_param = True  # torch.jit.load makes plain tensors
    own[MODE] = _Mode(old._c)
    own[CALLS] = Calls(old._c)
    cast("Any", type(module)).training = _training  # a class of this twin alone


class _Mode:
    """The old module, of whose mode the twin's is."""

    def __init__(self, c: Any) -> None:
        self.c = c

    def __deepcopy__(self, memo: object) -> _Mode:
        return _Mode(None)


def _read_mode(module: torch.nn.Module) -> bool:
    own = vars(module)
    mode: _Mode | None = own.get(MODE)
    if mode is not None and mode.c is not None:
        own["training"] = bool(mode.c.getattr("training"))
    return own["training"]


def _write_mode(module: torch.nn.Module, value: bool) -> None:
    own = vars(module)
    own["training"] = value
    mode: _Mode | None = own.get(MODE)
    if mode is not None and mode.c is not None:
        mode.c.setattr("training", value)


_training: Final = property(_read_mode, _write_mode)


_mapping: Any = MutableMapping  # its methods use those below, and not the memory of the dict


class _Tied(dict[str, Any]):
    """Parameters or buffers whose values are in the old module; others are its own."""

    keys, values, items, get = _mapping.keys, _mapping.values, _mapping.items, _mapping.get
    pop, popitem, clear = _mapping.pop, _mapping.popitem, _mapping.clear
    update, setdefault = _mapping.update, _mapping.setdefault

    def __init__(self, held: dict[str, Any], c: Any) -> None:
        self._c = c
        self._old = {k for k, v in held.items() if v is not None and c.hasattr(k)}
        for name, value in held.items():
            super().__setitem__(name, None if name in self._old else value)

    def __getitem__(self, name: str) -> Any:
        return self._c.getattr(name) if name in self._old else super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._old:
            self._c.setattr(name, value)
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._old.discard(name)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the present values."""
        return {name: self[name] for name in self}

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)


def function_twin(old: Any) -> FunctionType:
    """Return the function behind a `torch.jit.ScriptFunction`. Raises CompileError."""
    with _lock, watching.aside():
        own = cast("dict[str, FunctionType]", vars(old))
        if TWIN not in own:
            own[TWIN] = _made_function(old)
    return own[TWIN]


def _made_function(old: Any) -> FunctionType:
    shown = f"the torch.jit function {old.name}"
    try:
        module, _ = _loaded(old, shown)
    except LoadError as error:
        raise CompileError(
            f"{shown} is not compiled: {error}", remedy="lt.script of the Python function"
        ) from error
    method = cast("Any", type(root_of(module))).forward
    rows = old.schema.arguments
    defaults = [a.default_value for a in rows if a.has_default_value()]
    return without_module(method, old.name, tuple(defaults))


def compiled(called: Any, known: dict[Any, Any]) -> Any:
    """See `frontend.script.torch_jit_twins.compiled`."""
    if torch_jit_twins.is_function(called):
        return ScriptFunction(function_twin(called))
    owner = called.owner
    if owner not in known:
        known[owner] = wrap(module_twin(torch_jit.module_of(owner)))
    return getattr(known[owner], called.name)


__all__ = ["compiled", "function_twin", "module_twin"]
