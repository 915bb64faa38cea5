"""The kernels of a Program in Triton, for a GPU or for Triton's interpreter.

In:  a `Fusion`, as for `codegen/kernels`. Out: `BlockKernels`; a driver calls them as

    launch_k0(programs, reach, *tensors, *sizes, *numbers, **widths)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide import compiler
from lowtide.codegen.host.python import name_of
from lowtide.codegen.index_text import size_names
from lowtide.codegen.kernels import Kernels
from lowtide.codegen.triton.driver import BlockDialect
from lowtide.codegen.triton.kernel import BlockText, block_text
from lowtide.codegen.triton.looped import COUNTS, Looped, looped_text
from lowtide.codegen.triton.module import module_text
from lowtide.codegen.triton.steps import BlockLaunch
from lowtide.runtime import block_kernels
from lowtide.runtime.cubins import ALIGNED, CompiledKernel, Cubin, cubin_for
from lowtide.runtime.gpus import properties
from lowtide.runtime.interpreted import InterpretedKernel
from lowtide.tile.block_arrangement import BlockArrangement
from lowtide.tile.gpu import USUAL, Gpu, gpu_of
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel
from lowtide.tile.summation import recomputed
from lowtide.tile.target import block_target

_POINTERS = {
    "f64": "*fp64", "f32": "*fp32", "bf16": "*bf16", "f16": "*fp16", "i64": "*i64", "i32": "*i32",
    "u8": "*u8", "bool": "*i1",
}  # fmt: skip
_USUAL_WIDTH = 64  # of an axis that a program holds in full


class BlockKernels(Kernels):
    """See `Kernels`. `machine`: such as "cuda:0", or "interpreter" for CPU tensors."""

    language = "Triton"
    measures_products = chooses_halves = True

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        machine: str,
        moving: Iterable[str] = (),
        tiling: str = "",
    ) -> None:
        self.gpu = gpu(machine)
        self.target = block_target(self.gpu, tiling)
        super().__init__(fusion, symbols, scalars, hints, moving)
        self.interpreted = machine == "interpreter"
        self.machine = machine
        self._texts = [block_text(p, self.memory_dtypes, self.strides) for p in self.plans]
        self.looped = self._looped()
        looped = [self.looped.text] if self.looped else []
        self._source = module_text([*(t.text for t in self.texts), *looped])
        self._kernels: dict[str, block_kernels.BlockKernel] = {}

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.interpreted else self.machine)

    @property
    def source(self) -> str:
        return self._source

    @property
    def texts(self) -> list[BlockText]:
        """Each kernel in Triton."""
        return self._texts

    @property
    def signatures(self) -> list[BlockText]:
        return self._texts

    @staticmethod
    def dialect(parts: Mapping[str, Kernels]) -> BlockDialect:
        found = {head: k for head, k in parts.items() if isinstance(k, BlockKernels)}
        first = next(iter(found.values()))
        texts = {head + t.name: t for head, k in found.items() for t in k.texts}
        return BlockDialect(texts, first.device, first.interpreted)

    def threads(self) -> int:
        return 1

    def settle(self, device: torch.device) -> bool:
        if self.interpreted:
            return True
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                return False  # into a CUDA graph
            torch.cuda.synchronize()
        return True

    def identity(self, tensors: Sequence[Tensor]) -> str:
        return block_kernels.identity(tensors[0].device if tensors else None)

    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        stores = [n for n in g.defs if n in self.stored]
        n, alike = self.normal, recomputed(self.groups, {})
        arrangement = BlockArrangement(
            g, stores, n.inputs, n.defs, hints, self.target, name, self.moving, alike
        )
        self.arrangements.append(arrangement)
        return compiler.tiled(arrangement, self.moving, hints, self.strides)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        return sum(a.time_ns(sizes) for a in self.arrangements if isinstance(a, BlockArrangement))

    def bound(self) -> dict[str, block_kernels.BlockKernel]:
        with self._lock:
            if not self._kernels:
                functions = block_kernels.load(self.source, self.interpreted)
                kind = InterpretedKernel if self.interpreted else CompiledKernel
                self._kernels = {n: kind(functions[n], x) for n, x in self.parameters().items()}
        return self._kernels

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(why for k in self._kernels.values() for why in k.faults.values())

    def _looped(self) -> Looped | None:
        """Return the function that runs all steps in one launch. None unless a step is one kernel
        whose number of programs and widths are the same in all steps."""
        if not self.is_step or len(self.texts) != 1:
            return None
        (text,) = self.texts
        fixed = (text.programs, *text.widths.values())
        is_steady = self.moving.isdisjoint(n for index in fixed for n in size_names(index))
        return looped_text(text, self.moving) if is_steady else None

    def _moves(self, looped: Looped) -> tuple[str, ...]:
        """Return Triton's types of the parameters that `looped` adds to the kernel's."""
        pointers = (_POINTERS[self.memory_dtypes[n].name] for n in looped.tensors)
        firsts = (*pointers, *("i64" for _ in looped.sizes))
        moves = (kind for first in firsts for kind in (first, "i64", "i32", "i32"))
        return (*moves, *("i32" for _ in COUNTS))

    def parameters(self) -> dict[str, block_kernels.KernelParameters]:
        """Return the parameters of each function in the module, the one for all steps last."""
        found = {t.name: self._parameters_of(t) for t in self.texts}
        if self.looped is not None:
            more = self._moves(self.looped)
            found[self.looped.name] = dataclasses.replace(
                self._parameters_of(self.texts[0]), more=more
            )
        return found

    def _parameters_of(self, text: BlockText) -> block_kernels.KernelParameters:
        return block_kernels.KernelParameters(
            pointers=tuple(_POINTERS[self.memory_dtypes[n].name] for n in text.tensors),
            dividing=tuple(n in text.dividing for n in text.sizes),
            numbers=len(text.numbers),
            warps=text.warps,
            stages=text.stages,
            widths=len(text.widths),
        )

    def cubin(self, name: str, capability: int, wide: bool = False) -> Cubin:
        """Compile a function for a GPU capability, such as 90; this needs no GPU. All arguments
        are taken as multiples of 16. `wide`: indices have 64 bits."""
        parameters = self.parameters()[name]
        kernel = CompiledKernel(
            block_kernels.load(self.source, interpreted=False)[name], parameters
        )
        aligned = [ALIGNED] * len(parameters.types(wide))
        widths = (_USUAL_WIDTH,) * parameters.widths
        form = kernel.form(torch.device("cuda"), wide, aligned, widths)
        return cubin_for(kernel.function, parameters, form, capability)

    def scope(self, head: str) -> dict[str, Any]:
        scope: dict[str, Any] = {}
        for name, choice in self.choices.items():
            scope[f"choice_{name_of(head + name)}"] = choice
        kernels, itemsizes = self.bound(), {n: d.itemsize for n, d in self.memory_dtypes.items()}
        for text in self.texts:
            known = name_of(head + text.name)
            scope[f"launch_{known}"] = kernels[text.name]
            scope[f"step_{known}"] = functools.partial(
                BlockLaunch,
                kernel=kernels[text.name],
                text=text,
                itemsizes=itemsizes,
                looped=self.looped,
                all_steps=None if self.looped is None else kernels[self.looped.name],
            )
        return scope


@functools.cache
def gpu(machine: str) -> Gpu:
    """Return the machine's GPU; a usual one for the interpreter, or if there is no such device."""
    _, _, index = machine.partition(":")
    found = properties(int(index)) if index else None
    if found is None:
        return USUAL
    return gpu_of(
        found.name,
        found.capability,
        sms=found.sms,
        shared_sm_bytes=found.shared_sm_bytes,
        threads=found.threads,
        clock_khz=found.clock_khz,
        memory_clock_khz=found.memory_clock_khz,
        memory_bus_bits=found.memory_bus_bits,
    )
