"""A Program → something to call: its parts with their kernels, and the driver that runs them.

In:  a Program; `texpr/partition` and `tile/strips` cut it into parts.
Out: an `Executable`. `exe(tensors, sizes, numbers)` gives the results, then the checks.

    part 0    p = x @ w over all steps
    loop      for t in range(T): h[t] = .. h[t - 1] ..     kernels of one step, launched T times
    part 2    y = h @ v over all steps

What happens around the kernels is a `HostProgram` (`codegen/host`): the driver is printed from it,
and the memory plan is read from it. Kernels are compiled in the first call.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from lowtide import compiler
from lowtide.codegen.host import memory
from lowtide.codegen.host.build import Stage, build
from lowtide.codegen.host.printer import print_host
from lowtide.codegen.host.program import HostProgram, Over
from lowtide.codegen.host.python import python_text, scope_of
from lowtide.codegen.kernels import KernelInfo, Kernels
from lowtide.codegen.machines import CPU, Kind, kernels_of
from lowtide.memory.plan import Event, MemoryPlan, peak_of
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index
from lowtide.texpr.partition import Loop, Part
from lowtide.texpr.printer import print_program
from lowtide.texpr.sizes import evaluate
from lowtide.tile.strips import ROWS, START, Strips


class Executable:
    """See the module's text. `stages`: the parts in order; `same`: results that are a value of a
    part under another name; `taken`: results that lie in the memory of an input, see
    `over_inputs`."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[Stage],
        same: Mapping[str, str],
        symbols: Sequence[str],
        scalars: Sequence[str],
    ) -> None:
        self.program = program
        self.parts = tuple(parts)
        self.same = same
        self.symbols = tuple(symbols)
        self.scalars = tuple(scalars)
        self._run: Any = None
        self._lock = threading.RLock()

    @cached_property
    def host(self) -> HostProgram:
        """What happens around the kernels."""
        return build(self.program, self.parts, self.same, self.symbols, self.scalars)

    @cached_property
    def driver(self) -> str:
        """The host program in Python."""
        return python_text(self.host, self._dialect)

    @cached_property
    def kernels_by_head(self) -> dict[str, Kernels]:
        """The kernels of all parts, by what their names begin with."""
        return dict(_kernels(self.parts))

    @property
    def _dialect(self) -> Any:
        return self.first.dialect(self.kernels_by_head)

    @property
    def first(self) -> Kernels:
        """Of any part: all are for the same machine."""
        return next(iter(self.kernels_by_head.values()))

    # -- running --

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        run = self._run or self._compiled()
        return run(tensors, sizes, numbers)

    def _compiled(self) -> Any:
        """The driver, its kernels compiled."""
        self.bind()
        with self._lock:
            if self._run is None:
                scope = scope_of(self.host, self._dialect)
                for head, kernels in self.kernels_by_head.items():
                    scope |= kernels.scope(head)
                exec(compile(self.driver, "<lowtide driver>", "exec"), scope)
                self._run = scope["run"]
        return self._run

    def bind(self) -> None:
        """Compiles the kernels: C compilers run at the same time for those of all parts."""
        parts = list(self.kernels_by_head.values())
        compiler.loaded([text for kernels in parts for text in kernels.to_compile()])
        for kernels in parts:
            kernels.bound()

    def write(self) -> None:
        """Writes kernels and driver, which only a run needs, so that what fails there fails before
        a run."""
        if self._run is None:
            len(self.driver)
            for kernels in self.kernels_by_head.values():
                len(kernels.source)

    # -- results in the memory of what they are made of --

    def over_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """Which results may lie over these inputs, if nobody needs them: each over another one.
        None where there are several parts, as parts read what other parts have read."""
        only = self._only_part()
        return {} if only is None else only.over_inputs(inputs)

    def input_under(self, name: str) -> str:
        """The input in whose memory a result lies, "" if in none."""
        placed = {s.name: s.of for s in self.host.body if isinstance(s, Over)}
        while name in placed:
            name = placed[name]
        return name if name in self.program.inputs else ""

    def taking(self, taken: Mapping[str, str]) -> Executable:
        """The same, with these results over inputs, as `over_inputs` has them."""
        (stage,) = self.parts
        assert isinstance(stage.kernels, Kernels)
        made = copy.copy(self)
        made.parts = (dataclasses.replace(stage, kernels=stage.kernels.taking(taken)),)
        made._run, made._lock = None, threading.RLock()
        for name in ("host", "driver", "kernels_by_head"):
            vars(made).pop(name, None)
        return made

    def _only_part(self) -> Kernels | None:
        (stage, *others) = self.parts
        if others or not isinstance(stage.part, Part):
            return None
        return self.first

    # -- telling --

    @property
    def kernels(self) -> list[KernelInfo]:
        """Each kernel, with what `explain()` says of it."""
        notes = _notes(self.parts)
        return [
            dataclasses.replace(info, name=f"{head}{info.name}", note=info.note + notes[head])
            for head, kernels in self.kernels_by_head.items()
            for info in kernels.kernels
        ]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why kernels were refused when they were launched: PyTorch runs the region instead."""
        return tuple(why for k in self.kernels_by_head.values() for why in k.refusals)

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Titles and texts of all stages: those of each part, then of all together."""
        alone = len(self.kernels_by_head) == 1
        found = [] if alone else [("tensor expressions", print_program(self.program))]
        for head, kernels in self.kernels_by_head.items():
            found += [(head + name, text) for name, text in kernels.stages]
        found += [("host program", print_host(self.host)), ("driver", self.driver)]
        written = [(head + k.language, k.source) for head, k in self.kernels_by_head.items()]
        return [*found, *written]

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Not negative at sizes like these, of which a kernel would hold more than the machine has
        room for; None where that is not so."""
        found = (x.too_wide(sizes) for x in self.kernels_by_head.values())
        return next((index for index in found if index is not None), None)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """The time of a run, where there is a model of that; else 0. Of a loop, one step."""
        return sum(x.time_ns(sizes) for x in self.kernels_by_head.values())

    def memory(self, sizes: Mapping[str, int]) -> MemoryPlan:
        """The peak of one run: results, temporaries while they live, work memory of the threads."""
        return peak_of(self.events(sizes))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """What one run takes and gives back, in order."""
        return memory.events(self.host, sizes, self.first.threads())


def _kernels(stages: Sequence[Stage]) -> Iterator[tuple[str, Kernels]]:
    for stage in stages:
        if stage.kernels is None:
            yield from _kernels(stage.within)
        else:
            assert isinstance(stage.kernels, Kernels)
            yield stage.head, stage.kernels


def _notes(stages: Sequence[Stage]) -> dict[str, str]:
    """How often the kernels of a part run, by what their names begin with."""
    found: dict[str, str] = {}
    for stage in stages:
        match stage.part:
            case Loop(why=why, until=until, trips=trips):
                times = f"at most {trips}" if until else f"{trips}"
                note = f"; once for each of {times} steps{f': {why}' if why else ''}"
            case Strips(count=count, extent=extent):
                note = f"; once for each {count} rows of {extent}"
            case _:
                note = ""
        for head, inner in _notes(stage.within).items() or [(stage.head, "")]:
            found[head] = inner + note
    return found


# ---- parts -------------------------------------------------------------------------------------


def compile_program(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str = CPU,
    tiling: str = "",
) -> Executable:
    """Plans a program for one signature; `hints` are the sizes of the first call."""
    planner = _Planner(scalars, Kind(machine=machine, tiling=tiling))
    if program.delays:
        found = compiler.parts(program, hints)
        stages = list(planner.stages(found.parts, symbols, hints, ""))
        return Executable(program, stages, found.same, symbols, scalars)
    fusion = compiler.fused(program, hints, blocks=planner.kind.has_blocks)
    cut = compiler.strips(fusion.normal, fusion.groups, hints)
    if cut is not None:
        stages = list(planner.stages(cut, symbols, hints, ""))
        return Executable(program, stages, {}, symbols, scalars)
    made = kernels_of(fusion, symbols, scalars, hints, planner.kind)
    stage = Stage(head="", part=Part(program=program), kernels=made)
    return Executable(program, [stage], {}, symbols, scalars)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str = CPU) -> bool:
    """Is one of its parts done in strips?"""
    fusion = compiler.fused(program, hints, blocks=machine != CPU)
    return compiler.strips(fusion.normal, fusion.groups, hints) is not None


class _Planner:
    """Plans the kernels of parts."""

    def __init__(self, scalars: Sequence[str], kind: Kind) -> None:
        self.scalars = scalars
        self.kind = kind

    def stages(
        self,
        parts: Sequence[Part | Loop | Strips],
        symbols: Sequence[str],
        hints: Mapping[str, int],
        head: str,
    ) -> Iterator[Stage]:
        """The parts, planned; of a plain one, strips where they do its products once."""
        for number, part in enumerate(parts):
            match part:
                case Loop():
                    yield self.loop(part, symbols, hints, 0, f"{head}loop{number}.")
                case Strips():
                    yield self.strips(part, symbols, hints, f"{head}strip{number}.")
                case Part():
                    yield from self.plain(part, symbols, hints, f"{head}part{number}.")

    def plain(
        self, part: Part, symbols: Sequence[str], hints: Mapping[str, int], head: str
    ) -> Iterator[Stage]:
        fusion = compiler.fused(part.program, hints, blocks=self.kind.has_blocks)
        cut = compiler.strips(fusion.normal, fusion.groups, hints)
        if cut is not None:
            yield from self.stages(cut, symbols, hints, head)
            return
        made = kernels_of(fusion, symbols, self.scalars, hints, self.kind)
        yield Stage(head=head, part=part, kernels=made)

    def strips(
        self, part: Strips, symbols: Sequence[str], hints: Mapping[str, int], head: str
    ) -> Stage:
        known = {**hints, START: part.count, ROWS: part.count}
        fusion = compiler.fused(part.program, known, blocks=self.kind.has_blocks, is_step=True)
        moving = (START, ROWS, *part.totals)
        names = [*symbols, START, ROWS]
        made = kernels_of(fusion, names, self.scalars, known, self.kind, moving, part.totals)
        return Stage(head=head, part=part, kernels=made)

    def loop(
        self,
        part: Loop,
        symbols: Sequence[str],
        hints: Mapping[str, int],
        level: int,
        head: str,
    ) -> Stage:
        """A loop within so many others, its step planned."""
        known = {**hints, part.step: max(evaluate(part.trips, hints) // 2, 1)}
        names = [*symbols, part.step]
        moving = {part.step, *part.carried}

        def step(program: Program) -> Kernels:
            fusion = compiler.fused(program, known, blocks=self.kind.has_blocks, is_step=True)
            return kernels_of(fusion, names, self.scalars, known, self.kind, moving)

        if not part.program.delays:
            return Stage(head=head, part=part, kernels=step(part.program))
        inner = compiler.parts(part.program, known, level + 1).parts
        moving.update(n for p in inner for n in _given(p))
        within: list[Stage] = []
        for number, p in enumerate(inner):
            if isinstance(p, Loop):
                within.append(self.loop(p, names, known, level + 1, f"{head}loop{number}."))
            else:
                made = step(p.program)
                within.append(Stage(head=f"{head}part{number}.", part=p, kernels=made))
        return Stage(head=head, part=part, kernels=None, within=tuple(within))


def _given(part: Part | Loop) -> set[str]:
    """What later parts may read of one."""
    found = {*part.program.outputs, *part.program.checks}
    return found | {*part.ends.values(), *part.blocks} if isinstance(part, Loop) else found
