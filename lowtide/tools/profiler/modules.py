"""Names of modules.

In: a module that is called inside another. Out: its dotted path.

    paths.path("Net", net.encoder[0])      "Net.encoder.0"
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch


class ModulePaths:
    """The dotted names of modules, relative to the outermost one that is called."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._names: dict[int, str] = {}  # of all modules below the outermost

    def path(self, caller: str, module: torch.nn.Module) -> str:
        """Return the name of `module`. `caller`: the name of the calling module, "" if none."""
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
