"""Program → something to call: fuse, plan, print C, compile, and a driver that runs the kernels.

In:  a `Program`, the order of its size symbols and numbers, likely sizes.
Out: a `Fusion`, and of that an `Executable`. C is compiled when it is first called; plans and
     memory need no compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lowtide.codegen.c.kernel import KernelText, kernel_text
from lowtide.codegen.c.module import module_text, without_names
from lowtide.codegen.driver import driver_text, small_shape
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory.plan import Event, Held, MemoryPlan, peak_of
from lowtide.runtime import arena, cache, launch, toolchain
from lowtide.runtime.choice import Choice
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, product
from lowtide.texpr.normalise import normalise
from lowtide.texpr.sizes import evaluate
from lowtide.tile.group import Group, group
from lowtide.tile.ir import Kernel
from lowtide.tile.items import memory_strides
from lowtide.tile.matmul import as_matmul
from lowtide.tile.plan import plan
from lowtide.tile.schedule import schedule
from lowtide.tile.target import target_for

_small_scratch = arena.SmallScratch()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """One kernel for `explain()`: the ops written into it, each with its place, and a remark."""

    name: str
    ops: tuple[tuple[str, Loc], ...]
    outputs: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A Program, its normal form, and which definitions of that share a kernel."""

    program: Program
    normal: Program
    groups: Sequence[Group]


def fused(program: Program, hints: Mapping[str, int]) -> Fusion:
    """A Program in groups, not planned yet; `hints` are likely sizes."""
    normal = normalise(program, hints)
    groups = group(normal, hints, torch.get_num_threads())
    return Fusion(program=program, normal=normal, groups=groups)


