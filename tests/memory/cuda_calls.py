"""Calls on CUDA, and the memory that they take there."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
Around = Callable[[], AbstractContextManager[Any]]


def run(compiled: Any, x: Any, around: Around = contextlib.nullcontext) -> object:
    """The call, within `around`, and its gradients outside."""
    with around():
        result = compiled(x)
    found = [y for y in torch.utils._pytree.tree_leaves(result) if isinstance(y, Tensor)]
    carrying = [y for y in found if y.requires_grad]
    if carrying:
        torch.autograd.backward(carrying, [torch.ones_like(y) for y in carrying])
    return result


def requested(
    compiled: Any, module: nn.Module, x: Any, around: Around = contextlib.nullcontext
) -> int:
    """Bytes that PyTorch's allocator was asked for in the second call, at the peak."""
    for _ in range(2):
        x.grad = None
        module.zero_grad()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        run(compiled, x, around)
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    return peak
