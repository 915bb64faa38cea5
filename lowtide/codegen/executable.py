"""Compiles a Program into an `Executable`: the parts, their kernels, the driver that runs them.

In:  a Program; `texpr/partition` and `tile/strips` cut it into parts.
Out: an `Executable`. `exe(tensors, sizes, numbers)` returns the results, then the checks.

    part 0    p = x @ w over all steps
    loop      for t in range(T): h[t] = .. h[t - 1] ..     kernels of one step, launched T times
    part 2    y = h @ v over all steps

A `HostProgram` (`codegen/host`) describes what happens around the kernels: the driver is printed
from it, and the memory plan is read from it. The first call compiles the kernels.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from lowtide import compiler
from lowtide.codegen.c.kernels import HostKernels
from lowtide.codegen.host import memory
from lowtide.codegen.host.build import Stage, build
from lowtide.codegen.host.printer import print_host
from lowtide.codegen.host.program import HostProgram, Over
from lowtide.codegen.host.python import python_text, scope_of
from lowtide.codegen.kernels import KernelInfo, Kernels
from lowtide.codegen.machines import CPU, Kind, kernels_of
from lowtide.memory.plan import Event, RunPeak, peak_of
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index
from lowtide.texpr.partition import Loop, Part
from lowtide.texpr.printer import print_program
from lowtide.texpr.sizes import evaluate
from lowtide.tile.group import Fusion
from lowtide.tile.part_texts import Interface, PartText, print_head
from lowtide.tile.printer import TileProgram
from lowtide.tile.strips import ROWS, START, Strips

PROGRAM: Final = "tensor expressions"  # the title of a Program


class Executable:
    """See the module's text. `parts`: in the order in which they run. `same`: results that are a
    part's value under another name."""

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
        """The program that runs the kernels."""
        return build(self.program, self.parts, self.same, self.symbols, self.scalars)

    @cached_property
    def driver(self) -> str:
        """The host program in Python."""
        return python_text(self.host, self._dialect)

    @cached_property
    def kernels_by_head(self) -> dict[str, Kernels]:
        """The kernels of all parts, by the prefix of their names."""
        return dict(_kernels(self.parts))

    @property
    def _dialect(self) -> Any:
        return self.first.dialect(self.kernels_by_head)

    @property
    def first(self) -> Kernels:
        """The kernels of one part, for questions about the machine: all parts have the same one."""
        return next(iter(self.kernels_by_head.values()))

    # -- running --

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        run = self._run or self._compiled()
        return run(tensors, sizes, numbers)

    def _compiled(self) -> Any:
        """Return the driver's function; its kernels are compiled."""
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
        """Compile the kernels. C compilers run in parallel, over all parts."""
        parts = list(self.kernels_by_head.values())
        compiler.loaded([text for kernels in parts for text in kernels.to_compile()])
        for kernels in parts:
            kernels.bound()

    def write(self) -> None:
        """Print the kernels and the driver, so that a fault in printing is raised before a run."""
        if self._run is None:
            len(self.driver)
            for kernels in self.kernels_by_head.values():
                len(kernels.source)

    # -- results in the memory of an input --

    def reusable_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """Return a map from results to those of `inputs` (all dead after the call) whose memory
        they may take. It is empty for several parts, since a later part may read the input."""
        only = self._only_part()
        return {} if only is None else only.reusable_inputs(inputs)

    def input_under(self, name: str) -> str:
        """Return the input whose memory a result takes, "" if it has memory of its own."""
        placed = {s.name: s.of for s in self.host.body if isinstance(s, Over)}
        while name in placed:
            name = placed[name]
        return name if name in self.program.inputs else ""

    def taking(self, taken: Mapping[str, str]) -> Executable:
        """Return a copy in which results take the memory of inputs. `taken`: see `over_inputs`."""
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

    # -- inspection --

    @property
    def interface(self) -> Interface:
        """The interface of a call."""
        return Interface(
            program=self.program, same=self.same, sizes=self.symbols, numbers=self.scalars
        )

    @property
    def kernels(self) -> list[KernelInfo]:
        """The facts about each kernel that `explain()` shows."""
        notes = _notes(self.parts)
        return [
            dataclasses.replace(info, name=f"{head}{info.name}", note=info.note + notes[head])
            for head, kernels in self.kernels_by_head.items()
            for info in kernels.kernels
        ]

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why launches were refused; PyTorch runs the region instead."""
        return tuple(why for k in self.kernels_by_head.values() for why in k.refusals)

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Titles and texts: the stages of each part, the host program, the driver, the kernels."""
        alone = not any(s.head for s in self.parts)
        found = [] if alone else [(PROGRAM, print_program(self.program))]
        found += _part_stages(self.parts)
        found += [("host program", print_host(self.host)), ("driver", self.driver)]
        written = [(head + k.language, k.source) for head, k in self.kernels_by_head.items()]
        return [*found, *written]

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Return an index that is >= 0 where an axis is longer than a kernel can hold in full;
        None if all kernels fit at these sizes."""
        found = (x.too_wide(sizes) for x in self.kernels_by_head.values())
        return next((index for index in found if index is not None), None)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """Return the predicted time of a run, 0 without a model. A loop counts as one step."""
        return sum(x.time_ns(sizes) for x in self.kernels_by_head.values())

    def memory(self, sizes: Mapping[str, int]) -> RunPeak:
        """Return the peak of a run: results, live temporaries, work memory of the threads."""
        return peak_of(self.events(sizes))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """Return the allocations and frees of one run, in order."""
        return memory.events(self.host, sizes, self.first.threads())


def _kernels(stages: Sequence[Stage]) -> Iterator[tuple[str, Kernels]]:
    for stage in stages:
        if stage.kernels is None:
            yield from _kernels(stage.within)
        else:
            assert isinstance(stage.kernels, Kernels)
            yield stage.head, stage.kernels


def _part_stages(stages: Sequence[Stage]) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of each part. A step that contains loops has its Program only."""
    for stage in stages:
        head, kernels = print_head(stage.part), stage.kernels
        shown = [(PROGRAM, print_program(stage.part.program))]
        if kernels is not None:
            assert isinstance(kernels, Kernels)
            shown = kernels.stages
        yield from ((stage.head + name, head + text) for name, text in shown)
        yield from _part_stages(stage.within)


