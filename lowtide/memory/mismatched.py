"""Operands of different dtypes that PyTorch refuses, but not on the meta device.

In: an ATen op and its arguments. Out: nothing; or PyTorch's kind of error, in its words.

    mm(x, y)     x: float32, y: float64      RuntimeError: expected operands of one dtype, …
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
# Places of the operands that must have one dtype.
_ALIKE: Final[dict[Any, tuple[int, ...]]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (0, 1, 2),
    aten.mv.default: (0, 1),
    aten.addmv.default: (0, 1, 2),
    aten.convolution.default: (0, 1),
    aten.index_add.default: (0, 3),
    aten.index_add_.default: (0, 3),
    aten.native_layer_norm.default: (0, 2, 3),
    aten.native_group_norm.default: (0, 1, 2),
    aten.native_batch_norm.default: (0, 1, 2),
}
# Whose parameters may be float32 beside halves.
_NORMS: Final = frozenset({
    aten.native_layer_norm.default, aten.native_group_norm.default, aten.native_batch_norm.default,
})  # fmt: skip
_HALVES: Final = (torch.float16, torch.bfloat16)


def check(func: Any, args: Sequence[Any]) -> None:
    """Raises RuntimeError if PyTorch would."""
    places = _ALIKE.get(func)
    if places is None:
        return
    given = [args[k] for k in places if k < len(args) and isinstance(args[k], Tensor)]
    dtypes = [x.dtype for x in given]
    first, *others = dtypes
    if all(dtype is first for dtype in others):
        return
    if func in _NORMS and first in _HALVES and set(others) == {torch.float32}:
        return
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    raise RuntimeError(f"expected operands of one dtype, but got {names}")
