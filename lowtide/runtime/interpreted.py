"""Runs block kernels in Triton's interpreter, on CPU tensors.

In:  functions of a module (`runtime/block_kernels`). Out: `InterpretedKernel`s.

    k0(programs=4, …)      the Python function runs four times, on numpy arrays as blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.runtime.block_kernels import BlockKernel, Form, constants

_INTEGERS = {"i1": "int1", "u8": "uint8", "i32": "int32", "i64": "int64"}  # floats: the same name


class InterpretedKernel(BlockKernel):
    def _multiples(self, like: Sequence[Any]) -> int:
        return 0  # the interpreter has no use for it

    def _launch(self, programs: int, form: Form, arguments: Sequence[Any]) -> None:
        types = self.parameters.types(form.wide)
        interpret(self.function, programs, types, arguments, constants(form))


def interpret(
    function: Any,
    programs: int,
    types: Sequence[str],
    arguments: Sequence[Any],
    constants: Sequence[Any],
) -> None:
    """Run the programs one after another. `types`: Triton's types of the arguments."""
    made: list[Any] = []
    for kind, x in zip(types, arguments, strict=True):
        is_pointer = kind.startswith("*")
        made.append(_pointer(kind, x) if is_pointer else _double(x) if kind == "fp64" else x)
    function[(programs,)](*made, *constants)


def _pointer(kind: str, address: int) -> Any:
    """Return a pointer of Triton's type `kind`, such as "*fp32"."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    name = kind.removeprefix("*")
    dtype = tl.pointer_type(tl.dtype(_INTEGERS.get(name, name)))
    return tl.tensor(TensorHandle(np.array([address], dtype=np.uint64), dtype), dtype)


def _double(x: float) -> Any:
    """Return a float64 number; the interpreter would round a Python float to float32."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([x], dtype=np.float64), tl.float64), tl.float64)
