"""Launches all steps of a loop on a GPU: one after another, by a CUDA graph, or in one launch.

In:  the launches of a step (`BlockLaunch`), and the tensors that the slots point into.
Out: nothing; the steps have been launched.

    one kernel per step, no program reads another's stores       one launch of `looped`
    the same loop was launched before                            a CUDA graph of all steps
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lowtide.codegen.index_text import size_names
from lowtide.codegen.triton.kernel import BlockText
from lowtide.codegen.triton.looped import Looped
from lowtide.runtime.block_kernels import BlockKernel, Form, is_wide, power, precision
from lowtide.runtime.graphs import Graphs
from lowtide.runtime.steps import Launch, Moving, Slot, Steps
from lowtide.texpr.sizes import evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLaunch:
    """One launch of a kernel. The slots hold the addresses of the text's tensors, its sizes and its
    numbers. `sizes`: all sizes in the first step. `itemsizes`: bytes of tensors' elements.
    `all_steps`: the kernel of `looped`."""

    kernel: BlockKernel
    text: BlockText
    sizes: Mapping[str, int]
    itemsizes: Mapping[str, int]
    looped: Looped | None
    all_steps: BlockKernel | None


def run_blocks(
    steps: Steps, device: torch.device, tensors: Sequence[torch.Tensor], graphs: Graphs | None
) -> None:
    """Launch the kernels of all steps, inner loops included. `tensors`: those that the slots point
    into. `graphs`: CUDA graphs of earlier launches; None: do not use any."""
    runner = _Runner(device, tensors)
    if graphs is None:
        runner.loop(steps)
    elif not runner.is_at_once(steps):
        key = (device, precision(), tuple(runner.nbytes), _key(steps))
        graphs.launch(key, device, _count(steps), lambda: runner.each(steps))


def _key(steps: Steps) -> Hashable:
    """Return all that the launches depend on."""
    made = (_key(x) if isinstance(x, Steps) else _launch_key(x) for x in steps.launches)
    return (steps.trips, steps.reverse, steps.level, *made)


def _launch_key(launch: Launch) -> Hashable:
    made: BlockLaunch = launch.function
    numbers = (struct.pack("d", x) if isinstance(x, float) else x for x in launch.slots)
    return (made.kernel, frozenset(made.sizes.items()), *numbers)  # 0.0 is not -0.0


def _count(steps: Steps) -> int:
    """Return the number of launches, if no loop runs in one launch."""
    return steps.trips * sum(_count(x) if isinstance(x, Steps) else 1 for x in steps.launches)


class _Runner:
    def __init__(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> None:
        self.device = device
        self.nbytes = [t.untyped_storage().nbytes() for t in tensors]
        self.now: dict[int, tuple[int, int]] = {}  # by level: the step, and how many ran before
        self.prepared: dict[int, _Prepared] = {}  # by id of a launch, which `Steps` keeps alive

    def loop(self, steps: Steps) -> None:
        if not self.is_at_once(steps):
            self.each(steps)

    def each(self, steps: Steps) -> None:
        """Launch one step after another."""
        for k in range(steps.trips):
            self.now[steps.level] = steps.trips - 1 - k if steps.reverse else k, k
            for launch in steps.launches:
                if isinstance(launch, Steps):
                    self.loop(launch)
                else:
                    self.launch(launch)

    def is_at_once(self, steps: Steps) -> bool:
        """Launch all steps at once, if that is possible; return whether it was."""
        only = steps.launches[0]
        if len(steps.launches) != 1 or isinstance(only, Steps) or steps.trips == 0:
            return False
        made = self.made(only)
        if not made.may_run_at_once(steps.level):
            return False
        begin, by = (steps.trips - 1, -1) if steps.reverse else (0, 1)
        made.launch_at_once(steps.level, self.value, (steps.trips, begin, by))
        return True

    def made(self, launch: Launch) -> _Prepared:
        """Return a launch with what all steps have in common."""
        found = self.prepared.get(id(launch))
        if found is None:
            found = self.prepared[id(launch)] = _Prepared(launch, self.nbytes, self.device)
        return found

    def launch(self, launch: Launch) -> None:
        self.made(launch).launch([self.value(x) for x in launch.slots])

    def value(self, slot: float | Slot) -> float:
        """Return the value of a slot in this step."""
        if not isinstance(slot, Moving):
            return slot
        t, k = self.now[slot.level]
        if k == 0:
            return self.value(slot.first)
        return self.value(slot.base) + slot.stride * ((t + slot.shift) % slot.rows)


class _Prepared:
    """A launch with what all steps have in common: its form and number of programs, unless they
    depend on a size that moves. `nbytes`: sizes of the tensors that slots may point into."""

    def __init__(self, launch: Launch, nbytes: Sequence[int], device: torch.device) -> None:
        made: BlockLaunch = launch.function
        self.kernel, self.text, self.device = made.kernel, made.text, device
        self.looped, self.all_steps, self.slots = made.looped, made.all_steps, launch.slots
        self.itemsizes = made.itemsizes
        slots = dict(zip(self.text.sizes, launch.slots[len(self.text.tensors) :], strict=False))
        most = {**made.sizes, **{n: int(_greatest(x)) for n, x in slots.items()}}
        reach = max((evaluate(n, most) for n in self.text.reach), default=0)
        self.wide = is_wide(reach, (most[n] for n in slots), nbytes)
        self.like = [_common(x) for x in launch.slots]
        moving = {n for n, x in slots.items() if isinstance(x, Moving)}
        fixed = (self.text.programs, *self.text.widths.values())
        self.is_steady = moving.isdisjoint(n for index in fixed for n in size_names(index))
        self.sizes = made.sizes
        self.known = self._found({})

    def launch(self, values: Sequence[float]) -> None:
        """Launch one step. `values`: of the slots."""
        programs, form = self.known
        if not self.is_steady:
            rest = map(int, values[len(self.text.tensors) :])
            programs, form = self._found(dict(zip(self.text.sizes, rest, strict=False)))
        self.kernel.launch(programs, form, values)

    def may_run_at_once(self, level: int) -> bool:
        """Return whether no program reads what another program wrote in an earlier step of this
        loop."""
        if self.looped is None:
            return False
        if self.known[0] <= 1:
            return True
        slots = dict(zip(self.text.tensors, self.slots, strict=False))
        stacks = {n: x for n, x in slots.items() if isinstance(x, Moving) and x.level == level}
        written = [n for n in self.text.outputs if n in stacks]
        return len(written) == len(self.text.outputs) and all(
            (read, made) in self.text.own
            for read, x in stacks.items()
            for made in written
            if read not in self.text.outputs and x.base == stacks[made].base
        )

    def launch_at_once(
        self, level: int, value: Callable[[float | Slot], float], counts: tuple[int, int, int]
    ) -> None:
        """Launch all steps of the loop. `value`: gives a slot's value in the loops around it.
        `counts`: trips, first step, step size."""
        assert self.looped is not None
        assert self.all_steps is not None
        names = [*self.text.tensors, *self.text.sizes]
        slots = dict(zip(names, self.slots, strict=False))
        origins: list[float] = []
        moves: dict[str, tuple[float, ...]] = {}
        for name, x in slots.items():
            if isinstance(x, Moving) and x.level == level:
                stride = x.stride // self.itemsizes.get(name, 1)
                origins.append(value(x.base))
                moves[name] = value(x.first), stride, x.shift, x.rows
            else:
                origins.append(value(x))
                moves[name] = value(x), 0, 0, 1
        numbers = self.slots[len(names) :]
        moved = (f for n in (*self.looped.tensors, *self.looped.sizes) for f in moves[n])
        values = [*origins, *numbers, *moved, *counts]
        programs, known = self.known
        form = self.all_steps.form(self.device, self.wide, values, known.widths)
        self.all_steps.launch(programs, form, values)

    def _found(self, moved: Mapping[str, int]) -> tuple[int, Form]:
        sizes = {**self.sizes, **moved}
        widths = tuple(power(evaluate(n, sizes)) for n in self.text.widths.values())
        form = self.kernel.form(self.device, self.wide, self.like, widths)
        return evaluate(self.text.programs, sizes), form


def _common(slot: float | Slot) -> float:
    """Return a number that divides a slot's value in each step."""
    if not isinstance(slot, Moving):
        return slot
    return math.gcd(int(_common(slot.first)), int(_common(slot.base)), slot.stride)


def _greatest(slot: float | Slot) -> float:
    """Return an upper bound of a slot's value over all steps."""
    if not isinstance(slot, Moving):
        return slot
    return max(_greatest(slot.first), _greatest(slot.base) + slot.stride * (slot.rows - 1))
