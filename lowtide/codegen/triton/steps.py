"""Launches all steps of a program of blocks one after another, or at once (`looped`).

In: the launches of a step (`BlockLaunch`), the tensors in whose memory their slots lie.
Out: nothing; the steps have been launched.
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
    """What the slots of a launch are for: the text's tensors, of which they hold addresses, sizes
    and numbers. `sizes`: those that no step changes, too; `itemsizes`: bytes of tensors' elements;
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
    """Launches the kernels of all steps, those of loops within steps among them; by one of
    `graphs` where they were launched before. `tensors`: in whose memory their slots lie."""
    runner = _Runner(device, tensors)
    if graphs is None:
        runner.loop(steps)
    elif not runner.is_at_once(steps):
        said = (device, precision(), tuple(runner.nbytes), _key(steps))
        graphs.launch(said, device, _count(steps), lambda: runner.each(steps))


def _key(steps: Steps) -> Hashable:
    """All that decides what is launched."""
    made = (_key(x) if isinstance(x, Steps) else _launch_key(x) for x in steps.launches)
    return (steps.trips, steps.reverse, steps.level, *made)


def _launch_key(launch: Launch) -> Hashable:
    made: BlockLaunch = launch.function
    numbers = (struct.pack("d", x) if isinstance(x, float) else x for x in launch.slots)
    return (made.kernel, frozenset(made.sizes.items()), *numbers)  # 0.0 is not -0.0


def _count(steps: Steps) -> int:
    """How many launches there are at most."""
    return steps.trips * sum(_count(x) if isinstance(x, Steps) else 1 for x in steps.launches)


class _Runner:
    def __init__(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> None:
        self.device = device
        self.nbytes = [t.untyped_storage().nbytes() for t in tensors]
        self.now: dict[int, tuple[int, int]] = {}  # by level: which step it is, the k-th that runs
        self.prepared: dict[int, _Prepared] = {}  # by id of a launch, which `Steps` keep alive

    def loop(self, steps: Steps) -> None:
        if not self.is_at_once(steps):
            self.each(steps)

    def each(self, steps: Steps) -> None:
        """One step after another."""
        for k in range(steps.trips):
            self.now[steps.level] = steps.trips - 1 - k if steps.reverse else k, k
            for launch in steps.launches:
                if isinstance(launch, Steps):
                    self.loop(launch)
                else:
                    self.launch(launch)

    def is_at_once(self, steps: Steps) -> bool:
        """Whether one launch has run all steps."""
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
        """What is known of a launch."""
        found = self.prepared.get(id(launch))
        if found is None:
            found = self.prepared[id(launch)] = _Prepared(launch, self.nbytes, self.device)
        return found

    def launch(self, launch: Launch) -> None:
        self.made(launch).launch([self.value(x) for x in launch.slots])

    def value(self, slot: float | Slot) -> float:
        """What a slot holds at this step."""
        if not isinstance(slot, Moving):
            return slot
        t, k = self.now[slot.level]
        if k == 0:
            return self.value(slot.first)
        return self.value(slot.base) + slot.stride * ((t + slot.shift) % slot.rows)


class _Prepared:
    """What all steps have in common of a launch: its form and how many programs there are, unless
    a size that moves has a say in that. `nbytes`: of the tensors that addresses may be of."""

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
        asked = (self.text.programs, *self.text.widths.values())
        self.is_steady = moving.isdisjoint(n for index in asked for n in size_names(index))
        self.sizes = made.sizes
        self.known = self._found({})

    def launch(self, values: Sequence[float]) -> None:
        """One step's."""
        programs, form = self.known
        if not self.is_steady:
            rest = map(int, values[len(self.text.tensors) :])
            programs, form = self._found(dict(zip(self.text.sizes, rest, strict=False)))
        self.kernel.launch(programs, form, values)

    def may_run_at_once(self, level: int) -> bool:
        """Does no program read what another one has written at an earlier step of this loop?"""
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
        """All steps of the loop. `value`: what slots hold that move with loops around it."""
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
        handed = [*origins, *numbers, *moved, *counts]
        programs, known = self.known
        form = self.all_steps.form(self.device, self.wide, handed, known.widths)
        self.all_steps.launch(programs, form, handed)

    def _found(self, moved: Mapping[str, int]) -> tuple[int, Form]:
        sizes = {**self.sizes, **moved}
        widths = tuple(power(evaluate(n, sizes)) for n in self.text.widths.values())
        form = self.kernel.form(self.device, self.wide, self.like, widths)
        return evaluate(self.text.programs, sizes), form


def _common(slot: float | Slot) -> float:
    """A number of which a slot holds a multiple at each step."""
    if not isinstance(slot, Moving):
        return slot
    return math.gcd(int(_common(slot.first)), int(_common(slot.base)), slot.stride)


def _greatest(slot: float | Slot) -> float:
    """What a slot holds is never more."""
    if not isinstance(slot, Moving):
        return slot
    return max(_greatest(slot.first), _greatest(slot.base) + slot.stride * (slot.rows - 1))
