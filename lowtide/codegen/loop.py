"""The kernels of one step, launched for all steps of a loop.

In:  a `Loop`, its step compiled, the tensors that it reads, sizes and numbers.
Out: the values of the steps: a stack of all of them, or of two slots that take turns.

    h'[t] = h[t - 1]      the slot of h' is h0 at the first step, later the row of h before

A step with loops in it is parts that run one after another, of which each has its place in memory
for all steps. A stack of a loop within lies in the row of the loop around it, if that keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from lowtide.codegen.executable import Executable
from lowtide.codegen.stepwise import Room, StepRun
from lowtide.runtime.steps import Launch, Moving, Slot, Steps, behind
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.partition import Loop, Part
from lowtide.texpr.sizes import evaluate
from lowtide.tile.strips import Strips

SLOTS = 2  # the step before, and this one


class Stage(Protocol):
    """A part of a step, compiled."""

    @property
    def part(self) -> Part | Loop | Strips: ...
    @property
    def executable(self) -> Step: ...


class Staged(Protocol):
    """A step of several parts."""

    @property
    def parts(self) -> Sequence[Stage]: ...
    def executables(self) -> Iterator[Executable]: ...


Step = Executable | Staged


def slots(loop: Loop, name: str) -> Index:
    """Of how many steps a value is kept."""
    return loop.trips if name in loop.kept else as_index(SLOTS)


def run_loop(
    loop: Loop,
    step: Step,
    values: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    numbers: Sequence[float],
) -> dict[str, Tensor]:
    """Runs all steps: what later parts read of them. `values`: what it reads, by name."""
    known = {**values, **{init: values[init].contiguous() for _, init in loop.carried.values()}}
    executable = step if isinstance(step, Executable) else next(step.executables())
    room = Room(executable, known.values())
    run = _Outermost(loop, step, known, room, sizes, numbers)
    done = executable.run_steps(run.steps(), room)
    last = done - 1 if loop.until else run.last
    found = {n: stack for n, stack in run.tensors.items() if n in loop.kept} | run.blocks
    for name, end in loop.ends.items():
        stack = run.tensors[name]
        found[end] = stack[last % len(stack)]
    return found


class _Loop:
    """One run of a loop: where what its steps read and write lies."""

    def __init__(
        self,
        loop: Loop,
        step: Step,
        room: Room,
        places: Mapping[str, Slot],
        sizes: Mapping[str, int],
        moving: Mapping[str, Slot],
        numbers: Sequence[float],
        level: int,
    ) -> None:
        self.loop = loop
        self.step = step
        self.room = room
        self.numbers = numbers
        self.level = level
        self.trips = evaluate(loop.trips, sizes)
        self.first = self.trips - 1 if loop.reverse else 0
        self.last = 0 if loop.reverse else self.trips - 1
        self.sizes = {**sizes, loop.step: self.first}
        self.moving = {
            **moving,
            loop.step: self._moving(first=self.first, base=0, stride=1, rows=max(self.trips, 1)),
        }
        self.places: dict[str, Slot] = dict(places)
        self.stacks = {n: self.stack(n) for n in loop.program.outputs}
        for name in loop.program.outputs:
            self.places[name] = self._row(name, 0, None)
        for name, (source, init) in loop.carried.items():
            self.places[name] = self._row(source, 1 if loop.reverse else -1, places[init])

    def _moving(self, *, first: Slot, base: Slot, stride: int, rows: int, shift: int = 0) -> Moving:
        return Moving(
            first=first, base=base, stride=stride, shift=shift, rows=rows, level=self.level
        )

    def stack(self, name: str) -> tuple[Slot, int]:
        """Where the values of all steps begin, and how many there is room for."""
        raise NotImplementedError

    def ends(self) -> dict[str, Slot]:
        """What the loop leaves, where it lies."""
        found = {n: self.stacks[n][0] for n in self.loop.kept}
        for name, end in self.loop.ends.items():
            base, rows = self.stacks[name]
            found[end] = behind(base, self.row_bytes(name) * (self.last % rows))
        return found

    def row_bytes(self, name: str) -> int:
        """Of one step's value."""
        d = self.loop.program.defs[name]
        return evaluate(product(d.shape), self.sizes) * d.dtype.itemsize

    def _row(self, name: str, shift: int, first: Slot | None) -> Moving:
        """The row of each step; at the first one `first`, or its own."""
        base, rows = self.stacks[name]
        stride = self.row_bytes(name)
        own = behind(base, stride * (self.first % rows))
        first = own if first is None else first
        return self._moving(first=first, base=base, stride=stride, rows=rows, shift=shift)

    def steps(self) -> Steps:
        """All its launches."""
        return Steps(
            launches=self._launches(),
            trips=self.trips,
            reverse=self.loop.reverse,
            level=self.level,
            until=self.places[self.loop.until] if self.loop.until else 0,
        )

    def _launches(self) -> list[Launch | Steps]:
        if isinstance(self.step, Executable):
            return [*self._kernels(self.step)]
        made: list[Launch | Steps] = []
        for stage in self.step.parts:
            if isinstance(stage.part, Loop):
                within = _Within(self, stage.part, stage.executable)
                made.append(within.steps())
                self.places.update(within.ends())
            else:
                assert isinstance(stage.executable, Executable)
                made += self._kernels(stage.executable)
        return made

    def _kernels(self, step: Executable) -> list[Launch]:
        return _Kernels(self, step).launches()

    def empty(self, name: str, *parts: int) -> Tensor:
        """Room for the values of the steps; `parts`: of so many, one behind another."""
        d = self.loop.program.defs[name]
        shape = (*parts, *(evaluate(n, self.sizes) for n in (slots(self.loop, name), *d.shape)))
        return self.room.empty(shape, d.dtype.torch)


