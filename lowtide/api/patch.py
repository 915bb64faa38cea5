"""`lt.patch_torch_jit()`: puts Lowtide's names into torch.jit, for packages that one cannot edit.

In: nothing. Out: a `Patch`; `undo()` or the end of a `with` block restores torch.jit.

    with lt.patch_torch_jit():
        import package              # its @torch.jit.script is lt.script
    LOWTIDE_PATCH_TORCH_JIT=1       the same for a whole process, at `import lowtide`

Invariant: PyTorch's own modules, and Lowtide's, still see PyTorch's torch.jit, so that their
decorators and isinstance tests work. Names that Lowtide does not have, such as `_overload`, stay
PyTorch's.
"""

from __future__ import annotations

import importlib
import threading
import types
from typing import Any, Final, cast

import torch
import torch.jit

from lowtide.cpython import frame_at

NAMES: Final = (
    "script", "trace", "trace_module", "ScriptModule", "ScriptFunction", "RecursiveScriptModule",
    "TracedModule", "TopLevelTracedModule", "TracerWarning", "script_method", "export", "ignore",
    "unused", "is_scripting", "is_tracing", "annotate", "isinstance", "Attribute", "Final",
    "interface", "fork", "wait", "Future", "freeze", "optimize_for_inference", "save", "load",
    "script_if_tracing", "CompilationUnit",
)  # fmt: skip
_SEE_PYTORCHS: Final = ("torch", "functorch", "lowtide")  # packages
_OTHER_NAMES: Final = {
    "TopLevelTracedModule": "TracedModule",
}


def lowtide_name(name: str) -> Any:
    """Return Lowtide's object for torch.jit's name. Raises AttributeError if it has none."""
    return getattr(importlib.import_module("lowtide"), _OTHER_NAMES.get(name, name))


def _is_pytorchs_reader() -> bool:
    caller = frame_at(2)
    package = str(caller.f_globals.get("__name__", "")).partition(".")[0]
    return package in _SEE_PYTORCHS


def _property(name: str) -> property:
    """Return a property: Lowtide's object, PyTorch's own for PyTorch's code, or an assigned one."""
    assigned: list[Any] = []

    def read(module: types.ModuleType) -> Any:
        if assigned:
            return assigned[-1]
        if not _is_pytorchs_reader():
            try:
                return lowtide_name(name)
            except AttributeError:
                pass  # torch.jit's own
        return vars(module)[name]

    def write(module: types.ModuleType, value: object) -> None:
        assigned[:] = [] if value is _replacement(name) else [value]

    def delete(module: types.ModuleType) -> None:
        assigned.clear()

    return property(read, write, delete)


def _replacement(name: str) -> Any:
    try:
        return lowtide_name(name)
    except AttributeError:
        return None


_lock = threading.Lock()
_depth = 0


class Patch:
    """A patch in force; see the module's text. Patches nest."""

    def __init__(self) -> None:
        self._on = True
        _count(+1)

    def undo(self) -> None:
        """Restore torch.jit's names; a second call does nothing."""
        if self._on:
            self._on = False
            _count(-1)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def patch_torch_jit() -> Patch:
    """Put Lowtide's names into torch.jit until `undo()`, or until the end of the `with` block."""
    return Patch()


def _count(step: int) -> None:
    global _depth
    with _lock:
        _depth += step
        if _depth == 1 and step == 1:
            there = vars(torch.jit)
            members = {name: _property(name) for name in NAMES if name in there}
            kind = cast("type[types.ModuleType]", type("PatchedJit", (types.ModuleType,), members))
            _set_class(kind)
        elif _depth == 0:
            _set_class(types.ModuleType)


def _set_class(kind: type[types.ModuleType]) -> None:
    module: Any = torch.jit
    module.__class__ = kind