def _notes(stages: Sequence[Stage]) -> dict[str, str]:
    """Return a remark for each part, by prefix of its kernels' names: how often they run."""
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
    make: Callable[..., Kernels] = kernels_of,
) -> Executable:
    """Plan a program for one signature. `symbols`, `scalars`: the order of the sizes and numbers
    of a call. `hints`: the sizes of the first call. `tiling`: a row of `tile/target`. `make`: the
    kernels of a fused Program, which a tool may replace."""
    planner = _Planner(scalars, Kind(machine=machine, tiling=tiling), make)
    same: Mapping[str, str] = {}
    if program.delays:
        found = compiler.parts(program, hints)
        stages, same = planner.stages(_headed(found.parts, ""), symbols, hints), found.same
    else:
        stages = planner.plain(Part(program=program), symbols, hints, "")
    return Executable(program, list(stages), same, symbols, scalars)


def compile_parts(
    made: Interface, texts: Mapping[str, PartText], hints: Mapping[str, int]
) -> Executable:
    """Plan parts that were read, for the CPU, and those kernels that they do not have. `texts`: by
    prefix of the kernels' names, in order."""
    planner = _TextPlanner(made.numbers, texts)
    stages = planner.stages(planner.within(""), made.sizes, hints)
    return Executable(made.program, list(stages), made.same, made.sizes, made.numbers)


def compile_groups(made: TileProgram, hints: Mapping[str, int]) -> Executable:
    """Plan the groups of one part for the CPU; or use its kernels, if it has some."""
    program = made.fusion.program
    call = Interface(program=program, same={}, sizes=made.sizes, numbers=made.numbers)
    return compile_parts(call, {"": PartText(part=Part(program=program), groups=made)}, hints)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str = CPU) -> bool:
    """Return whether the program without delays is cut into strips."""
    return _fused_or_cut(program, hints, Kind(machine=machine))[1] is not None


def _fused_or_cut(
    program: Program, hints: Mapping[str, int], kind: Kind
) -> tuple[Fusion, list[Part | Strips] | None]:
    """Return the groups of a part; and the parts around its strips, if these compute each product
    once."""
    fusion = compiler.fused(program, hints, blocks=kind.has_blocks)
    return fusion, compiler.strips(fusion.normal, fusion.groups, hints)


_Headed = tuple[str, Part | Loop | Strips]


