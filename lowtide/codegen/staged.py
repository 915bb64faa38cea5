"""A Program with loops or strips → its parts, each an `Executable`, run one after another.

In:  a Program; `texpr/partition` and `tile/strips` cut it. Out: something that is called as an
     Executable is.

    part 0    p = x @ w over all steps
    loop      for t in range(T): h[t] = .. h[t - 1] ..     kernels of one step, launched T times
    part 2    y = h @ v over all steps
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from torch import Tensor

from lowtide import compiler
from lowtide.codegen.executable import Executable, KernelInfo
from lowtide.codegen.loop import run_loop, slots
from lowtide.codegen.machines import CPU, Kind, executable
from lowtide.codegen.strips import run_strips
from lowtide.errors import UNKNOWN_LOC
from lowtide.memory.plan import Event, Held, MemoryPlan, peak_of
from lowtide.runtime import arena
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, product
from lowtide.texpr.partition import Loop, Part
from lowtide.texpr.printer import print_program
from lowtide.texpr.sizes import evaluate
from lowtide.tile.strips import ROWS, START, Strips

Values = dict[str, Tensor]
_MUCH_BYTES: Final = 1 << 16  # of what else would stay with a value


class Stage:
    """One part, compiled. `dead`: what nobody needs after it; `outliving`: last values of loops,
    where those of all steps are among that."""

    def __init__(
        self, part: Part | Loop | Strips, executable: Executable | Staged, symbols: Sequence[str]
    ) -> None:
        self.part = part
        self.executable = executable
        self.symbols = tuple(symbols)
        self.dead: tuple[str, ...] = ()
        self.outliving: tuple[str, ...] = ()

    def run(self, values: Values, sizes: Sequence[int], numbers: Sequence[float]) -> None:
        """Adds what the part gives to `values`."""
        part, known = self.part, dict(zip(self.symbols, sizes, strict=True))
        if isinstance(part, Loop):
            values.update(run_loop(part, self.executable, values, known, numbers))
        elif isinstance(part, Strips):
            assert isinstance(self.executable, Executable)
            values.update(run_strips(part, self.executable, values, known, numbers))
        else:
            program = part.program
            assert isinstance(self.executable, Executable)
            found = self.executable([values[n] for n in program.inputs], sizes, numbers)
            values.update(zip((*program.results, *program.checks), found, strict=True))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """What it takes and gives back beside `held`."""
        if not isinstance(self.executable, Staged):
            yield from self.executable.events(sizes)
            return
        held = list(self.executable.all_at_once(sizes))
        yield from (Event(held=h, takes=True) for h in held)
        yield from (Event(held=h, takes=False) for h in held)

    def held(self) -> Iterator[tuple[str, Index, Any]]:
        """What it gives to later parts, with its bytes, while it runs and after."""
        part, program = self.part, self.part.program
        made: dict[str, tuple[str, ...]] = {n: (n,) for n in (*program.results, *program.checks)}
        if isinstance(part, Loop):
            inside = {n for parts in part.blocks.values() for n in parts}
            made = {n: parts for n, parts in made.items() if n not in inside}
            made.update(part.blocks)
        for name, parts in made.items():
            d = program.defs[parts[0]]
            shape = part.shape(name) if isinstance(part, Strips) else d.shape
            nbytes = product(shape) * d.dtype.itemsize * len(parts)
            if isinstance(part, Loop):
                nbytes = nbytes * slots(part, parts[0])
            yield name, nbytes, d.loc


def _stages(
    parts: Sequence[Part | Loop | Strips],
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    kind: Kind,
) -> Iterator[Stage]:
    """The parts compiled; of a plain one, strips where they do its products once."""
    for part in parts:
        if isinstance(part, Loop):
            yield _looped(part, symbols, scalars, hints, kind, 0)
            continue
        known = dict(hints)
        if isinstance(part, Strips):
            known |= {START: part.count, ROWS: part.count}
        fusion = compiler.fused(part.program, known, blocks=kind.has_blocks)
        cut = None
        if isinstance(part, Part):
            cut = compiler.strips(fusion.normal, fusion.groups, hints)
        if cut is not None:
            yield from _stages(cut, symbols, scalars, hints, kind)
            continue
        moving: tuple[str, ...] = ()
        updated = None
        if isinstance(part, Strips):
            moving, updated = (START, ROWS, *part.totals), part.totals
        names = [*symbols, *(n for n in moving if n in known)]
        made = executable(fusion, names, scalars, known, kind, moving, updated)
        yield Stage(part, made, symbols)


def _looped(
    part: Loop,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    kind: Kind,
    level: int,
) -> Stage:
    """A loop within so many others, its step compiled."""
    known = {**hints, part.step: max(evaluate(part.trips, hints) // 2, 1)}
    names = [*symbols, part.step]
    moving = {part.step, *part.carried}

    def step(program: Program) -> Executable:
        fusion = compiler.fused(program, known, blocks=kind.has_blocks)
        return executable(fusion, names, scalars, known, kind, moving)

    if not part.program.delays:
        return Stage(part, step(part.program), symbols)
    within = compiler.parts(part.program, known, level + 1).parts
    moving.update(n for p in within for n in _given(p))
    stages = [
        _looped(p, names, scalars, known, kind, level + 1)
        if isinstance(p, Loop)
        else Stage(p, step(p.program), names)
        for p in within
    ]
    return Stage(part, Staged(part.program, stages, {}), symbols)


class Staged:
    """See the module's text; its interface is that of `Executable`. `same`: results that are
    a value of a part under another name."""

    def __init__(
        self,
        program: Program,
        stages: Iterable[Stage],
        same: Mapping[str, str],
    ) -> None:
        self.program = program
        self.parts = list(stages)
        self._results = [same.get(n, n) for n in (*program.results, *program.checks)]
        self._called = {same[n]: n for n in program.outputs if n in same}
        _set_dead(self.parts, set(self._results))
        self._is_compiled = False

    def over_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """See `Executable`: none, as parts read what other parts have read."""
        return {}

    def input_under(self, name: str) -> str:
        """See `Executable`."""
        return ""

    def write(self) -> None:
        """Writes the kernels of all parts: see `Executable`."""
        if not self._is_compiled:
            for made in self.executables():
                made.write()

    def _compile(self) -> None:
        """The kernels of all parts: C compilers run side by side."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(x.bound) for x in self.executables()]:
                done.result()
        self._is_compiled = True

    def executables(self) -> Iterator[Executable]:
        """Of all parts, and of those within steps."""
        for stage in self.parts:
            made = stage.executable
            yield from made.executables() if isinstance(made, Staged) else (made,)

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """See `Executable`."""
        found = (x.too_wide(sizes) for x in self.executables())
        return next((index for index in found if index is not None), None)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """See `Executable`; of a loop, one step."""
        return sum(x.time_ns(sizes) for x in self.executables())

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        if not self._is_compiled:
            self._compile()
        values = dict(zip(self.program.inputs, tensors, strict=True))
        for stage in self.parts:
            stage.run(values, sizes, numbers)
            for name in stage.outliving:
                values[name] = _alone(values[name])
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

    @property
    def refusals(self) -> tuple[str, ...]:
        """See `Executable`."""
        return tuple(why for stage in self.parts for why in stage.executable.refusals)

    def _titled(self) -> Iterator[tuple[str, str, Stage]]:
        for number, stage in enumerate(self.parts):
            part = stage.part
            if isinstance(part, Loop):
                why = f": {part.why}" if part.why else ""
                trips = f"at most {part.trips}" if part.until else f"{part.trips}"
                yield f"loop{number}.", f"; once for each of {trips} steps{why}", stage
            elif isinstance(part, Strips):
                yield (
                    f"strip{number}.",
                    f"; once for each {part.count} rows of {part.extent}",
                    stage,
                )
            else:
                yield f"part{number}.", "", stage

    @property
    def stages(self) -> list[tuple[str, str]]:
        found = [("tensor expressions", print_program(self.program))]
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
            made = {n: _held(self._called.get(n, n), b, loc, sizes) for n, b, loc in stage.held()}
            own = dict(sizes)
            if isinstance(stage.part, Loop):
                own[stage.part.step] = 0
            elif isinstance(stage.part, Strips):
                rows = min(stage.part.count, evaluate(stage.part.extent, sizes))
                own |= {START: 0, ROWS: rows}
            if not isinstance(stage.part, Part):
                yield from (Event(held=h, takes=True) for h in made.values())
            for event in stage.events(own):
                x = event.held
                if x.name in made:
                    yield Event(held=made[x.name], takes=event.takes)
                    continue
                formula = re.sub(rf"\b{ROWS}\b", str(own.get(ROWS)), x.formula)
                known = dataclasses.replace(x, name=f"part{number}.{x.name}", formula=formula)
                yield Event(held=known, takes=event.takes)
            alive |= made
            for end in stage.outliving:
                name, nbytes, loc = self._end(end)
                alive[end] = _held(name, nbytes, loc, sizes)
                yield Event(held=alive[end], takes=True)
            gone = [alive.pop(n) for n in (*stage.dead, *_unread(stage)) if n in alive]
            yield from (Event(held=h, takes=False) for h in gone)

    def _end(self, end: str) -> tuple[str, Index, Any]:
        """What the last value of a loop is called, its bytes, and where it is from."""
        for part in (stage.part for stage in self.parts):
            for source, name in part.ends.items() if isinstance(part, Loop) else ():
                if name == end:
                    d = part.program.defs[source]
                    return self._called.get(end, end), product(d.shape) * d.dtype.itemsize, d.loc
        raise AssertionError(end)

    def all_at_once(self, sizes: Mapping[str, int]) -> Iterator[Held]:
        """What the parts of a step hold while the loop runs, but for what the step gives."""
        for number, stage in enumerate(self.parts):
            own = dict(sizes)
            if isinstance(stage.part, Loop):
                own[stage.part.step] = 0
            found = [_held(n, b, loc, sizes) for n, b, loc in stage.held()]
            if isinstance(stage.executable, Staged):
                found += stage.executable.all_at_once(own)
            else:
                taken = [e.held for e in stage.executable.events(own) if e.takes]
                found += [h for h in taken if h.kind != "work memory"]
                found += stage.executable.work_at_once(own)
            for h in found:
                if h.name not in self.program.outputs:
                    yield dataclasses.replace(h, name=f"part{number}.{h.name}")


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