class Executable:
    """One signature's program. `exe(tensors, sizes, numbers)` gives outputs, then checks.

    `moving`: it is one step of several, which `codegen/stepwise` launches; from step to step, these
    tensors and sizes change. It has no driver of its own. `updated`: inputs that outputs take the
    place of, in the same memory."""

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        moving: Iterable[str] = (),
        updated: Mapping[str, str] | None = None,
    ) -> None:
        self.program = fusion.program
        self.symbols = tuple(symbols)
        self.scalars = tuple(scalars)
        self.normal, self.groups = fusion.normal, fusion.groups
        self.moving = frozenset((*moving, *self.normal.defs)) if moving else frozenset[str]()
        self.is_step = bool(self.moving)
        vector_bytes = toolchain.target().vector_bytes
        self.target = target_for(vector_bytes, torch.get_num_threads())
        self.stored = _stored(self.groups, self.normal)
        self.strides = memory_strides(self.normal.inputs, self.normal.defs)
        self.plans = [self._plan(g, k, hints) for k, g in enumerate(self.groups)]
        dtypes = {n: i.dtype for n, i in self.normal.inputs.items()}
        dtypes.update({n: d.dtype for n, d in self.normal.defs.items()})
        self.texts: list[KernelText] = [
            kernel_text(p, dtypes, self.strides, self.is_step, updated) for p in self.plans
        ]
        self.source = self._source(vector_bytes)
        self.products = {
            p.name: m
            for p, g in zip(self.plans, self.groups, strict=True)
            if not moving and (m := as_matmul(g.defs, self.strides)) is not None
        }
        self.choices = {name: Choice(("kernel", "torch.matmul")) for name in self.products}
        made = self.program.defs
        roots = {n: made[n] for n in self._roots() if n in made}
        self.shaped = {**self.normal.defs, **roots}
        self.driver = driver_text(
            self.normal,
            self.shaped,
            list(self.program.inputs),
            self.symbols,
            self.scalars,
            self.texts,
            self.plans,
            self.products,
        )
        self._run: Any = None
        self._kernels: dict[str, launch.Kernel] = {}
        self._lock = threading.Lock()

    def _plan(self, g: Group, k: int, hints: Mapping[str, int]) -> Kernel:
        stores = [n for n in g.defs if n in self.stored]
        name = f"k{k}"
        n, target = self.normal, self.target
        made = plan(g, stores, n.inputs, n.defs, hints, target, name, self.moving)
        return schedule(made, hints, target, self.strides)

    def _source(self, vector_bytes: int) -> str:
        """One C file per lane count, joined: each is compiled by itself."""
        return "\n".join(self._sources(vector_bytes).values())

    def _sources(self, vector_bytes: int) -> dict[int, str]:
        by_lanes: dict[int, list[KernelText]] = {}
        for p, text in zip(self.plans, self.texts, strict=True):
            by_lanes.setdefault(p.lanes, []).append(text)
        return {n: module_text(ts, n, vector_bytes) for n, ts in by_lanes.items()}

    # -- running --

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        run = self._run or self._compiled()
        return run(tensors, sizes, numbers)

    def _compiled(self) -> Any:
        """The generated driver."""
        kernels = self.bound()
        with self._lock:
            if self._run is None:
                scope: dict[str, Any] = {
                    "empty": arena.empty,
                    "scratch": arena.scratch,
                    "small_scratch": _small_scratch,
                    "threads_now": torch.get_num_threads,
                    "pool": launch.parallel_for_address(),
                    "torch": torch,
                    "matmul": torch.matmul,
                    "empty_like": torch.empty_like,
                }
                for name, d in self.shaped.items():
                    shape = small_shape(d)
                    if shape is not None:
                        scope[f"like_{name}"] = torch.empty(shape, dtype=d.dtype.torch)
                for name, choice in self.choices.items():
                    scope[f"choice_{name}"] = choice
                for name, kernel in kernels.items():
                    scope[f"run_{name}"] = kernel.function
                    scope[f"pack_{name}"] = kernel.pack
                exec(compile(self.driver, "<lowtide driver>", "exec"), scope)
                self._run = scope["run"]
        return self._run

    def bound(self) -> dict[str, launch.Kernel]:
        """The compiled kernels, in the order in which they run."""
        with self._lock:
            self._kernels = self._kernels or self._bound()
        return self._kernels

    def _bound(self) -> dict[str, launch.Kernel]:
        found: dict[str, launch.Kernel] = {}
        for lanes, source in self._sources(self.target.vector_bytes).items():
            library = cache.load_library(without_names(source), "kernels")
            for p, t in zip(self.plans, self.texts, strict=True):
                if p.lanes == lanes:
                    fmt = "P" * (1 + len(t.tensors)) + "q" * len(t.sizes) + "d" * len(t.numbers)
                    found[t.name] = launch.bind(library, t.name, fmt)
        return {p.name: found[p.name] for p in self.plans}

    # -- telling --

    @property
    def kernels(self) -> list[KernelInfo]:
        return [
            KernelInfo(
                name=p.name,
                ops=self._sites(p),
                outputs=tuple(p.outputs),
                note=_note(p) + self._choice_note(p.name),
            )
            for p in self.plans
        ]

    def _choice_note(self, name: str) -> str:
        if name not in self.choices:
            return ""
        found = sorted(set(self.choices[name].measured().values()))
        return "; or torch.matmul, by measurement" + (f" (now {', '.join(found)})" if found else "")

    def _sites(self, p: Kernel) -> tuple[tuple[str, Loc], ...]:
        """The ops whose definitions went into a kernel, in program order."""
        needed: set[str] = set()
        todo = [n for output in p.outputs for n in self._written_by(output)]
        while todo:
            name = todo.pop()
            if name in needed:
                continue
            needed.add(name)
            for load in ex.loads(self.program.defs[name].expr):
                if load.source in self.program.defs and load.source not in self.stored:
                    todo.append(load.source)
        defs = (d for n, d in self.program.defs.items() if n in needed and d.op)
        return tuple(dict.fromkeys((d.op, d.loc) for d in defs))

    def _written_by(self, name: str) -> Iterator[str]:
        """The program's definition of that name, or those that a reduction was taken out of."""
        if name in self.program.defs:
            yield name
            return
        taken = self.normal.defs[name]
        for d in self.normal.defs.values():
            same_op = (d.op, d.loc) == (taken.op, taken.loc)
            if same_op and any(load.source == name for load in ex.loads(d.expr)):
                yield from self._written_by(d.name)

    @property
    def stages(self) -> list[tuple[str, str]]:
        return [
            ("tensor expressions", str(self.program)),
            ("normal form", str(self.normal)),
            ("tile program", "\n".join(map(str, self.plans))),
            *(() if self.is_step else [("driver", self.driver)]),
            ("C", self.source),
        ]

    def memory(self, sizes: Mapping[str, int]) -> MemoryPlan:
        """The peak of one run: outputs, temporaries while they live, work memory of the threads."""
        return peak_of(self.events(sizes))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """What one run takes and gives back, in order."""
        threads = torch.get_num_threads()
        held: dict[str, Held] = {}
        warm: list[Held] = []  # work memory that a loop's steps find as the first one left it
        for k, (p, t) in enumerate(zip(self.plans, self.texts, strict=True)):
            own = [n for n in p.outputs if not (self.is_step and n in self._roots())]
            made = {n: self._held(n, sizes) for n in own}
            work = Held(
                name=f"{p.name} work",
                nbytes=evaluate(t.thread_bytes, sizes) * threads,
                kind="work memory",
                loc=UNKNOWN_LOC,
                formula=f"{threads}*({t.thread_bytes})",
            )
            yield from (Event(held=h, takes=True) for h in (*made.values(), work))
            held |= made
            dead = [held.pop(n) for n in list(held) if not self._alive(n, k + 1)]
            warm += [work] if self.is_step and p.prologue else []
            over = dead if self.is_step and p.prologue else [*dead, work]
            yield from (Event(held=h, takes=False) for h in over)
        yield from (Event(held=h, takes=False) for h in warm)

    def _held(self, name: str, sizes: Mapping[str, int]) -> Held:
        d = self.normal.defs[name]
        nbytes: Index = product(d.shape) * d.dtype.itemsize
        return Held(
            name=name,
            nbytes=evaluate(nbytes, sizes),
            kind="output" if name in self._roots() else "temporary",
            loc=d.loc,
            formula=str(nbytes),
        )

    def _roots(self) -> set[str]:
        return {*self.program.outputs, *self.program.checks}

    def _alive(self, name: str, k: int) -> bool:
        kept = self.is_step or name in self._roots()  # a loop's temporaries are there for all steps
        return kept or any(name in t.tensors for t in self.texts[k:])


def _note(p: Kernel) -> str:
    grid = " x ".join(f"{t.axis.extent} by {t.tile}" for t in p.grid)
    return f"tiles: {grid}" if grid else "one task"


def _stored(groups: Sequence[Group], program: Program) -> set[str]:
    """What must lie in memory: outputs, checks, and what another group loads."""
    needed = {*program.outputs, *program.checks}
    for g in groups:
        needed |= g.all_sources()
    return needed
