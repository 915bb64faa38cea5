"""What PyTorch's own CPU kernels allocate inside themselves: an upper bound.

In: an ATen op, its arguments and its result. Out: bytes beyond the result. Ops that are not in the
table allocate nothing worth counting; the bounds were found by measuring, see `tests/memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def scratch_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """See the module's text."""
    bound = _BOUNDS.get(func)
    return 0 if bound is None else int(bound(args, result))


_BOUNDS: dict[Any, Callable[[Sequence[Any], Any], int]] = {}
