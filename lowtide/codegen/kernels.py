"""The base class of a Program's kernels: what the kernels of every machine have in common.

In:  a `Fusion` of a Program, the order of its size symbols and numbers, likely sizes.
Out: `Kernels`: `c/kernels` for the CPU, `triton/kernels` for GPUs. Planning needs no compiler;
     `bound` compiles. `codegen/executable` runs them.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lowtide.codegen.host.build import Signature
from lowtide.codegen.host.python import Dialect
from lowtide.codegen.inplace import layouts, replaceable
from lowtide.errors import Loc
from lowtide.runtime import rates
from lowtide.runtime.choice import Choice
from lowtide.texpr import expr as ex
from lowtide.texpr.index import Index
from lowtide.texpr.printer import print_program
from lowtide.tile.arrange import Arrangement
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel
from lowtide.tile.items import memory_strides
from lowtide.tile.matmul import Matmul, as_matmul
from lowtide.tile.printer import TileProgram, print_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """One kernel for `explain()`: the ops written into it, each with its place, and a remark.
    `values`: the op and place of each output."""

    name: str
    ops: tuple[tuple[str, Loc], ...]
    outputs: tuple[str, ...]
    note: str
    values: Mapping[str, tuple[str, Loc]] = field(default_factory=dict[str, tuple[str, Loc]])


class Kernels(ABC):
    """The kernels of one Program.

    `moving`: the Program is a step of a loop or a strip; these tensors and sizes change from step
    to step. `updated`: inputs, and the outputs that are written to the same memory. `plans`: the
    kernels, if they are planned already.
    `placed`: outputs, and the operands whose memory they take: temporaries, and inputs that are
    dead after the call (`taking`)."""

    language: str
    writes_in_place = False  # whether an output may take an operand's memory
    measures_products = False  # whether calls time products against PyTorch's
    chooses_halves = False  # whether they time products of bf16 and f16, too

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        moving: Iterable[str] = (),
        updated: Mapping[str, str] | None = None,
        plans: Sequence[Kernel] = (),
    ) -> None:
        self.grouped = TileProgram(
            fusion=fusion, sizes=symbols, numbers=scalars, moving=frozenset(moving),
            updated=updated or {},
        )  # fmt: skip
        self.program = fusion.program
        self.symbols = tuple(symbols)
        self.scalars = tuple(scalars)
        self.normal, self.groups = fusion.normal, fusion.groups
        moving = self.grouped.moving
        self.moving = frozenset((*moving, *self.normal.defs)) if moving else frozenset[str]()
        self.is_step = bool(self.moving)
        self.stored = fusion.stored
        self.strides = memory_strides(self.normal.inputs, self.normal.defs)
        self.memory_dtypes = {n: i.dtype for n, i in self.normal.inputs.items()}
        self.memory_dtypes.update({n: d.dtype for n, d in self.normal.defs.items()})
        self.arrangements: list[Arrangement] = []
        planned = (self._plan(g, f"k{k}", hints) for k, g in enumerate(self.groups))
        self.plans = list(plans or planned)
        made = self.program.defs
        roots = {n: made[n] for n in self._roots() if n in made}
        self.shaped = {**self.normal.defs, **roots}
        found = {
            p.name: (m, not fusion.by_library.isdisjoint(g.defs))
            for p, g in zip(self.plans, self.groups, strict=True)
            if not moving and (m := self._matmul(p, g)) is not None
        }
        self.by_library = {name: m for name, (m, is_librarys) in found.items() if is_librarys}
        self.products = {n: m for n, (m, _) in found.items() if self.measures_products}
        self.rates = {
            p.name: [rates.described(fusion.products[n]) for n in g.defs if n in fusion.products]
            for p, g in zip(self.plans, self.groups, strict=True)
        }
        self.compiled = [p for p in self.plans if p.name not in self.by_library]
        self.choices = {
            name: Choice(("kernel", "torch.matmul"), self.settle) for name in self.products
        }
        self._lock = threading.RLock()
        self.replaceable: dict[str, tuple[str, ...]] = {}
        if self.writes_in_place and not self.is_step:
            tensors = layouts(self.normal.inputs, self.normal.defs)
            self.replaceable = replaceable(self.plans, tensors, self.normal.inputs, found)
        self.placed = self._placed()

    def _matmul(self, p: Kernel, g: Group) -> Matmul | None:
        """Return the matrix product that PyTorch can run instead, if the kernel writes only it."""
        found = as_matmul(g.defs, self.strides, halves=self.chooses_halves)
        return found if found is not None and p.outputs == [found.result.source] else None

    def _placed(self) -> dict[str, str]:
        """Return outputs, and the temporaries whose memory they take: dead after the kernel."""
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

    def reusable_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """See `Executable.reusable_inputs`. No two results take the same input."""
        found: dict[str, str] = {}
        for name, places in self.replaceable.items():
            free = [n for n in places if n in inputs and n not in found.values()]
            if free and name not in self.placed:
                found[name] = free[0]
        return found

    def taking(self, taken: Mapping[str, str]) -> Kernels:
        """Return a copy in which results take inputs' memory. `taken`: see `reusable_inputs`."""
        made = copy.copy(self)
        made.placed = {**self.placed, **taken}
        made._forget()
        return made

    def _forget(self) -> None:
        """Drop the texts, which a copy prints again."""
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def signatures(self) -> Sequence[Signature]:
        """The parameters of each kernel; they are known without its text."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The text of all kernels."""

    @staticmethod
    @abstractmethod
    def dialect(parts: Mapping[str, Kernels]) -> Dialect:
        """Return what prints a driver's allocations and launches. `parts`: by prefix of names."""

    @abstractmethod
    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        """Return the kernel of a group."""

    @abstractmethod
    def threads(self) -> int:
        """Return the number of threads; each has work memory of its own."""

    @property
    def device(self) -> torch.device:
        """The machine's device."""
        return torch.device("cpu")

    def device_of(self, tensors: Sequence[Tensor]) -> torch.device:
        """Return the device of a call's inputs and results; without inputs, the machine's."""
        return tensors[0].device if tensors else self.device

    @abstractmethod
    def settle(self, device: torch.device) -> bool:
        """Wait for all launches on a device. False if a CUDA graph is recorded: no wait then."""

    @abstractmethod
    def identity(self, tensors: Sequence[Tensor]) -> str:
        """Return what the kernels' times depend on, except their text: compiler, threads, GPU."""

    def to_compile(self) -> Sequence[str]:
        """Return the C texts to compile: see `compiler.loaded`."""
        return ()

    @abstractmethod
    def bound(self) -> Mapping[str, Any]:
        """Return the compiled kernels by name, in the order in which they run."""

    @abstractmethod
    def scope(self, head: str) -> dict[str, Any]:
        """Return the objects that a driver's text names. `head`: prefix of the kernels' names."""

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """See `Executable.too_wide`."""
        found = (a.too_wide(sizes) for a in self.arrangements)
        return next((index for index in found if index is not None), None)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """See `Executable.time_ns`."""
        return 0.0

    # -- inspection --

    @property
    def kernels(self) -> list[KernelInfo]:
        """The facts about each kernel that `explain()` shows."""
        return [
            KernelInfo(
                name=p.name,
                ops=self._sites(p),
                outputs=(*p.outputs, *dict.fromkeys(p.adds.values())),
                note=_note(p) + _added(p) + self._remark(p.name) + self._remark_of_places(p),
                values={n: (d.op, d.loc) for n in p.outputs if (d := self.normal.defs.get(n))},
            )
            for p in self.plans
        ]

    @property
    def refusals(self) -> tuple[str, ...]:
        return ()

    def _remark(self, name: str) -> str:
        measured = "".join(f"; {text}" for text in dict.fromkeys(self.rates[name]) if text)
        if name in self.by_library:
            return f"; by torch.matmul, which is faster here{measured}"
        if name not in self.choices:
            return measured
        found = sorted(set(self.choices[name].measured().values()))
        return "; or torch.matmul, by measurement" + (f" (now {', '.join(found)})" if found else "")

    def _remark_of_places(self, p: Kernel) -> str:
        found = [f"{n} over {self.placed[n]}" for n in p.outputs if n in self.placed]
        return f"; in place: {', '.join(found)}" if found else ""

    def _sites(self, p: Kernel) -> tuple[tuple[str, Loc], ...]:
        """Return the ops whose definitions a kernel computes, in program order."""
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
        """Yield the name, if the Program defines it. Normalisation adds definitions, such as a
        reduction inside a formula; for these, yield the definitions that read them."""
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
        """Titles and texts: Program, normal form, groups, tile program."""
        return [
            ("tensor expressions", print_program(self.program)),
            ("normal form", print_program(self.normal)),
            ("groups", print_groups(self.grouped)),
            ("tile program", print_groups(replace(self.grouped, kernels=self.plans))),
        ]

    def _roots(self) -> set[str]:
        return {*self.program.outputs, *self.program.checks}


def _note(p: Kernel) -> str:
    grid = " x ".join(f"{t.axis.extent} by {t.tile}" for t in p.grid)
    by = f"; {p.warps} warps, {p.stages} stages" if p.warps else ""
    return (f"tiles: {grid}" if grid else "one task") + by


def _added(p: Kernel) -> str:
    found = ", ".join(dict.fromkeys(p.adds.values()))
    return f"; adds to {found} at places of data" if found else ""