def _alone(x: Tensor) -> Tensor:
    """The last value of a loop, without those of all steps, whose memory it is a part of."""
    if x.untyped_storage().nbytes() - x.nbytes < _MUCH_BYTES:
        return x
    shape, is_host = tuple(x.shape), x.device.type == "cpu"
    made = arena.empty(shape, x.dtype) if is_host else x.new_empty(shape)
    return made.copy_(x)


def _given(part: Part | Loop | Strips) -> set[str]:
    """What later parts may read of one."""
    found = {*part.program.outputs, *part.program.checks}
    return found | {*part.ends.values(), *part.blocks} if isinstance(part, Loop) else found


def _set_dead(parts: Sequence[Stage], results: set[str]) -> None:
    """After which part each value is let go."""
    needed = set(results)
    for stage in reversed(parts):
        part = stage.part
        reads = set(part.program.inputs)
        if isinstance(part, Loop):
            reads = (reads - part.carried.keys()) | {init for _, init in part.carried.values()}
        elif isinstance(part, Strips):
            reads -= part.totals.keys()
        stage.dead = tuple(sorted((reads | _given(part)) - needed))
        needed |= reads
    lies_in: dict[str, str] = {}
    for stage in parts:
        if isinstance(part := stage.part, Loop):
            blocks = {n: block for block, names in part.blocks.items() for n in names}
            lies_in |= {end: blocks.get(n, n) for n, end in part.ends.items()}
        for end in stage.dead:
            lies_in.pop(end, None)
        stage.outliving = tuple(end for end, stack in lies_in.items() if stack in stage.dead)


def compile_program(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str = CPU,
    tiling: str = "",
) -> Executable | Staged:
    """Plan a program for one signature; `hints` are the sizes of the first call."""
    kind = Kind(machine=machine, tiling=tiling)
    if program.delays:
        found = compiler.parts(program, hints)
        stages = _stages(found.parts, symbols, scalars, hints, kind)
        return Staged(program, stages, found.same)
    fusion = compiler.fused(program, hints, blocks=kind.has_blocks)
    cut = compiler.strips(fusion.normal, fusion.groups, hints)
    if cut is not None:
        return Staged(program, _stages(cut, symbols, scalars, hints, kind), {})
    return executable(fusion, symbols, scalars, hints, kind)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str = CPU) -> bool:
    """Is one of its parts done in strips?"""
    fusion = compiler.fused(program, hints, blocks=machine != CPU)
    return compiler.strips(fusion.normal, fusion.groups, hints) is not None
