"""Calls a module of an archive from Python; its methods are never run as Python.

In: the module and a method's name. Out: a callable: the compiled method, or for a twin that of the
module of torch.jit.

    call_module(%part, %x)      of a part that is left to Python, for a backward hook of the user's
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.api.script_module import ScriptModule, wrap
from lowtide.frontend.script.module_state import root_of
from lowtide.torch_private import torch_jit


class Calls:
    """See the module's text. `old`: the C++ object of a module of torch.jit."""

    def __init__(self, old: Any = None) -> None:
        self._old = old
        self._made: ScriptModule | None = None

    def __call__(self, module: torch.nn.Module, method: str) -> Any:
        """Return what is called in the place of the module's method."""
        if self._old is not None:
            found: torch.nn.Module = torch_jit.module_of(self._old)
        else:
            if self._made is None or root_of(self._made) is not module:
                self._made = wrap(module)
            found = self._made
        return found if method == "__call__" else getattr(found, method)

    def __deepcopy__(self, memo: object) -> Calls:
        return Calls()
