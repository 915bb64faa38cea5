"""Ops that PyTorch has in terms of other ops: where autograd is left out, a mode sees them whole.

with torch.inference_mode(): torch.cov(x)      aten.cov, whose parts are what takes memory
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

_has_kernel: Final[Any] = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether `func.decompose(…)` runs what the op is made of."""
    name = func.name()
    return _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "Meta")
