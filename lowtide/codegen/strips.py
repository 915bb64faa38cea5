"""The kernels of one strip, launched for all strips; what is left of the rows is one more.

In:  `Strips`, one of them compiled, the tensors that it reads, sizes and numbers.
Out: the rows of all strips, each in its place, and the totals.

    dx, dw = empty(N, C), zeros(V, C)       strip k writes dx[256 k : 256 k + 256] and adds to dw
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lowtide.codegen.executable import Executable
from lowtide.codegen.stepwise import Room, StepRun
from lowtide.runtime.steps import Moving, Slot, Steps
from lowtide.texpr.sizes import evaluate
from lowtide.tile.strips import ROWS, START, Strips


def run_strips(
    strips: Strips,
    step: Executable,
    values: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    numbers: Sequence[float],
) -> dict[str, Tensor]:
    """Runs all strips: what they give. `values`: what they read, by name."""
    extent = evaluate(strips.extent, sizes)
    given, room = dict(values), Room(step, values.values())
    for before, name in strips.totals.items():
        given[before] = given[name] = _whole(strips, name, sizes, room)
        given[name].fill_(strips.identities[before])
    for name in strips.program.results:
        if name not in given:
            given[name] = _whole(strips, name, sizes, room)
    done = extent - extent % strips.count
    for start, rows, trips in ((0, strips.count, extent // strips.count), (done, extent - done, 1)):
        if rows and trips:
            known = {**sizes, START: start, ROWS: rows}
            run = _Run(strips, step, given, room, known, numbers, trips)
            step.run_steps(Steps(launches=run.launches(), trips=trips, reverse=False), room)
            given = run.values  # the rest finds room in what the strips before it used
    return {n: given[n] for n in strips.program.results}


def _whole(strips: Strips, name: str, sizes: Mapping[str, int], room: Room) -> Tensor:
    shape = tuple(evaluate(size, sizes) for size in strips.shape(name))
    return room.empty(shape, strips.program.defs[name].dtype.torch)


class _Run(StepRun):
    """Strips of so many rows each. A row of all strips lies `count` rows behind the one before."""

    def __init__(
        self,
        strips: Strips,
        step: Executable,
        values: Mapping[str, Tensor],
        room: Room,
        sizes: Mapping[str, int],
        numbers: Sequence[float],
        trips: int,
    ) -> None:
        super().__init__(step, room, sizes, numbers)
        self.trips = trips
        self.in_rows = frozenset(strips.program.results) - set(strips.totals.values())
        self.values = {**values, **self.temporaries(values)}

    def pointer(self, name: str) -> Slot:
        """See the base class."""
        tensor = self.values[name]
        if name not in self.in_rows:
            return tensor.data_ptr()
        row = tensor.stride(0) * tensor.element_size()
        return self._moving(tensor.data_ptr() + row * self.sizes[START], row)

    def size(self, name: str) -> Slot:
        """See the base class."""
        return self._moving(self.sizes[START], 1) if name == START else self.sizes[name]

    def _moving(self, first: int, row: int) -> Moving:
        stride = row * self.sizes[ROWS]
        return Moving(first=first, base=first, stride=stride, shift=0, rows=self.trips)
