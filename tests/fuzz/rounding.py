"""Eager PyTorch with other roundings: a sample of the results that rounding alone allows.

    with Rounding(generator):
        out = program(x)        # each op that rounds gives a value one step off, at random

An op is exact where its result in float64 is the same number, as on small multiples of 1/4; its
result is not changed. Ops that sum (products, convolutions, `sum`, `mean`) have their operands
changed by half a step each instead, which is the effect of another order of addition. Draws of
random numbers, copies and selections do not round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_SUMS = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "sum",
    "nansum",
    "mean",
    "dot",
    "mv",
    "cumsum",
    "prod",
    "logsumexp",
    "_cdist_forward",
    "linear",
    "matmul",
    "avg_pool2d",
    "addmv",
    "_adaptive_avg_pool2d",
    "index_add",
    "embedding_dense_backward",
    "einsum",
    "cumprod",
}
_EXACT = {
    "clone",
    "copy_",
    "neg",
    "abs",
    "relu",
    "where",
    "index",
    "gather",
    "cat",
    "stack",
    "amax",
    "amin",
    "max",
    "min",
    "sort",
    "topk",
    "masked_fill",
    "index_select",
    "embedding",
    "constant_pad_nd",
    "maximum",
    "minimum",
    "clamp",
    "clamp_min",
    "clamp_max",
    "fill_",
    "zero_",
    "roll",
    "flip",
    "tril",
    "triu",
    "max_pool2d_with_indices",
    "aminmax",
    "kthvalue",
    "median",
    "empty_like",
    "zeros_like",
    "fmod",
    "remainder",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "cummax",
    "repeat",
    "scatter",
}


class Rounding(TorchDispatchMode):
    """The mode; draws from a generator of its own, so that dropout draws what it would."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _EXACT or func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        changes = func._schema.is_mutable
        if changes:
            out = func(*args, **kwargs)
            for x, slot in zip(args, func._schema.arguments, strict=False):
                if slot.alias_info is not None and slot.alias_info.is_write:
                    tree_map(self._moved_in_place, x)
            return out
        if _exact(func, args, kwargs):
            return func(*args, **kwargs)
        if name in _SUMS:
            out = func(*tree_map(self._moved, args), **kwargs)
        else:
            out = func(*args, **kwargs)
        tree_map(self._moved_in_place, out)
        return out

    def _moved(self, x: Any) -> Any:
        if not _is_float(x):
            return x
        y = x.clone()
        self._moved_in_place(y, 0.5)
        return y

    def _moved_in_place(self, x: Any, steps: float = 1.0) -> None:
        if not _is_float(x) or not x.numel() or 0 in x.stride():
            return
        noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        moved = x.double() * (1 + noise * torch.finfo(x.dtype).eps * steps)
        x.copy_(
            moved.clamp(-torch.finfo(x.dtype).max, torch.finfo(x.dtype).max).where(
                x.isfinite(), x.double()
            )
        )


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _exact(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the op gives in float64 what it gives as it is."""
    try:
        narrow = func(*args, **kwargs)
        if not _is_float(narrow) or narrow.dtype is torch.float64:
            return not isinstance(narrow, tuple | list) and not _is_float(narrow)
        wide = func(
            *tree_map(lambda x: x.double() if _is_float(x) else x, args),
            **{
                k: torch.float64 if isinstance(v, torch.dtype) and v.is_floating_point else v
                for k, v in kwargs.items()
            },
        )
    except Exception:
        return False
    return bool(torch.equal(narrow.double().nan_to_num(7.5), wide.double().nan_to_num(7.5)))
