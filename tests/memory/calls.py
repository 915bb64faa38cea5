"""A case of the table, compiled: what is predicted of a call, and what the call asks for."""

from __future__ import annotations

from typing import Any

import torch

import lowtide as lt
from tests.memory.cases import Case
from tests.memory.contract import requested_bytes


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for v in value for x in tensors(v)] if isinstance(value, list | tuple) else []


class Call:
    """A case, compiled: `predicted` and `run` are about the same call."""

    def __init__(self, case: Case, grad: bool) -> None:
        torch.manual_seed(0)
        self.grad = grad
        self.compiled: Any = lt.script(case.make())
        self.args = case.inputs()
        self.leaves = [x for x in tensors(list(self.args)) if x.is_floating_point()]
        for x in self.leaves:
            x.requires_grad_(grad)
        if isinstance(self.compiled, torch.nn.Module):
            self.leaves += list(self.compiled.parameters())

    def predicted(self) -> Any:
        with torch.set_grad_enabled(self.grad):
            return self.compiled.memory(*self.args)

    def run(self) -> object:
        with torch.set_grad_enabled(self.grad):
            result = self.compiled(*self.args)
            carrying = [x for x in tensors(result) if x.requires_grad]
            if carrying:
                torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
        return result

    def asked(self) -> int:
        """By the second call: the first compiles, and makes constants."""
        self.run()
        for x in self.leaves:
            x.grad = None
        return requested_bytes(self.run)