class _Planner:
    def __init__(self, scalars: Sequence[str], kind: Kind, make: Callable[..., Kernels]) -> None:
        self.scalars = scalars
        self.kind = kind
        self.make = make

    def stages(
        self, parts: Sequence[_Headed], symbols: Sequence[str], hints: Mapping[str, int]
    ) -> Iterator[Stage]:
        """Yield the parts with planned kernels, each by the prefix of its kernels' names."""
        for head, part in parts:
            match part:
                case Loop():
                    yield self.loop(part, symbols, hints, 0, head)
                case Strips():
                    yield self.strips(part, symbols, hints, head)
                case Part():
                    yield from self.plain(part, symbols, hints, head)

    def plain(
        self, part: Part, symbols: Sequence[str], hints: Mapping[str, int], head: str
    ) -> Iterator[Stage]:
        """Yield one stage, or the stages of its strips if it is cut."""
        fusion, cut = _fused_or_cut(part.program, hints, self.kind)
        if cut is not None:
            yield from self.stages(_headed(cut, head), symbols, hints)
            return
        made = self.make(fusion, symbols, self.scalars, hints, self.kind)
        yield Stage(head=head, part=part, kernels=made)

    def inner(
        self, loop: Loop, hints: Mapping[str, int], level: int, head: str
    ) -> Sequence[_Headed]:
        """Return the parts of a step that contains loops; none of another step."""
        if not loop.program.delays:
            return []
        return _headed(compiler.parts(loop.program, hints, level).parts, head)

    def repeated(
        self,
        program: Program,
        head: str,
        symbols: Sequence[str],
        hints: Mapping[str, int],
        moving: Collection[str],
        updated: Mapping[str, str] | None = None,
    ) -> Kernels:
        """Return the kernels of a step or a strip; for `moving` and `updated` see `Kernels`."""
        fusion = compiler.fused(program, hints, blocks=self.kind.has_blocks, is_step=True)
        return self.make(fusion, symbols, self.scalars, hints, self.kind, moving, updated)

    def strips(
        self, part: Strips, symbols: Sequence[str], hints: Mapping[str, int], head: str
    ) -> Stage:
        known = {**hints, START: part.count, ROWS: part.count}
        moving = (START, ROWS, *part.totals)
        names = [*symbols, START, ROWS]
        made = self.repeated(part.program, head, names, known, moving, part.totals)
        return Stage(head=head, part=part, kernels=made)

    def loop(
        self,
        part: Loop,
        symbols: Sequence[str],
        hints: Mapping[str, int],
        level: int,
        head: str,
    ) -> Stage:
        """Return a loop with the kernels of its step. `level`: how many loops are around it."""
        known = {**hints, part.step: max(evaluate(part.trips, hints) // 2, 1)}
        names = [*symbols, part.step]
        moving = {part.step, *part.carried}
        inner = self.inner(part, known, level + 1, head)
        if not inner:
            made = self.repeated(part.program, head, names, known, moving)
            return Stage(head=head, part=part, kernels=made)
        moving.update(n for _, p in inner for n in _given(p))
        within: list[Stage] = []
        for name, p in inner:
            if isinstance(p, Loop):
                within.append(self.loop(p, names, known, level + 1, name))
            else:
                made = self.repeated(p.program, name, names, known, moving)
                within.append(Stage(head=name, part=p, kernels=made))
        return Stage(head=head, part=part, kernels=None, within=tuple(within))


class _TextPlanner(_Planner):
    """Takes parts, groups and kernels from texts as far as these have them."""

    def __init__(self, scalars: Sequence[str], texts: Mapping[str, PartText]) -> None:
        super().__init__(scalars, Kind(machine=CPU, tiling=""), kernels_of)
        self.texts = texts

    def within(self, head: str) -> list[_Headed]:
        """Return the parts of the step of a loop; "": those of no loop."""
        loops = [h for h, text in self.texts.items() if isinstance(text.part, Loop)]

        def around(name: str) -> str:
            return max((h for h in loops if name.startswith(h) and name != h), key=len, default="")

        return [(name, text.part) for name, text in self.texts.items() if around(name) == head]

    def inner(
        self, loop: Loop, hints: Mapping[str, int], level: int, head: str
    ) -> Sequence[_Headed]:
        """See the base class."""
        return self.within(head)

    def plain(
        self, part: Part, symbols: Sequence[str], hints: Mapping[str, int], head: str
    ) -> Iterator[Stage]:
        """See the base class."""
        groups = self.texts[head].groups if head in self.texts else None
        if groups is None:
            return super().plain(part, symbols, hints, head)
        return iter([Stage(head=head, part=part, kernels=_kernels_in(groups, hints))])

    def repeated(
        self,
        program: Program,
        head: str,
        symbols: Sequence[str],
        hints: Mapping[str, int],
        moving: Collection[str],
        updated: Mapping[str, str] | None = None,
    ) -> Kernels:
        """See the base class."""
        groups = self.texts[head].groups
        if groups is None:
            return super().repeated(program, head, symbols, hints, moving, updated)
        return _kernels_in(groups, hints)


def _kernels_in(made: TileProgram, hints: Mapping[str, int]) -> Kernels:
    """Return the kernels of a text; those of its groups, if it has none."""
    return HostKernels(
        made.fusion, made.sizes, made.numbers, hints, made.moving, made.updated or None,
        plans=made.kernels,
    )  # fmt: skip


def _headed(parts: Sequence[Part | Loop | Strips], head: str) -> list[_Headed]:
    """Return parts, each with the prefix of its kernels' names. `head`: of what they are parts
    of."""
    words = {Loop: "loop", Strips: "strip", Part: "part"}
    return [(f"{head}{words[type(p)]}{k}.", p) for k, p in enumerate(parts)]


def _given(part: Part | Loop | Strips) -> set[str]:
    """Return the values of a part that later parts may read."""
    found = {*part.program.outputs, *part.program.checks}
    return found | {*part.ends.values(), *part.blocks} if isinstance(part, Loop) else found
