"""A Program with loops → its parts, each an `Executable`, run one after another.

In:  a Program; `texpr/partition` cuts it. Out: something that is called as an Executable is.

    part 0    p = x @ w over all steps
    loop      for t in range(T): h[t] = .. h[t - 1] ..     kernels of one step, launched T times
    part 2    y = h @ v over all steps
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from lowtide.codegen.executable import Executable, KernelInfo
from lowtide.codegen.loop import run_loop, slots
from lowtide.errors import UNKNOWN_LOC
from lowtide.memory.plan import Event, Held, MemoryPlan, peak_of
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, product
from lowtide.texpr.partition import Loop, Part, partition
from lowtide.texpr.sizes import evaluate

Values = dict[str, Tensor]


class Stage:
    """One part, compiled. `dead`: what nobody needs after it."""

    def __init__(
        self,
        part: Part | Loop,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
    ) -> None:
        self.part = part
        self.symbols = tuple(symbols)
        self.dead: tuple[str, ...] = ()
        names, likely = list(symbols), dict(hints)
        loop = part if isinstance(part, Loop) else None
        if loop is not None:
            names.append(loop.step)
            likely[loop.step] = max(evaluate(loop.trips, hints) // 2, 1)
        self.executable = Executable(part.program, names, scalars, likely, loop)

    def run(self, values: Values, sizes: Sequence[int], numbers: Sequence[float]) -> None:
        """Adds what the part gives to `values`."""
        if isinstance(self.part, Loop):
            known = dict(zip(self.symbols, sizes, strict=True))
            values.update(run_loop(self.part, self.executable, values, known, numbers))
            return
        program = self.part.program
        found = self.executable([values[n] for n in program.inputs], sizes, numbers)
        values.update(zip((*program.outputs, *program.checks), found, strict=True))

    def held(self) -> Iterator[tuple[str, Index, Any]]:
        """What it gives to later parts, with its bytes, while it runs and after."""
        program = self.part.program
        made: dict[str, tuple[str, ...]] = {n: (n,) for n in (*program.outputs, *program.checks)}
        if isinstance(self.part, Loop):
            inside = {n for parts in self.part.blocks.values() for n in parts}
            made = {n: parts for n, parts in made.items() if n not in inside}
            made.update(self.part.blocks)
        for name, parts in made.items():
            d = program.defs[parts[0]]
            nbytes = product(d.shape) * d.dtype.itemsize * len(parts)
            if isinstance(self.part, Loop):
                nbytes = nbytes * slots(self.part, parts[0])
            yield name, nbytes, d.loc


class Staged:
    """See the module's text; its interface is that of `Executable`."""

    def __init__(
        self,
        program: Program,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
    ) -> None:
        self.program = program
        found = partition(program)
        self.parts = [Stage(p, symbols, scalars, hints) for p in found.parts]
        self._results = [found.same.get(n, n) for n in (*program.outputs, *program.checks)]
        _set_dead(self.parts, set(self._results))

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        values = dict(zip(self.program.inputs, tensors, strict=True))
        for stage in self.parts:
            stage.run(values, sizes, numbers)
            for name in stage.dead:
                values.pop(name, None)
        return [values[n] for n in self._results]

    # -- telling --

    @property
    def kernels(self) -> list[KernelInfo]:
        return [
            dataclasses.replace(k, name=f"{head}{k.name}", note=k.note + note)
            for head, note, stage in self._titled()
            for k in stage.executable.kernels
        ]

    def _titled(self) -> Iterator[tuple[str, str, Stage]]:
        for number, stage in enumerate(self.parts):
            if isinstance(stage.part, Loop):
                why = f": {stage.part.why}" if stage.part.why else ""
                yield f"loop{number}.", f"; once for each of {stage.part.trips} steps{why}", stage
            else:
                yield f"part{number}.", "", stage

    @property
    def stages(self) -> list[tuple[str, str]]:
        found = [("tensor expressions", str(self.program))]
        for head, _, stage in self._titled():
            found += [(head + name, text) for name, text in stage.executable.stages]
        return found

    def memory(self, sizes: Mapping[str, int]) -> MemoryPlan:
        """The largest peak of a part, beside what the parts before it have left."""
        return peak_of(self.events(sizes))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """What a run takes and gives back, in order; of a loop, one step."""
        alive: dict[str, Held] = {}
        for number, stage in enumerate(self.parts):
            made = {n: _held(n, b, loc, sizes) for n, b, loc in stage.held()}
            own = dict(sizes)
            if isinstance(stage.part, Loop):
                own[stage.part.step] = 0
                yield from (Event(held=h, takes=True) for h in made.values())
            for event in stage.executable.events(own):
                x = event.held
                if x.name in made:
                    yield Event(held=made[x.name], takes=event.takes)
                    continue
                known = dataclasses.replace(x, name=f"part{number}.{x.name}")
                yield Event(held=known, takes=event.takes)
            alive |= made
            gone = [alive.pop(n) for n in (*stage.dead, *_unread(stage)) if n in alive]
            yield from (Event(held=h, takes=False) for h in gone)


def _held(name: str, nbytes: Index, loc: Any, sizes: Mapping[str, int]) -> Held:
    return Held(
        name=name,
        nbytes=evaluate(nbytes, sizes),
        kind="temporary",
        loc=loc or UNKNOWN_LOC,
        formula=str(nbytes),
    )


def _unread(stage: Stage) -> list[str]:
    """What only the steps of a loop read: it ends with the loop."""
    part = stage.part
    if not isinstance(part, Loop):
        return []
    return [n for n in part.program.outputs if n not in part.kept and n not in part.ends]


def _set_dead(parts: Sequence[Stage], results: set[str]) -> None:
    """After which part each value is let go."""
    needed = set(results)
    for stage in reversed(parts):
        part = stage.part
        reads = set(part.program.inputs)
        if isinstance(part, Loop):
            reads = (reads - part.carried.keys()) | {init for _, init in part.carried.values()}
        gives = {*part.program.outputs, *part.program.checks}
        if isinstance(part, Loop):
            gives |= {*part.ends.values(), *part.blocks}
        stage.dead = tuple(sorted((reads | gives) - needed))
        needed |= reads


def compile_program(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
) -> Executable | Staged:
    """Plan a program for one signature; `hints` are the sizes of the first call."""
    kind = Staged if program.delays else Executable
    return kind(program, symbols, scalars, hints)
