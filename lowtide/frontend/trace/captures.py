"""Tensors that were there before the traced run: the captured parameters of a Function.

In: the root module's parameters and buffers, by dotted path. Out: one captured value per tensor,
in order of first use; a tensor that the root does not have becomes `_constants.c0`, `.c1`, ….

    self.fc.weight in forward     →  %fc_weight: Tensor @ "fc.weight"
    a tensor from a closure       →  %c0: Tensor @ "_constants.c0"

Always holds: tensors are told apart by identity, so that a shared parameter is one capture, and
the very tensor (not a copy) is what the program reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lowtide.ir import types as t
from lowtide.ir.core import Value

CONSTANTS = "_constants"


@dataclass(slots=True)
class Constants:
    """Tensors of the root's `_constants` submodule, shared by all methods of one module."""

    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def path(self, tensor: torch.Tensor) -> str:
        """Where the tensor is kept."""
        for k, known in enumerate(self.tensors):
            if known is tensor:
                return f"{CONSTANTS}.c{k}"
        self.tensors.append(tensor)
        return f"{CONSTANTS}.c{len(self.tensors) - 1}"


class Captures:
    """The captured values of one Function; `paths` and `values` go together."""

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
        """Whether the tensor is a parameter or buffer of the root."""
        return id(tensor) in self._named

    def capture(self, tensor: torch.Tensor) -> Value:
        """A new captured value for a tensor that has none yet."""
        path = self._named.get(id(tensor)) or self.constants.path(tensor)
        name = path.removeprefix(f"{CONSTANTS}.").replace(".", "_")
        value = Value(f"m{name}" if name[0].isdigit() else name, t.TENSOR)
        self.paths.append(path)
        self.values.append(value)
        self.tensors.append(tensor)
        return value
