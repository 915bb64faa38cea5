"""Kernels of blocks in Triton's interpreter, on tensors of the CPU.

In:  functions of a module (`runtime/block_kernels`). Out: `InterpretedKernel`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.runtime.block_kernels import BlockKernel, Form, constants

_INTEGERS = {"i1": "int1", "u8": "uint8", "i32": "int32", "i64": "int64"}  # elsewhere it says fp32


class InterpretedKernel(BlockKernel):
    """See the base class."""

    def _multiples(self, like: Sequence[Any]) -> int:
        return 0  # no code is made for that

    def _launch(self, programs: int, form: Form, handed: Sequence[Any]) -> None:
        types = self.taken.types(form.wide)
        interpret(self.function, programs, types, handed, constants(form))


def interpret(
    function: Any,
    programs: int,
    types: Sequence[str],
    handed: Sequence[Any],
    constants: Sequence[Any],
) -> None:
    """Runs so many programs one after another. `types`: Triton's, of what is handed over."""
    made: list[Any] = []
    for kind, x in zip(types, handed, strict=True):
        is_pointer = kind.startswith("*")
        made.append(_pointer(kind, x) if is_pointer else _double(x) if kind == "fp64" else x)
    function[(programs,)](*made, *constants)


def _pointer(kind: str, address: int) -> Any:
    """The address of values of Triton's type "*fp32", say."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    name = kind.removeprefix("*")
    dtype = tl.pointer_type(tl.dtype(_INTEGERS.get(name, name)))
    return tl.tensor(TensorHandle(np.array([address], dtype=np.uint64), dtype), dtype)


def _double(x: float) -> Any:
    """A number as the interpreter takes it: it would round a Python float to float32."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([x], dtype=np.float64), tl.float64), tl.float64)
