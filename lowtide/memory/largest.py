"""The largest possible results of ops whose result sizes depend on data.

In: an ATen op and its arguments, on the meta device. Out: a result of the largest size and a note,
or (None, "") for any other op.

    x[x > 0]     x: [N]          at most N
    nonzero(x)   x: [N, M]       at most [N * M, 2]
    bincount(x)  x: [N]          `minlength`, or N; larger numbers give more, as the note says
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.torch_private.dispatch import schema_of

aten = torch.ops.aten
DEPENDS: Final = (
    "the size of the result of `{}` depends on the data: counted as the largest it can be"
)

_COUNTS: Final = "the result of `{}` is counted with `minlength` bins, or one bin for each element"


def largest(func: Any, args: Sequence[Any]) -> tuple[Any, str]:
    """Return the largest result and a note; see the module's text."""
    if func is aten.index.Tensor:
        return _masked(args)
    make = _MAKERS.get(func)
    if make is None:
        return None, ""
    note = _COUNTS if make is _counts else DEPENDS
    return make(*args), note.format(schema_of(func).name.removeprefix("aten::").strip("_2"))


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.new_empty((torch.logical_and(x, mask).numel(),))


def _unique(
    x: torch.Tensor, _: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[torch.Tensor, ...]:
    return _consecutive(x, inverse, counts)


def _consecutive(
    x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, ...]:
    values = x.new_empty(x.numel() if dim is None else x.shape)
    length = x.numel() if dim is None else x.shape[dim]
    places = x.shape if dim is None else (length,)
    return (
        values,
        x.new_empty(places if inverse else 0, dtype=torch.int64),
        x.new_empty(length if counts else 0, dtype=torch.int64),
    )


def _unique_dim(x: torch.Tensor, dim: int, *_: bool) -> tuple[torch.Tensor, ...]:
    return _consecutive(x, True, True, dim)


def _counts(x: torch.Tensor, weights: torch.Tensor | None = None, least: int = 0) -> torch.Tensor:
    is_double = weights is not None and weights.dtype is not torch.float32
    dtype = torch.int64 if weights is None else torch.float64 if is_double else torch.float32
    return x.new_empty((least or x.numel(),), dtype=dtype)


def _masked(args: Sequence[Any]) -> tuple[Any, str]:
    """Compute `x[mask]`, with the mask as indices."""
    x, items = args
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in items):
        return None, ""
    indices: list[torch.Tensor | None] = []
    for item in items:
        if item is None or item.dtype not in (torch.bool, torch.uint8):
            indices.append(item)
        else:
            found = _nonzero(item)
            indices += [found[:, k] for k in range(item.dim())]
    return aten.index.Tensor(x, indices), DEPENDS.format("getitem")


_MAKERS: dict[Any, Any] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _consecutive,
    aten.unique_dim.default: _unique_dim,
    aten.bincount.default: _counts,
}
