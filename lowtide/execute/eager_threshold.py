"""Finds regions between ops of PyTorch that are so small that PyTorch runs them faster.

In: a region's specialised ops. Out: the bytes of their values up to which PyTorch is faster.

    for i in range(n):
        s = s + x[i]            one op of one element: PyTorch takes 5 µs with its gradient

    y = F.relu(conv(x))         one op: a kernel saves nothing

Recording and running a kernel's gradient takes as long as four of PyTorch's ops on few elements,
and fusion saves almost no memory there. Without gradients, a launch takes no longer than two ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir.core import Op
from lowtide.specialise.abstract import Abs
from lowtide.texpr.build import Val
from lowtide.texpr.index import Index, as_index, product

_FEW: Final = 4  # ops of a loop's step
_MOST_BYTES: Final = 1 << 15
_MOST_BYTES_OF_ONE: Final = 1 << 19  # of a single op
WHY: Final = "so small that recording a kernel would take longer"
_SIMPLE: Final = ("pointwise", "reduction", "contraction", "view", "copy", "factory")
_SIZE_QUERIES: Final = ("size",)


def limit_bytes(ops: Sequence[Op], is_repeated: bool) -> int:
    """Return up to how many bytes of all values PyTorch is as fast; 0 if these are not few ops:
    one, or four in a loop's step."""
    work = [
        op
        for op in ops
        if op.name.startswith("torch.") and not opdefs.has_kind(op.name, _SIZE_QUERIES)
    ]
    is_simple = all(opdefs.has_kind(op.name, _SIMPLE) for op in work)
    if not is_simple or any(op.blocks for op in ops):
        return 0
    if len(work) == 1:
        return _MOST_BYTES_OF_ONE
    return _MOST_BYTES if is_repeated and len(work) <= _FEW else 0


def bytes_of(values: Iterable[Abs]) -> Index:
    """Return the bytes of the tensors among the values."""
    tensors = [v.value for v in values if isinstance(v.value, Val)]
    return sum((product(x.shape) * x.dtype.itemsize for x in tensors), as_index(0))
