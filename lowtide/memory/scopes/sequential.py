"""An `nn.Sequential` that disposes each layer's input as soon as the layer has used it.

In: layers. Out: a module with the same parameters, names and results.

    model = lt.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 10))
    y = model(x)                # x is the caller's; what was made between x and y is disposed

Invariant: only tensors that were made during the call are disposed, and never the result. Tensors
that autograd saved stay until the backward pass. A forward hook that stores a tensor should store
`lt.alias(t)`, detached from its scope.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lowtide.memory.scopes.functions import dispose
from lowtide.memory.scopes.scope import DisposeScope
from lowtide.memory.scopes.tensor_trees import tensors_in

_jit: Any = torch.jit
_plain_forward: Any = getattr(nn.Sequential, "forward")  # noqa: B009 - it is half typed


class Sequential(nn.Sequential):
    """`nn.Sequential` that disposes the tensors between its layers."""

    # Layers may pass on any value. `Tensor` is for TorchScript, whose layers refuse `Any`.
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the last layer's result; the surrounding dispose scope owns it, if there is
        one."""
        if _jit.is_scripting():  # the only branch that compilers of source code read
            for layer in self:
                input = layer(input)
            return input
        if torch.compiler.is_compiling() or _jit.is_tracing():
            return _plain_forward(self, input)
        return _forward_in_scope(self, input)


def _forward_in_scope(layers: nn.Sequential, value: Any) -> Any:
    with DisposeScope() as scope:
        for layer in layers:
            output = layer(value)
            needed = {id(tensor) for tensor in tensors_in(output)}
            _let_go(scope, value, needed)
            value = output
        for tensor in tensors_in(value):
            scope.move_to_outer(tensor)
        return value


def _let_go(scope: DisposeScope, value: Any, needed: set[int]) -> None:
    for tensor in tensors_in(value):
        if id(tensor) not in needed and scope.contains(tensor):
            dispose(tensor)
