"""Program → something to call: what the kernels of any machine have in common.

In:  a `Fusion` of a Program, the order of its size symbols and numbers, likely sizes.
Out: an `Executable`: `c/executable` for the CPU, `triton/executable` for GPUs. Kernels are compiled
     when it is first called; plans and memory need no compiler.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lowtide.codegen.inplace import lying, replaceable
from lowtide.codegen.stepwise import Room, StepRun
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory.plan import Event, Held, MemoryPlan, peak_of
from lowtide.runtime.choice import Choice
from lowtide.runtime.steps import Launch, Steps
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, product
from lowtide.texpr.printer import print_program
from lowtide.texpr.sizes import evaluate
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel
from lowtide.tile.items import memory_strides
from lowtide.tile.matmul import Matmul, as_matmul


class Needs(Protocol):
    """What a kernel reads and writes, and its work memory per thread, a polynomial in the sizes."""

    @property
    def tensors(self) -> list[str]: ...
    @property
    def thread_bytes(self) -> Index: ...


class Text(Needs, Protocol):
    """A kernel in its language: what is handed over to it, in order."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> list[str]: ...
    @property
    def numbers(self) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """One kernel for `explain()`: the ops written into it, each with its place, and a remark."""

    name: str
    ops: tuple[tuple[str, Loc], ...]
    outputs: tuple[str, ...]
    note: str


