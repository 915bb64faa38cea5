"""The kernels of a Program for the CPU: C text, compiled to one library for each kernel.

In:  a `Fusion`, as for `codegen/kernels`. Out: `HostKernels`; a driver calls them as

    run_k0(pack_k0(pool, threads, work, *pointers, *sizes, *numbers))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lowtide import compiler
from lowtide.codegen.c.driver import HostDialect
from lowtide.codegen.c.kernel import KernelSignature, KernelText, kernel_signature, kernel_text
from lowtide.codegen.c.module import kernel_source, module_text
from lowtide.codegen.host.python import name_of
from lowtide.codegen.kernels import Kernels
from lowtide.runtime import abi, launch, toolchain
from lowtide.tile.arrange import Arrangement
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel
from lowtide.tile.summation import recomputed
from lowtide.tile.target import target_for


class HostKernels(Kernels):
    """See `Kernels`."""

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
        plans: Sequence[Kernel] = (),
    ) -> None:
        vector_bytes = toolchain.target().vector_bytes
        self.target = target_for(vector_bytes, torch.get_num_threads(), tiling)
        super().__init__(fusion, symbols, scalars, hints, moving, updated, plans)
        self._updated = updated
        self._kernels: dict[str, launch.Kernel] = {}

    @property
    def texts(self) -> list[KernelText]:
        """Each kernel in C."""
        return self._texts

    @cached_property
    def _texts(self) -> list[KernelText]:
        return [
            kernel_text(p, self.memory_dtypes, self.strides, self.is_step, self._in_place_of())
            for p in self.compiled
        ]

    def _in_place_of(self) -> Mapping[str, str]:
        """Return operands, and the outputs that are written to the same memory."""
        return self._updated or {of: name for name, of in self.placed.items()}

    def _forget(self) -> None:
        super()._forget()
        self._kernels = {}
        for name in ("_texts", "_source", "_to_compile"):
            vars(self).pop(name, None)

    @property
    def signatures(self) -> list[KernelSignature]:
        return self._signatures

    @cached_property
    def _signatures(self) -> list[KernelSignature]:
        return [
            kernel_signature(p, self.memory_dtypes, self.strides, self.is_step) for p in self.plans
        ]

    @property
    def source(self) -> str:
        return self._source

    @cached_property
    def _source(self) -> str:
        """The C of all kernels, for readers: each kernel is compiled by itself."""
        by_lanes: dict[int, list[KernelText]] = {}
        for plan, text in zip(self.compiled, self.texts, strict=True):
            by_lanes.setdefault(plan.lanes, []).append(text)
        vector_bytes = self.target.vector_bytes
        return "\n".join(module_text(texts, n, vector_bytes) for n, texts in by_lanes.items())

    @staticmethod
    def dialect(parts: Mapping[str, Kernels]) -> HostDialect:
        return HostDialect()

    def threads(self) -> int:
        return torch.get_num_threads()

    def settle(self, device: torch.device) -> bool:
        return True  # a call returns after its work is done

    def identity(self, tensors: Sequence[Tensor]) -> str:
        return f"{toolchain.compiler().identity} {self.threads()}"

    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        stores = [n for n in g.defs if n in self.stored]
        n, target = self.normal, self.target
        alike = recomputed(self.groups, self.program.shared_sums)
        arrangement = Arrangement(
            g, stores, n.inputs, n.defs, hints, target, name, self.moving, alike
        )
        self.arrangements.append(arrangement)
        return compiler.tiled(arrangement, self.moving, hints, self.strides)

    def to_compile(self) -> list[str]:
        return self._to_compile

    @cached_property
    def _to_compile(self) -> list[str]:
        texts = {text.name: text for text in self.texts}
        nbytes = self.target.vector_bytes
        return compiler.emitted(
            self.compiled, lambda kernel: kernel_source(texts[kernel.name], kernel.lanes, nbytes)
        )

    def scope(self, head: str) -> dict[str, Any]:
        scope: dict[str, Any] = {}
        for name, choice in self.choices.items():
            scope[f"choice_{name_of(head + name)}"] = choice
        for name, kernel in self.bound().items():
            known = name_of(head + name)
            scope[f"run_{known}"] = kernel.function
            scope[f"pack_{known}"] = kernel.pack
            scope[f"layout_{known}"] = kernel.layout
        return scope

    def bound(self) -> dict[str, launch.Kernel]:
        with self._lock:
            self._kernels = self._kernels or self._bound()
        return self._kernels

    def _bound(self) -> dict[str, launch.Kernel]:
        found: dict[str, launch.Kernel] = {}
        libraries = compiler.loaded(self.to_compile())
        for text, library in zip(self.texts, libraries, strict=True):
            fmt = "P" * (1 + len(text.tensors))
            fmt += "q" * len(text.sizes) + "d" * len(text.numbers)
            found[text.name] = launch.bind(library, abi.SYMBOL, fmt)
        return found
