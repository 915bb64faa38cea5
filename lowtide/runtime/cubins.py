"""Compiles kernels of blocks by Triton for a form of their arguments, and launches them.

In:  a function of a module (`runtime/block_kernels`), its arguments.
Out: `CompiledKernel`s; cubins.

Triton's own launch inspects every argument, and compiles anew for a size of 1 or a multiple of 16.
Here a `Form` has only what matters for the code, so that few kernels are compiled. They are cached
by form.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide.runtime.block_kernels import (
    RECORDING,
    BlockKernel,
    Form,
    KernelFault,
    Taken,
    constants,
)

ALIGNED = 16  # bytes that a thread reads at once; of a size, elements of any dtype
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # that one program may have


_CAPTURED: dict[
    int, Any
] = {}  # kernels in users' CUDA graphs: code that these may launch is not unloaded


class CompiledKernel(BlockKernel):
    """See the base class."""

    def __init__(self, function: Any, taken: Taken) -> None:
        super().__init__(function, taken)
        self._made: dict[Form, tuple[Any, tuple[Any, ...]]] = {}
        divide = (
            *(True for _ in taken.pointers),
            *taken.dividing,
            *(False for _ in range(taken.numbers)),
            *(kind != "i32" for kind in taken.more),
        )
        self._divide = [(k, 1 << k) for k, counts in enumerate(divide) if counts]
        self._lock = threading.Lock()

    def _multiples(self, like: Sequence[Any]) -> int:
        found = 0
        for k, bit in self._divide:
            if like[k] % ALIGNED == 0:
                found |= bit
        return found

    def _launch(self, programs: int, form: Form, handed: Sequence[Any]) -> None:
        with torch.cuda.device(form.device):
            kernel, known = self._made.get(form) or self._compiled(form)
            kernel[(programs, 1, 1)](*handed, *known)
            if torch.cuda.is_current_stream_capturing() and not RECORDING.on:
                _CAPTURED[id(kernel)] = kernel

    def _compiled(self, form: Form) -> tuple[Any, tuple[Any, ...]]:
        if torch.cuda.is_current_stream_capturing():  # the driver loads no code now
            text = f"a kernel for {form.device} is not compiled, and a CUDA graph is being captured"
            warnings.warn(
                f"{text}: PyTorch's ops are captured instead. Call the program once before, with "
                "arguments like these",
                RuntimeWarning,
                stacklevel=2,
            )
            raise KernelFault(text)
        with self._lock:
            if form not in self._made:
                self._made[form] = compile_form(self.function, self.taken, form), constants(form)
            return self._made[form]


def compile_form(function: Any, taken: Taken, form: Form, target: Any = None) -> Any:
    """What Triton makes of a function; `target`: for which GPU, the current one unless given."""
    import triton
    from triton.compiler import ASTSource

    names: list[str] = function.arg_names
    known = constants(form)
    types = [*taken.types(form.wide), *("constexpr" for _ in known)]
    multiples = [k for k in range(len(types)) if form.multiples >> k & 1]
    source = ASTSource(
        fn=function,
        signature=dict(zip(names, types, strict=True)),
        constexprs=dict(zip(names[-len(known) :], known, strict=True)),
        attrs={(k,): [["tt.divisibility", ALIGNED]] for k in multiples},
    )
    options = {
        "num_warps": taken.warps,
        "num_stages": taken.stages,
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
    }
    return cast("Any", triton).compile(source, target=target, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """What a kernel became for one kind of GPU."""

    capability: int
    code: bytes
    shared_bytes: int


def cubin_for(function: Any, taken: Taken, form: Form, capability: int) -> Cubin:
    """A function of a module for GPUs of a capability, 90 for an H100, on any machine."""
    from triton.backends.compiler import GPUTarget

    made = compile_form(function, taken, form, GPUTarget("cuda", capability, 32))
    return Cubin(capability=capability, code=made.asm["cubin"], shared_bytes=made.metadata.shared)
