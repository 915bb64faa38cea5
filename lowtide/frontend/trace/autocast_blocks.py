"""Puts what a traced run did under `torch.autocast` into blocks.

In: the recorded ops, and the state of autocast when each of them ran. Out: the same ops. Those
that ran in another state than that of the run's start are in a `with` block.

    %0: Tensor = torch.matmul(%x, %w)            %2: Any = call_torch("cpu", bfloat16, True, True)
    %1: Tensor = torch.add(%0, %x)        →      %3: Tensor = with(%2) {
    return(%1)                                     %0: Tensor = torch.matmul(%x, %w)
                                                   yield(%0)
                                                 }
                                                 %1: Tensor = torch.add(%3, %x)

Ops that ran in the state of the start get the state in which the program is called.
"""

from __future__ import annotations

import itertools
from typing import Final

import torch

from lowtide.ir import types as t
from lowtide.ir.builder import Builder
from lowtide.ir.core import Block, Op, Value, walk

_DEVICES: Final = ("cpu", "cuda")
_OPTIONS: Final = ("dtype", "enabled", "cache_enabled")

# by device: whether it is on, the lower dtype, whether casts are kept
_State = dict[str, tuple[bool, torch.dtype, bool]]


class AutocastBlocks:
    """The states of autocast during a run."""

    def __init__(self) -> None:
        self._start = _state()
        self._noted = [(0, self._start)]  # the number of ops when the state began

    def note(self, block: Block) -> None:
        """Note the state for the ops that are appended to the block from here on."""
        state = _state()
        if state != self._noted[-1][1]:
            self._noted.append((len(block.ops), state))

    def put_into(self, block: Block) -> None:
        """Move the block's ops into `with` blocks."""
        if len(self._noted) == 1:
            return
        ops, block.ops = block.ops, []
        uses = ((v, at) for at, op in enumerate(ops) for inner in _all(op) for v in inner.operands)
        last_use = dict(uses)
        renamed: dict[Value, Value] = {}
        ends = [(len(ops), self._start)]
        for (begin, state), (end, _) in itertools.pairwise(self._noted + ends):
            part = ops[begin:end]
            for op in part:
                for inner in _all(op):
                    inner.operands = [renamed.get(v, v) for v in inner.operands]
            block.ops += [op for op in part if op.name == "const"]
            part = [op for op in part if op.name != "const"]
            given = [v for op in part for v in op.results if last_use.get(v, 0) >= end]
            devices = [d for d in _DEVICES if state[d] != self._start[d]]
            if devices and part:
                found = _with_blocks(block, devices, state, part, given)
                renamed.update(zip(given, found, strict=True))
            else:
                block.ops += part


def _with_blocks(
    block: Block, devices: list[str], state: _State, ops: list[Op], given: list[Value]
) -> list[Value]:
    """Append the ops, in a `with` block for each device; return what `given` is outside."""
    builder = Builder(block)
    builder.loc = ops[0].loc
    device, *others = devices
    enabled, dtype, keeps = state[device]
    operands = [builder.const(x) for x in (device, dtype, enabled, keeps)]
    made = builder.emit("call_torch", operands, [t.ANY], target="torch.autocast", kwnames=_OPTIONS)
    body = Block([Value("", t.ANY)], [] if others else ops)
    with builder.inside(body):
        inside = _with_blocks(body, others, state, ops, given) if others else given
        builder.emit("yield", inside)
    return builder.emit("with", [made.result], [v.type for v in given], blocks=[body]).results


def _all(op: Op) -> list[Op]:
    """Return the op, and those in its blocks."""
    return [op, *(inner for block in op.blocks for inner in walk(block))]


def _state() -> _State:
    keeps = torch.is_autocast_cache_enabled()
    on = {d: torch.is_autocast_enabled(d) for d in _DEVICES}
    return {d: (on[d], torch.get_autocast_dtype(d), on[d] and keeps) for d in _DEVICES}
