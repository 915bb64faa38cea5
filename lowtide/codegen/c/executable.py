"""An `Executable` for the CPU: C, one library per lane count, and the driver that launches it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lowtide import compiler
from lowtide.codegen.c.driver import driver_text, small_shape
from lowtide.codegen.c.kernel import KernelNeeds, KernelText, kernel_needs, kernel_text
from lowtide.codegen.c.steps import host_launches
from lowtide.codegen.choices import MATMUL
from lowtide.codegen.executable import Executable
from lowtide.codegen.stepwise import Room, StepRun
from lowtide.runtime import arena, launch, ownership, toolchain
from lowtide.runtime.steps import Launch, Steps, run_steps
from lowtide.tile.arrange import Arrangement
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel
from lowtide.tile.summation import computed_again
from lowtide.tile.target import target_for

_small_scratch = arena.SmallScratch()


class HostExecutable(Executable):
    """See `Executable`."""

    language = "C"
    writes_in_place = True

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        moving: Iterable[str] = (),
        updated: Mapping[str, str] | None = None,
        tiling: str = "",
    ) -> None:
        vector_bytes = toolchain.target().vector_bytes
        self.target = target_for(vector_bytes, torch.get_num_threads(), tiling)
        super().__init__(fusion, symbols, scalars, hints, moving)
        self._updated = updated
        self._kernels: dict[str, launch.Kernel] = {}

    @property
    def texts(self) -> list[KernelText]:
        """See the base class."""
        return self._texts

    @cached_property
    def _texts(self) -> list[KernelText]:
        return [
            kernel_text(p, self.memory_dtypes, self.strides, self.is_step, self._in_place_of())
            for p in self.plans
        ]

    def _in_place_of(self) -> Mapping[str, str]:
        """What is read, and which result takes its place: see `kernel_text`."""
        return self._updated or {of: name for name, of in self.placed.items()}

    def _forget(self) -> None:
        super()._forget()
        self._kernels = {}
        for name in ("_texts", "_source", "_driver"):
            vars(self).pop(name, None)

    @property
    def needs(self) -> list[KernelNeeds]:
        """See the base class."""
        return self._needs

    @cached_property
    def _needs(self) -> list[KernelNeeds]:
        return [kernel_needs(p, self.memory_dtypes, self.strides) for p in self.plans]

    @property
    def source(self) -> str:
        """See the base class."""
        return self._source

    @cached_property
    def _source(self) -> str:
        """One C file per lane count, joined: each is compiled by itself."""
        return "\n".join(self._sources().values())

    @property
    def driver(self) -> str:
        """See the base class."""
        return self._driver

    @cached_property
    def _driver(self) -> str:
        return driver_text(
            self.normal,
            self.shaped,
            list(self.program.inputs),
            self.symbols,
            self.scalars,
            self.texts,
            self.plans,
            self.products,
            self.placed,
        )

    def threads(self) -> int:
        """See the base class."""
        return torch.get_num_threads()

    def settle(self, device: torch.device) -> bool:
        """See the base class."""
        return True  # a call returns when its work is done

    def identity(self, tensors: Sequence[Tensor]) -> str:
        """See the base class."""
        return f"{toolchain.compiler().identity} {self.threads()}"

    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        stores = [n for n in g.defs if n in self.stored]
        n, target = self.normal, self.target
        alike = computed_again(self.groups, self.program.again)
        arrangement = Arrangement(
            g, stores, n.inputs, n.defs, hints, target, name, bool(self.moving), alike
        )
        return compiler.tiled(arrangement, self.moving, hints, self.strides)

    def _sources(self) -> dict[int, str]:
        return compiler.emitted(self.plans, self.texts, self.target.vector_bytes)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See the base class."""
        return arena.empty(shape, dtype)

    def launches(self, run: StepRun) -> list[Launch]:
        """See the base class."""
        return host_launches(run, self.bound(), self.texts, self.plans)

    def run_steps(self, steps: Steps, room: Room) -> int:
        """See the base class."""
        return run_steps(steps)

    def scope(self) -> dict[str, Any]:
        """See the base class."""
        scope: dict[str, Any] = {
            "empty": arena.empty,
            "over": ownership.over,
            "scratch": arena.scratch,
            "small_scratch": _small_scratch,
            "threads_now": torch.get_num_threads,
            "pool": launch.parallel_for_address(),
            "torch": torch,
            "matmul": MATMUL,
            "empty_like": torch.empty_like,
        }
        for name, d in self.shaped.items():
            shape = small_shape(d)
            if shape is not None:
                scope[f"like_{name}"] = torch.empty(shape, dtype=d.dtype.torch, device="cpu")
        for name, choice in self.choices.items():
            scope[f"choice_{name}"] = choice
        for name, kernel in self.bound().items():
            scope[f"run_{name}"] = kernel.function
            scope[f"pack_{name}"] = kernel.pack
        return scope

    def bound(self) -> dict[str, launch.Kernel]:
        """The compiled kernels, in the order in which they run."""
        with self._lock:
            self._kernels = self._kernels or self._bound()
        return self._kernels

    def _bound(self) -> dict[str, launch.Kernel]:
        found: dict[str, launch.Kernel] = {}
        for lanes, library in compiler.loaded(self._sources()).items():
            for p, t in zip(self.plans, self.texts, strict=True):
                if p.lanes == lanes:
                    fmt = "P" * (1 + len(t.tensors)) + "q" * len(t.sizes) + "d" * len(t.numbers)
                    found[t.name] = launch.bind(library, t.name, fmt)
        return {p.name: found[p.name] for p in self.plans}
