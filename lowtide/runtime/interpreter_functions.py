"""Functions that Triton's interpreter lacks, implemented by PyTorch and numpy.

In:  nothing. Out: names for the scope of a module of block kernels (`runtime/block_kernels`).

    lib.exp(x)      torch.exp on the block's values, for CUDA's libdevice
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NAMES = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "sqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "pow", "floor", "ceil", "trunc", "copysign", "fmod",
)  # fmt: skip
_OTHER_NAMES = {"rint": torch.round}


class _Functions:
    """An object whose attributes are the functions of libdevice."""


def stand_in() -> _Functions:
    """Return the stand-in for libdevice."""
    found = _Functions()
    for name in _NAMES:
        setattr(found, name, _interpreted(getattr(torch, name)))
    for name, function in _OTHER_NAMES.items():
        setattr(found, name, _interpreted(function))
    return found


def in_place_of_tritons() -> dict[str, Any]:
    """Return replacements for functions of a module that the interpreter does not run, or gets
    wrong: reductions; roundings, which it truncates; products of blocks; bools of plain numbers,
    which it makes numbers; ranges of arrays of one number, which NumPy from 2.4 on refuses."""
    functions: dict[str, Callable[..., Tensor]] = {
        "sum": torch.sum,
        "prod": torch.prod,
        "greatest": torch.amax,
        "least": torch.amin,
        "bf16": lambda x: x.bfloat16().float(),
        "f16": lambda x: x.half().float(),
    }
    found = {f"lt_{name}": _interpreted(function) for name, function in functions.items()}
    return found | {"lt_flag": _flag, "lt_dot": _dot, "range": _range, "lt_range": _range}


def _range(*bounds: Any, **_: Any) -> range:
    return range(*(x.handle.data.item() if hasattr(x, "handle") else x for x in bounds))


def _dot(a: Any, b: Any, c: Any, precision: Any) -> Any:
    """Return a product of blocks; the interpreter reads the bits of a bfloat16 as an integer."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    left, right = (_widened(x).astype(c.handle.data.dtype) for x in (a, b))
    return tl.tensor(TensorHandle(np.matmul(left, right) + c.handle.data, c.dtype), c.type)


def _widened(x: Any) -> Any:
    """Return the values of a block as a numpy array."""
    import numpy as np

    if str(x.dtype) != "bf16":
        return x.handle.data
    return (x.handle.data.astype(np.uint32) << 16).view(np.float32)


def _flag(x: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(x.handle.data.astype(bool), tl.int1), tl.int1)


def _interpreted(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a function of blocks, followed by numbers, that calls a function of PyTorch."""

    def call(*given: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        blocks: list[Any] = [x for x in given if isinstance(x, tl.tensor)]
        tensors = [torch.from_numpy(np.ascontiguousarray(x.handle.data)) for x in blocks]
        numbers = [int(getattr(x, "value", x)) for x in given if not isinstance(x, tl.tensor)]
        found = function(*tensors, *numbers).to(tensors[0].dtype)
        kind = blocks[0].dtype.scalar
        is_block = found.ndim and any(x.type.is_block() for x in blocks)
        shaped = tl.block_type(kind, list(found.shape)) if is_block else kind
        return tl.tensor(TensorHandle(np.atleast_1d(found.numpy()), kind), shaped)

    return call
