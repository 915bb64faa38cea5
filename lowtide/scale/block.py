"""`lt.block`: a function of NumPy arrays for `dask.array.map_blocks` and `cubed.map_blocks`.

In: a function of tensors. Out: a picklable function of arrays, and the memory that a block takes.

    near = lt.block(nearest)
    da.map_blocks(near, x, dtype="float32")
    cubed.map_blocks(near, x, dtype="float32", extra_projected_mem=near.projected_bytes((4096, 3)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from lowtide.api.compiled import Compiled
from lowtide.api.pickled import reduced, restored
from lowtide.errors import LowtideError
from lowtide.scale.arrays import is_array, source_of, torch_dtype
from lowtide.scale.map_chunks import compiled_of

Tensor = torch.Tensor


class Block:
    """A compiled function of NumPy arrays; see `block`."""

    def __init__(self, f: Any) -> None:
        self._f = f
        self._compiled = compiled_of(f)
        self.__name__ = self._compiled.__name__

    def __call__(self, *arrays: Any) -> Any:
        """Return the function's result; its tensors are NumPy arrays."""
        given = [_tensor(x) for x in arrays]
        with torch.no_grad():
            return _arrays(self._f(*given))

    def projected_bytes(self, *shapes: Any, dtype: Any = "float32") -> int:
        """Return the bytes that a call allocates at its peak, results counted, arguments not.

        `shapes`: for each argument a shape, an array, or the argument itself if it is a number.
        `dtype`: of the arguments that are given as shapes."""
        found = [_form(x, dtype) for x in shapes]
        return self._compiled.memory(*found).peak_bytes

    def __reduce__(self) -> Any:
        return _block_of, reduced(self._f)[1]

    def __repr__(self) -> str:
        return f"<lt.block of {self.__name__}>"


def block(f: Callable[..., Any]) -> Block:
    """Return a picklable function of NumPy arrays that computes `f`.

    Its `projected_bytes(*shapes)` is what `cubed.map_blocks` takes as `extra_projected_mem`. The
    pickle has the program for the types of the annotations, or of calls before it."""
    made = Block(f if isinstance(f, Compiled | torch.nn.Module) else compiled_of(f))
    if isinstance(made._f, torch.nn.Module) and not hasattr(made._f, "explain"):  # pyright: ignore[reportPrivateUsage]
        raise LowtideError("lt.block takes a compiled module: lt.script first")
    return made


def _block_of(raw: bytes) -> Block:
    return Block(restored(raw))


def _tensor(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    return torch.from_numpy(array if array.flags.writeable else cast("Any", array).copy())


def _arrays(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.numpy()
    if isinstance(result, tuple | list):
        return tuple(map(_arrays, cast("Sequence[Any]", result)))
    return result


def _form(x: Any, dtype: Any) -> Any:
    if is_array(x):
        return source_of(x).like
    if isinstance(x, tuple | list):
        sizes = tuple(cast("Sequence[int]", x))
        kind = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype)
        return torch.empty(sizes, dtype=kind, device="meta")
    return x
