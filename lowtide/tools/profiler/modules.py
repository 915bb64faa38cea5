"""Names of modules: in: a module that is called inside another. Out: its dotted path."""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch


class ModulePaths:
    """The dotted names of modules below the outermost one that was called: `Net.encoder.0`."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._names: dict[int, str] = {}  # of all modules below the outermost

    def path(self, caller: str, module: torch.nn.Module) -> str:
        """The name of `module`, called inside the one named `caller`, "" if inside none."""
        key = (caller, id(module))
        known = self._known.get(key)
        if known is not None and known[0]() is module:
            return known[1]
        kind = type(module).__name__
        if not caller:
            below: Any = list(cast("Any", module).named_modules())
            self._names = {id(one): f"{kind}.{name}" if name else kind for name, one in below}
        found = self._names.get(id(module)) or f"{caller}.{kind}"
        self._known[key] = (weakref.ref(module), found)
        return found
