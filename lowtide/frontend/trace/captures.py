"""Tensors from before the traced run: the captured parameters of a Function.

In: the root module's parameters and buffers, by dotted path. Out: one captured value per tensor,
in order of first use; a tensor that the root does not have becomes `_constants.c0`, `.c1`, ….

    self.fc.weight in forward     →  %fc_weight: Tensor @ "fc.weight"
    a tensor from a closure       →  %c0: Tensor @ "_constants.c0"

Invariant: tensors are told apart by identity, so that a shared parameter is one capture, and
the very tensor (not a copy) is what the program reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowtide.ir import types as t
from lowtide.ir.core import Value

CONSTANTS = "_constants"


class Constants:
    """Tensors of the root's `_constants` submodule, shared by all methods of one module."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        self.tensors = list(tensors)
        self._data: list[torch.Tensor] = []
        self._known_count = -1  # of a copy: how many tensors it began with

    def path(self, tensor: torch.Tensor) -> str:
        """Return the path at which the tensor is stored."""
        for k, known in enumerate(self.tensors):
            if known is tensor:
                return f"{CONSTANTS}.c{k}"
        for k, known in enumerate(self.tensors[: max(self._known_count, 0)]):
            if _equal(known, tensor):  # made anew in a way that is not seen, as by from_numpy
                return f"{CONSTANTS}.c{k}"
        self.tensors.append(tensor)
        return f"{CONSTANTS}.c{len(self.tensors) - 1}"

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy that nothing changes; one for all equal tensors."""
        for known in self._data:
            if _equal(known, tensor):
                return known
        with torch.no_grad():
            kept = tensor.detach().clone()
        self._data.append(kept)
        return kept

    def copy(self) -> Constants:
        """Return a copy for another run of the same function, which grows separately."""
        made = Constants(self.tensors)
        made._data = list(self._data)
        made._known_count = len(self.tensors)
        return made


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.is_meta:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


class Captures:
    """The captured values of one Function; `paths` and `values` correspond."""

    def __init__(self, root: torch.nn.Module | None, constants: Constants) -> None:
        self.constants = constants
        self.paths: list[str] = []
        self.values: list[Value] = []
        self.tensors: list[torch.Tensor] = []
        self._named: dict[int, str] = {}
        if root is not None:
            members = (
                *root.named_buffers(remove_duplicate=False),
                *root.named_parameters(remove_duplicate=False),
            )
            self._members = [tensor for _, tensor in members]  # an id is good while it lives
            for path, tensor in reversed(members):
                self._named[id(tensor)] = path

    def is_named(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is a parameter or buffer of the root."""
        return id(tensor) in self._named

    def capture(self, tensor: torch.Tensor) -> Value:
        """Return a new captured value for a tensor that has none yet."""
        path = self._named.get(id(tensor)) or self.constants.path(tensor)
        name = path.removeprefix(f"{CONSTANTS}.").replace(".", "_")
        value = Value(f"m{name}" if name[0].isdigit() else name, t.TENSOR)
        self.paths.append(path)
        self.values.append(value)
        self.tensors.append(tensor)
        return value
