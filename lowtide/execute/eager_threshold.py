"""Finds regions in a loop's step that are so small that PyTorch runs them faster.

In: a region's specialised ops. Out: whether they are few, and the bytes of their results.

    for i in range(n):
        s = s + x[i]            one op of one element: PyTorch takes 5 µs with its gradient

Recording and running a kernel's gradient takes as long as six of PyTorch's ops on few elements, and
fusion saves almost no memory there. Without gradients, a launch takes no longer than two ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir.core import Op
from lowtide.specialise.abstract import Abs
from lowtide.texpr.build import Val
from lowtide.texpr.index import Index, as_index, product

MOST_BYTES: Final = 1 << 15
WHY: Final = "each step is so small that recording a kernel would take longer"
_FEW: Final = 4
_SIMPLE: Final = ("pointwise", "reduction", "contraction", "view", "copy", "factory")
_SIZE_QUERIES: Final = ("size",)


def are_few(ops: Sequence[Op]) -> bool:
    """Whether the ops are so few that PyTorch is as fast on few elements."""
    work = [
        op
        for op in ops
        if op.name.startswith("torch.") and not opdefs.has_kind(op.name, _SIZE_QUERIES)
    ]
    is_simple = all(opdefs.has_kind(op.name, _SIMPLE) for op in work)
    return is_simple and len(work) <= _FEW and not any(op.blocks for op in ops)


def bytes_of(values: Iterable[Abs]) -> Index:
    """Return the bytes of the tensors among the values."""
    tensors = [v.value for v in values if isinstance(v.value, Val)]
    return sum((product(x.shape) * x.dtype.itemsize for x in tensors), as_index(0))
