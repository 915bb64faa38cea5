"""A stand-in for the code generator: the reference evaluator of tensor expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.memory.plan import Event, LiveAllocation
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Program
from lowtide.texpr.printer import print_program
from lowtide.texpr.sizes import evaluate as evaluate_size


@dataclass
class Kernel:
    name: str
    ops: list[Any]
    outputs: list[str]
    note: str = ""
    values: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Plan:
    peak_bytes: int
    formula: str
    buffers: list[LiveAllocation] = field(default_factory=list)


class StandIn:
    """Outputs by dense evaluation; one "kernel" for the whole program."""

    def __init__(self, program: Program, symbols: Sequence[str], scalars: Sequence[str]) -> None:
        self.program = program
        self.symbols = symbols
        self.scalars = scalars
        defs = program.defs.values()
        self.kernels = [Kernel("kernel0", [(d.op, d.loc) for d in defs], list(program.outputs))]
        self.stages = [("texpr", print_program(program)), ("c", "/* stand-in */")]
        self.refusals = ()

    def write(self) -> None:
        """There is no text."""

    def __call__(self, tensors: Any, sizes: Any, numbers: Any) -> list[torch.Tensor]:
        found = evaluate(
            self.program,
            dict(zip(self.program.inputs, tensors, strict=True)),
            dict(zip(self.symbols, sizes, strict=True)),
            dict(zip(self.scalars, numbers, strict=True)),
        )
        names = [*self.program.outputs, *self.program.checks]
        return [found[n].detach().clone().contiguous() for n in names]

    def events(self, sizes: Mapping[str, int]) -> list[Event]:
        return [Event(held=h, takes=True) for h in self.memory(sizes).buffers]

    def too_wide(self, sizes: Mapping[str, int]) -> None:
        """It holds as much as it is asked to."""

    def reusable_inputs(self, inputs: object) -> dict[str, str]:
        """It writes over nothing."""
        return {}

    def input_under(self, name: str) -> str:
        """No result lies in an input's memory."""
        return ""

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """There is no model of it."""
        return 0.0

    def memory(self, sizes: Mapping[str, int]) -> Plan:
        buffers: list[LiveAllocation] = []
        for name in self.program.outputs:
            d = self.program.defs[name]
            count = 1
            for s in d.shape:
                count *= evaluate_size(s, sizes)
            nbytes = count * d.dtype.itemsize
            buffers.append(LiveAllocation(name=name, nbytes=nbytes, kind="output", loc=d.loc))
        return Plan(sum(b.nbytes for b in buffers), " + ".join(b.name for b in buffers), buffers)


def compile_program(
    program: Program, *, symbols: Sequence[str], scalars: Sequence[str], hints: Mapping[str, int]
) -> StandIn:
    assert set(hints) == set(symbols)
    return StandIn(program, symbols, scalars)