class Executable(ABC):
    """One signature's program. `exe(tensors, sizes, numbers)` gives outputs, then checks.

    `moving`: it is one step of several, which `codegen/stepwise` launches; from step to step, these
    tensors and sizes change. It has no driver of its own. `updated`: inputs that outputs take the
    place of, in the same memory.

    `placed`: results that lie in the memory of a tensor that they are made of, by name, whose: of
    temporaries, and of inputs where nobody needs these (`taking`)."""

    language: str
    writes_in_place = False  # whether kernels of this machine may
    chooses_halves = False  # whether products of bf16 and f16 are measured beside PyTorch's, too

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        moving: Iterable[str] = (),
    ) -> None:
        self.program = fusion.program
        self.symbols = tuple(symbols)
        self.scalars = tuple(scalars)
        self.normal, self.groups = fusion.normal, fusion.groups
        self.moving = frozenset((*moving, *self.normal.defs)) if moving else frozenset[str]()
        self.is_step = bool(self.moving)
        self.stored = _stored(self.groups, self.normal)
        self.strides = memory_strides(self.normal.inputs, self.normal.defs)
        self.memory_dtypes = {n: i.dtype for n, i in self.normal.inputs.items()}
        self.memory_dtypes.update({n: d.dtype for n, d in self.normal.defs.items()})
        self.plans = [self._plan(g, f"k{k}", hints) for k, g in enumerate(self.groups)]
        made = self.program.defs
        roots = {n: made[n] for n in self._roots() if n in made}
        self.shaped = {**self.normal.defs, **roots}
        self.products = {
            p.name: m
            for p, g in zip(self.plans, self.groups, strict=True)
            if not moving and (m := self._matmul(p, g)) is not None
        }
        self.choices = {
            name: Choice(("kernel", "torch.matmul"), self.settle) for name in self.products
        }
        self._run: Any = None
        self._lock = threading.RLock()  # `scope` asks for what is `bound`
        self.replaceable: dict[str, tuple[str, ...]] = {}
        if self.writes_in_place and not self.is_step:
            tensors = lying(self.normal.inputs, self.normal.defs)
            self.replaceable = replaceable(self.plans, tensors, self.products)
        self.placed = self._placed()

    def _matmul(self, p: Kernel, g: Group) -> Matmul | None:
        """The product that PyTorch's own gives as well, all of what the kernel writes."""
        found = as_matmul(g.defs, self.strides, halves=self.chooses_halves)
        return found if found is not None and p.outputs == [found.result.source] else None

    def _placed(self) -> dict[str, str]:
        """Of temporaries that die with the kernel that reads them, which result takes the place."""
        found: dict[str, str] = {}
        for name, places in self.replaceable.items():
            free = [n for n in places if n in self.normal.defs and n not in self._roots()]
            free = [n for n in free if n not in found.values() and self._is_alike(n, name)]
            if free:
                found[name] = free[0]
        return found

    def _is_alike(self, a: str, b: str) -> bool:
        x, y = self.shaped[a], self.shaped[b]
        return (x.shape, x.dtype) == (y.shape, y.dtype)

    def over_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """Which results may lie over these inputs, if nobody needs them: each over another one."""
        found: dict[str, str] = {}
        for name, places in self.replaceable.items():
            free = [n for n in places if n in inputs and n not in found.values()]
            if free and name not in self.placed:
                found[name] = free[0]
        return found

    def input_under(self, name: str) -> str:
        """The input in whose memory a result lies, "" if in none."""
        while name in self.placed:
            name = self.placed[name]
        return name if name in self.program.inputs else ""

    def taking(self, taken: Mapping[str, str]) -> Executable:
        """The same, with these results over inputs, as `over_inputs` has them."""
        made = copy.copy(self)
        made.placed = {**self.placed, **taken}
        made._forget()
        return made

    def _forget(self) -> None:
        """Has no text yet, as a copy."""
        self._run = None
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def texts(self) -> Sequence[Text]:
        """Each kernel as its language has it."""

    @property
    @abstractmethod
    def source(self) -> str:
        """All kernels in their language."""

    @property
    @abstractmethod
    def driver(self) -> str:
        """Python that allocates and launches."""

    @property
    def needs(self) -> Sequence[Needs]:
        """Of each kernel, also where none is written."""
        return self.texts

    @abstractmethod
    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        """The kernel of a group."""

    @abstractmethod
    def threads(self) -> int:
        """How many share the work, each with work memory of its own."""

    @property
    def device(self) -> torch.device:
        """Of the machine that it is made for."""
        return torch.device("cpu")

    def device_of(self, tensors: Sequence[Tensor]) -> torch.device:
        """Where these are, and what is made of them; of none, where the machine has its own."""
        return tensors[0].device if tensors else self.device

    @abstractmethod
    def settle(self, device: torch.device) -> bool:
        """Waits until all that was launched there is done; False where that is not allowed now."""

    @abstractmethod
    def identity(self, tensors: Sequence[Tensor]) -> str:
        """What the kernels' times depend on beside their text: compiler, threads, device."""

    @abstractmethod
    def bound(self) -> Mapping[str, Any]:
        """The compiled kernels, in the order in which they run."""

    @abstractmethod
    def scope(self) -> dict[str, Any]:
        """What the driver's text calls by name."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor on a device of the machine."""

    @abstractmethod
    def launches(self, run: StepRun) -> list[Launch]:
        """The kernels of a step, in order, with their slots."""

    @abstractmethod
    def run_steps(self, steps: Steps, room: Room) -> int:
        """Runs all steps; gives how many that were. Their slots lie in the memory of the tensors in
        `room`."""

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Not negative at sizes like these, of which a kernel would hold more than the machine has
        room for; None where that is not so."""
        return None

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """The time of a run, where there is a model of that; else 0."""
        return 0.0

    def write(self) -> None:
        """Writes the kernels, which only a run needs, so that what fails there fails before it."""
        len(self.source if self.is_step else self.driver)

    # -- running --

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        run = self._run or self._compiled()
        return run(tensors, sizes, numbers)

    def _compiled(self) -> Any:
        """The generated driver."""
        self.bound()
        with self._lock:
            if self._run is None:
                scope = self.scope()
                exec(compile(self.driver, "<lowtide driver>", "exec"), scope)
                self._run = scope["run"]
        return self._run

    # -- telling --

    @property
    def kernels(self) -> list[KernelInfo]:
        return [
            KernelInfo(
                name=p.name,
                ops=self._sites(p),
                outputs=(*p.outputs, *dict.fromkeys(p.adds.values())),
                note=_note(p) + _added(p) + self._remark(p.name) + self._remark_of_places(p),
            )
            for p in self.plans
        ]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why kernels were refused when they were launched: PyTorch runs the region instead."""
        return ()

    def _remark(self, name: str) -> str:
        if name not in self.choices:
            return ""
        found = sorted(set(self.choices[name].measured().values()))
        return "; or torch.matmul, by measurement" + (f" (now {', '.join(found)})" if found else "")

    def _remark_of_places(self, p: Kernel) -> str:
        found = [f"{n} over {self.placed[n]}" for n in p.outputs if n in self.placed]
        return f"; in place: {', '.join(found)}" if found else ""

    def _sites(self, p: Kernel) -> tuple[tuple[str, Loc], ...]:
        """The ops whose definitions went into a kernel, in program order."""
        needed: set[str] = set()
        todo = [n for output in (*p.outputs, *p.adds) for n in self._written_by(output)]
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
        groups = [
            f"{p.name}: {', '.join((*g.defs, *g.epilogue))}"
            for p, g in zip(self.plans, self.groups, strict=True)
        ]
        return [
            ("tensor expressions", print_program(self.program)),
            ("normal form", print_program(self.normal)),
            ("groups", "\n".join(groups)),
            ("tile program", "\n".join(map(str, self.plans))),
            *(() if self.is_step else [("driver", self.driver)]),
            (self.language, self.source),
        ]

    def memory(self, sizes: Mapping[str, int]) -> MemoryPlan:
        """The peak of one run: outputs, temporaries while they live, work memory of the threads."""
        return peak_of(self.events(sizes))

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        """What one run takes and gives back, in order."""
        held: dict[str, Held] = {}
        warm: list[Held] = []
        for k, (p, t) in enumerate(zip(self.plans, self.needs, strict=True)):
            own = [n for n in p.outputs if not (self.is_step and n in self._roots())]
            for old, name in [(self.placed[n], n) for n in own if n in self.placed]:
                if old in held:  # an input's memory is not this program's to count
                    yield Event(held=held.pop(old), takes=False)
                    held[name] = self._held(name, sizes)
                    yield Event(held=held[name], takes=True)
            made = {n: self._held(n, sizes) for n in own if n not in self.placed}
            work = self._work(p, t, sizes)
            yield from (Event(held=h, takes=True) for h in (*made.values(), work))
            held |= made
            dead = [held.pop(n) for n in list(held) if not self._alive(n, k + 1)]
            warm += [work] if self._stays(p) else []
            over = dead if self._stays(p) else [*dead, work]
            yield from (Event(held=h, takes=False) for h in over)
        yield from (Event(held=h, takes=False) for h in warm)

    def work_at_once(self, sizes: Mapping[str, int]) -> list[Held]:
        """Work memory while a loop of many steps runs: kernels share one, but for those whose later
        steps find what the first one left."""
        every = [(p, self._work(p, t, sizes)) for p, t in zip(self.plans, self.needs, strict=True)]
        shared = sorted((h for p, h in every if not self._stays(p)), key=lambda h: h.nbytes)
        return [*(h for p, h in every if self._stays(p)), *shared[-1:]]

    def _stays(self, p: Kernel) -> bool:
        """Do a loop's later steps find its work memory as the first one left it?"""
        return self.is_step and bool(p.prologue)

    def _work(self, p: Kernel, needs: Needs, sizes: Mapping[str, int]) -> Held:
        threads = self.threads()
        return Held(
            name=f"{p.name} work",
            nbytes=evaluate(needs.thread_bytes, sizes) * threads,
            kind="work memory",
            loc=UNKNOWN_LOC,
            formula=f"{threads}*({needs.thread_bytes})",
        )

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
        return kept or any(name in t.tensors for t in self.needs[k:])


def _note(p: Kernel) -> str:
    grid = " x ".join(f"{t.axis.extent} by {t.tile}" for t in p.grid)
    by = f"; {p.warps} warps, {p.stages} stages" if p.warps else ""
    return (f"tiles: {grid}" if grid else "one task") + by


def _added(p: Kernel) -> str:
    found = ", ".join(dict.fromkeys(p.adds.values()))
    return f"; adds to {found}, in any order" if found else ""


def _stored(groups: Sequence[Group], program: Program) -> set[str]:
    """What must lie in memory: outputs, checks, and what another group loads."""
    needed = {*program.outputs, *program.checks}
    for g in groups:
        needed |= g.all_sources()
    return needed
