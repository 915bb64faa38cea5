"""Collects the methods that the programs of a compiled module call, on its submodules and itself.

In: compiled methods. Out: for each module, names of methods and the types of their arguments.

    self.encoder.encode(x, 2)   →   of(encoder) == {"encode": [(Tensor, int)]}

Invariant: a call with a function among its arguments is left out, since a file holds no functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from lowtide.deploy.fitting import Types
from lowtide.frontend.script.module_state import Callees
from lowtide.ir.types import FunctionType, types_in

Called = Mapping[str, Iterable[Types]]  # methods of one module, and the types of their arguments


@dataclass(slots=True)
class Calls:
    """See the module's text. `count`: grows whenever a new call is noted."""

    count: int = 0
    _known: dict[int, dict[str, list[Types]]] = field(
        default_factory=dict[int, dict[str, list[Types]]]
    )

    def note(self, callees: Callees, places: Mapping[int, int]) -> None:
        """Add the calls of a method. `places`: ids of modules that are replaced by others."""
        for (owner, name), types in callees.items():
            methods = self._known.setdefault(places.get(owner, owner), {})
            self.count += name not in methods
            known = methods.setdefault(name, [])
            new = [t for t in types if t not in known and _is_data(t)]
            known += new
            self.count += len(new)

    def of(self, module: torch.nn.Module) -> Called:
        """Return the methods called on a module, with the types of arguments."""
        return self._known.get(id(module), {})


def _is_data(types: Types) -> bool:
    return not any(isinstance(p, FunctionType) for type_ in types for p in types_in(type_))
