"""The kernels of one step, launched for all steps of a loop.

In:  a `Loop`, its step compiled, the tensors that it reads, sizes and numbers.
Out: the values of the steps: a stack of all of them, or of two slots that take turns.

    h'[t] = h[t - 1]      the slot of h' is h0 at the first step, later the row of h before
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lowtide.codegen.c.kernel import BEGUN
from lowtide.codegen.executable import Executable
from lowtide.runtime import arena, launch
from lowtide.runtime.steps import Launch, Moving, run_steps
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.partition import Loop
from lowtide.texpr.sizes import evaluate

SLOTS = 2  # the step before, and this one


def slots(loop: Loop, name: str) -> Index:
    """Of how many steps a value is kept."""
    return loop.trips if name in loop.kept else as_index(SLOTS)


def run_loop(
    loop: Loop,
    step: Executable,
    values: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    numbers: Sequence[float],
) -> dict[str, Tensor]:
    """Runs all steps: what later parts read of them. `values`: what it reads, by name."""
    run = _Run(loop, step, values, sizes, numbers)
    launches = [run.launch(name, kernel) for name, kernel in step.bound().items()]
    run_steps(launches, run.trips, loop.reverse)
    found = {n: stack for n, stack in run.stacks.items() if n in loop.kept} | run.blocks
    last = 0 if loop.reverse else run.trips - 1
    for name, end in loop.ends.items():
        stack = run.stacks[name]
        found[end] = stack[last % len(stack)]
    return found


class _Run:
    """The slots of one run. All tensors are kept until it is over."""

    def __init__(
        self,
        loop: Loop,
        step: Executable,
        values: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        numbers: Sequence[float],
    ) -> None:
        self.loop = loop
        self.step = step
        self.values = dict(values)
        self.trips = evaluate(loop.trips, sizes)
        self.first = self.trips - 1 if loop.reverse else 0
        self.sizes = {**sizes, loop.step: self.first}
        self.numbers = dict(zip(step.scalars, numbers, strict=True))
        self.blocks = {n: self._stack(p[0], len(p)) for n, p in loop.blocks.items()}
        self.stacks: dict[str, Tensor] = {}
        for name, parts in loop.blocks.items():
            self.stacks.update(zip(parts, self.blocks[name], strict=True))
        for name in loop.program.outputs:
            if name not in self.stacks:
                self.stacks[name] = self._stack(name)
        for plan in step.plans:
            for name in plan.outputs:
                if name not in self.stacks:
                    self.values[name] = self._tensor(name, ())
        self.threads = torch.get_num_threads()
        self.work = self._work()

    def _work(self) -> dict[str, arena.Scratch]:
        """Work memory by kernel: its own if it is to find there what an earlier step left."""
        bytes_of = {t.name: evaluate(t.thread_bytes, self.sizes) for t in self.step.texts}
        own = {p.name for p in self.step.plans if p.prologue}
        shared = arena.scratch(
            self.threads * max((bytes_of[n] for n in bytes_of.keys() - own), default=0)
        )
        return {
            n: arena.scratch(self.threads * bytes_of[n]) if n in own else shared for n in bytes_of
        }

    def _stack(self, name: str, *parts: int) -> Tensor:
        return self._tensor(name, (*parts, evaluate(slots(self.loop, name), self.sizes)))

    def _tensor(self, name: str, front: tuple[int, ...]) -> Tensor:
        d = self.step.shaped[name]
        shape = (*front, *(evaluate(size, self.sizes) for size in d.shape))
        return arena.empty(shape, d.dtype.torch)

    def launch(self, name: str, kernel: launch.Kernel) -> Launch:
        text = next(t for t in self.step.texts if t.name == name)
        own = [
            *map(self._pointer, text.tensors),
            *map(self._size, text.sizes),
            *(self.numbers[n] for n in text.numbers),
        ]
        head = (launch.parallel_for_address(), self.threads, self.work[name].address)
        return Launch(function=kernel.function, layout=kernel.layout, slots=(*head, *own))

    def _pointer(self, name: str) -> int | Moving:
        if name in self.loop.carried:
            source, init = self.loop.carried[name]
            self.values[init] = self.values[init].contiguous()
            behind = 1 if self.loop.reverse else -1
            return self._row(source, behind, self.values[init].data_ptr())
        if name in self.stacks:
            stack = self.stacks[name]
            return self._row(name, 0, stack[self.first % len(stack)].data_ptr())
        return self.values[name].data_ptr()

    def _row(self, name: str, shift: int, first: int) -> Moving:
        stack = self.stacks[name]
        stride = stack.stride(0) * stack.element_size()
        return Moving(
            first=first, base=stack.data_ptr(), stride=stride, shift=shift, rows=len(stack)
        )

    def _size(self, name: str) -> int | Moving:
        if name == BEGUN:
            return Moving(first=0, base=1, stride=0, shift=0, rows=1)
        if name != self.loop.step:
            return self.sizes[name]
        return Moving(first=self.first, base=0, stride=1, shift=0, rows=max(self.trips, 1))
