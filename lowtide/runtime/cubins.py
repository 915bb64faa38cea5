"""Compiles block kernels with Triton, once for each form of their arguments, and launches them.

In:  a function of a module (`runtime/block_kernels`), its arguments.
Out: `CompiledKernel`s, which cache code by form; cubins.

    N = 1000 and N = 1001, x aligned to 16 bytes      one form, if N is in no stride

Triton's own launcher specialises on each argument: whether it is 1, or a multiple of 16. A `Form`
has only the facts that matter for the code, so fewer kernels are compiled.
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
    KernelParameters,
    constants,
)

ALIGNED = 16  # the divisor that Triton uses: of addresses in bytes, of sizes in elements
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # for one program, by capability

# Kernels in users' CUDA graphs, which may launch them later: their code must not be unloaded.
_CAPTURED: dict[int, Any] = {}


class CompiledKernel(BlockKernel):
    def __init__(self, function: Any, parameters: KernelParameters) -> None:
        super().__init__(function, parameters)
        self._made: dict[Form, tuple[Any, tuple[Any, ...]]] = {}
        divide = (
            *(True for _ in parameters.pointers),
            *parameters.dividing,
            *(False for _ in range(parameters.numbers)),
            *(kind != "i32" for kind in parameters.more),
        )
        self._divide = [(k, 1 << k) for k, counts in enumerate(divide) if counts]
        self._lock = threading.Lock()

    def _multiples(self, like: Sequence[Any]) -> int:
        found = 0
        for k, bit in self._divide:
            if like[k] % ALIGNED == 0:
                found |= bit
        return found

    def _launch(self, programs: int, form: Form, arguments: Sequence[Any]) -> None:
        with torch.cuda.device(form.device):
            kernel, known = self._made.get(form) or self._compiled(form)
            kernel[(programs, 1, 1)](*arguments, *known)
            if torch.cuda.is_current_stream_capturing() and not RECORDING.on:
                _CAPTURED[id(kernel)] = kernel

    def _compiled(self, form: Form) -> tuple[Any, tuple[Any, ...]]:
        if torch.cuda.is_current_stream_capturing():  # the driver cannot load code during a capture
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
                self._made[form] = (
                    compile_form(self.function, self.parameters, form),
                    constants(form),
                )
            return self._made[form]


def compile_form(
    function: Any, parameters: KernelParameters, form: Form, target: Any = None
) -> Any:
    """Return the function compiled by Triton. `target`: the GPU; None: the current one."""
    import triton
    from triton.compiler import ASTSource

    names: list[str] = function.arg_names
    known = constants(form)
    types = [*parameters.types(form.wide), *("constexpr" for _ in known)]
    multiples = [k for k in range(len(types)) if form.multiples >> k & 1]
    source = ASTSource(
        fn=function,
        signature=dict(zip(names, types, strict=True)),
        constexprs=dict(zip(names[-len(known) :], known, strict=True)),
        attrs={(k,): [["tt.divisibility", ALIGNED]] for k in multiples},
    )
    options = {
        "num_warps": parameters.warps,
        "num_stages": parameters.stages,
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
    }
    return cast("Any", triton).compile(source, target=target, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """The machine code of a kernel for one GPU capability."""

    capability: int
    code: bytes
    shared_bytes: int


def cubin_for(function: Any, parameters: KernelParameters, form: Form, capability: int) -> Cubin:
    """Compile a function for a GPU capability, such as 90 for an H100. This needs no GPU."""
    from triton.backends.compiler import GPUTarget

    made = compile_form(function, parameters, form, GPUTarget("cuda", capability, 32))
    return Cubin(capability=capability, code=made.asm["cubin"], shared_bytes=made.metadata.shared)
