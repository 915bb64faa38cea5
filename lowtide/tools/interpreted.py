"""Kernels that are evaluated instead of being compiled: what each stage has made, run by itself.

In:  a `Fusion`, as for `codegen/c/kernels`, and the name of a stage. Out: `InterpretedKernels`; the
     same host program launches them.

    split        a kernel for each definition of a part
    normalise    a kernel for each definition of the normal form
    fuse         a kernel for each group, of one tile
    tile         the planned kernels

`lowtide reduce` runs a program after each stage: the first one whose result differs is wrong.
"""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import torch

from lowtide.codegen.c.kernel import KernelSignature, kernel_signature
from lowtide.codegen.c.kernels import HostKernels
from lowtide.codegen.machines import Kind
from lowtide.runtime import launch
from lowtide.texpr.index import as_index
from lowtide.tile.evaluate import one_tile, run_kernel
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import Kernel

STAGES: Final = ("split", "normalise", "fuse", "tile")
_FIRST_SLOTS: Final = 3  # pool, threads, work memory
_faults: list[Exception] = []


def interpreted(
    fusion: Fusion,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    kind: Kind,
    moving: Iterable[str] = (),
    updated: Mapping[str, str] | None = None,
    *,
    stage: str,
) -> InterpretedKernels:
    """Return the kernels of what a stage has made, in place of `machines.kernels_of`."""
    if stage in STAGES[:2]:
        normal = fusion.program if stage == "split" else fusion.normal
        groups = [Group({n: d}) for n, d in normal.defs.items()]
        fusion = Fusion(program=fusion.program, normal=normal, groups=groups)
    made = InterpretedKernels if stage == "tile" else _OneTile
    return made(fusion, symbols, scalars, hints, moving, updated)


def fault() -> Exception | None:
    """Return what was raised in a step of a loop since the last call, where it cannot be raised."""
    found = _faults[0] if _faults else None
    _faults.clear()
    return found


class InterpretedKernels(HostKernels):
    """See the module's text."""

    @property
    def signatures(self) -> list[KernelSignature]:
        return self._interpreted_signatures

    @cached_property
    def _interpreted_signatures(self) -> list[KernelSignature]:
        """The evaluator knows all sizes, and has work memory of its own."""
        found = (kernel_signature(p, self.memory_dtypes, self.strides) for p in self.plans)
        return [
            dataclasses.replace(s, sizes=list(self.symbols), thread_bytes=as_index(0))
            for s in found
        ]

    @property
    def source(self) -> str:
        return ""

    def to_compile(self) -> list[str]:
        return []

    def _bound(self) -> dict[str, launch.Kernel]:
        pairs = zip(self.plans, self.signatures, strict=True)
        return {p.name: _Interpreted(self._evaluated(p, s), s) for p, s in pairs}

    def _evaluated(self, plan: Kernel, signature: KernelSignature) -> Callable[..., None]:
        def run(*values: Any) -> None:
            count = len(signature.tensors)
            addresses = dict(zip(signature.tensors, values[:count], strict=True))
            known = dict(zip((*signature.sizes, *signature.numbers), values[count:], strict=True))

            def memory(name: str, first: int, end: int) -> torch.Tensor:
                dtype = self.memory_dtypes[name]
                begin, nbytes = (
                    addresses[name] + first * dtype.itemsize,
                    (end - first) * dtype.itemsize,
                )
                held = (ctypes.c_char * nbytes).from_address(begin)
                return torch.frombuffer(held, dtype=dtype.torch)

            run_kernel(plan, self.strides, memory, known, known)

        return run


class _OneTile(InterpretedKernels):
    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        return one_tile(g, name, self.stored)


class _Interpreted(launch.Kernel):
    """Stands for a compiled kernel in drivers."""

    __slots__ = ()

    def __init__(self, run: Callable[..., None], signature: KernelSignature) -> None:
        s = signature
        self.fmt = "P" * (1 + len(s.tensors)) + "q" * len(s.sizes) + "d" * len(s.numbers)
        self.layout = "@Pq" + self.fmt
        self.pack = struct.Struct(self.layout).pack
        self.function = _Function(run, self.layout)


class _Function:
    """Takes packed slots, as a compiled function does. `_as_parameter_`: its address, for loops."""

    def __init__(self, run: Callable[..., None], layout: str) -> None:
        self.run = run
        self.layout = layout
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self._called)
        self._as_parameter_ = ctypes.cast(self._callback, ctypes.c_void_p)

    def __call__(self, packed: bytes) -> int:
        self.run(*struct.unpack(self.layout, packed)[_FIRST_SLOTS:])
        return 0

    def _called(self, address: int) -> int:
        try:
            return self(ctypes.string_at(address, struct.calcsize(self.layout)))
        except Exception as error:
            _faults.append(error)
            return 1