class _Outermost(_Loop):
    """Its stacks are tensors."""

    def __init__(
        self,
        loop: Loop,
        step: Step,
        values: Mapping[str, Tensor],
        room: Room,
        sizes: Mapping[str, int],
        numbers: Sequence[float],
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.blocks: dict[str, Tensor] = {}
        self.loop, self.room, self.sizes = loop, room, {**sizes, loop.step: 0}
        for name, parts in loop.blocks.items():
            self.blocks[name] = self.empty(parts[0], len(parts))
            self.tensors.update(zip(parts, self.blocks[name], strict=True))
        places = {n: x.data_ptr() for n, x in values.items()}
        super().__init__(loop, step, room, places, sizes, {}, numbers, 0)

    def stack(self, name: str) -> tuple[Slot, int]:
        """See the base class."""
        if name not in self.tensors:
            self.tensors[name] = self.empty(name)
        return self.tensors[name].data_ptr(), len(self.tensors[name])


class _Within(_Loop):
    """A loop in each step of another."""

    def __init__(self, around: _Loop, loop: Loop, step: Step) -> None:
        self.around = around
        super().__init__(
            loop,
            step,
            around.room,
            around.places,
            around.sizes,
            around.moving,
            around.numbers,
            around.level + 1,
        )

    def stack(self, name: str) -> tuple[Slot, int]:
        """See the base class."""
        if name in self.around.stacks:
            return self.around.places[name], self.trips
        made = self.empty(name)
        return made.data_ptr(), len(made)


class _Kernels(StepRun):
    """The kernels of a step, or of one part of it."""

    def __init__(self, around: _Loop, step: Executable) -> None:
        self.around = around
        super().__init__(step, around.room, around.sizes, around.numbers, around.level)
        made = self.temporaries(around.places)
        around.places.update((n, x.data_ptr()) for n, x in made.items())

    def pointer(self, name: str) -> Slot:
        """See the base class."""
        return self.around.places[name]

    def size(self, name: str) -> Slot:
        """See the base class."""
        return self.around.moving.get(name, self.sizes[name])
