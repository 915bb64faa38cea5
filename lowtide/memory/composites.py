"""Ops that PyTorch has in terms of other ops: where autograd is left out, a mode sees them whole.

with torch.inference_mode(): torch.cov(x)      aten.cov, whose parts are what takes memory
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_KEY: Final = "CompositeImplicitAutograd"


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether it is one."""
    has_kernel = _C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), _KEY) and not has_kernel(func.name(), "Meta")


def parts(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the op gives, by the ops that PyTorch's own kernel calls: for some it has others in
    Python, too, which take more or less."""
    return func._op_dk(getattr(_C.DispatchKey, _KEY), *args, **kwargs)
