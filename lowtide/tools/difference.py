"""The difference between two results: tensors, or nests of tuples, lists and dicts of them.

In: a reference and a candidate. Out: a `Difference`. Values are compared in float64, integers and
bools exactly; NaN equals NaN and an infinity equals itself. Large tensors are compared piece by
piece, so that the comparison itself needs little memory.

The default relative tolerance is `eps ** (2/3)` of the dtype (2.4e-5 for float32). The default
absolute tolerance is the same share of the largest finite element of the reference: the rounding
error of a sum of terms of size s is a few eps times s, even if the sum is near zero.

    difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).max_abs     # 0.5
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_PIECE_ELEMENTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`max_rel`: over elements where the reference is not 0. `note`: what disagrees."""

    max_abs: float
    max_rel: float
    agrees: bool
    note: str = ""


def default_tolerance(dtype: torch.dtype) -> float:
    """Return the relative tolerance for a dtype: 0 for integers and bools."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return torch.finfo(dtype).eps ** (2 / 3)


def difference(
    reference: object,
    candidate: object,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Difference:
    """Compare two results; different structures, shapes or dtypes do not agree."""
    max_abs = max_rel = 0.0
    note = ""
    for place, one, other in _pairs(reference, candidate, ""):
        found = _leaf_difference(one, other, rtol, atol)
        max_abs = _larger(max_abs, found.max_abs)
        max_rel = _larger(max_rel, found.max_rel)
        if not found.agrees and not note:
            note = f"{place}: {found.note}" if place else found.note
    return Difference(max_abs=max_abs, max_rel=max_rel, agrees=not note, note=note)


def _pairs(one: object, other: object, place: str) -> Iterator[tuple[str, object, object]]:
    """Yield the leaves of two nests in pairs, with the path of each: `[0]["loss"]`."""
    one_items, other_items = _items(one), _items(other)
    if one_items is None or other_items is None or one_items.keys() != other_items.keys():
        yield place, one, other
        return
    for key, item in one_items.items():
        yield from _pairs(item, other_items[key], f"{place}[{key!r}]")


def _items(value: object) -> dict[object, object] | None:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return dict(enumerate(value))  # pyright: ignore[reportUnknownArgumentType]
    return None


def _leaf_difference(
    one: object, other: object, rtol: float | None, atol: float | None
) -> Difference:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _tensor_difference(one.detach(), other.detach(), rtol, atol)
    if isinstance(one, int | float) and isinstance(other, int | float):
        dtype = torch.float64 if isinstance(one, float) or isinstance(other, float) else torch.int64
        return _tensor_difference(
            torch.tensor(one, dtype=dtype), torch.tensor(other, dtype=dtype), rtol, atol
        )
    if type(one) is type(other) and _items(one) is None:
        if one == other:
            return Difference(max_abs=0.0, max_rel=0.0, agrees=True)
        return _unlike(f"{other!r:.60}, not {one!r:.60}")
    return _unlike(f"{_kind(other)}, not {_kind(one)}")


def _kind(value: object) -> str:
    items = _items(value)
    return type(value).__name__ if items is None else f"{type(value).__name__} of {len(items)}"


def _unlike(note: str) -> Difference:
    return Difference(max_abs=math.nan, max_rel=math.nan, agrees=False, note=note)


def _tensor_difference(
    one: Tensor, other: Tensor, rtol: float | None, atol: float | None
) -> Difference:
    if one.shape != other.shape:
        return _unlike(f"shape {list(other.shape)}, not {list(one.shape)}")
    if one.dtype != other.dtype:
        return _unlike(f"dtype {other.dtype}, not {one.dtype}")
    if rtol is None:
        rtol = default_tolerance(one.dtype)
    if atol is None:
        share = default_tolerance(one.dtype)
        atol = share * _largest_finite(one) if share else 0.0
    max_abs = max_rel = 0.0
    outside = 0
    for left, right in _pieces(one, other):
        piece_abs, piece_rel, piece_outside = _piece_difference(left, right, rtol, atol)
        max_abs, max_rel = _larger(max_abs, piece_abs), _larger(max_rel, piece_rel)
        outside += piece_outside
    note = f"{outside} of {one.numel()} elements differ" if outside else ""
    return Difference(max_abs=max_abs, max_rel=max_rel, agrees=not outside, note=note)


def _piece_difference(
    one: Tensor, other: Tensor, rtol: float, atol: float
) -> tuple[float, float, int]:
    same = (one == other) | ((one != one) & (other != other))
    left, right = _widened(one)[~same], _widened(other)[~same]
    if not left.numel():
        return 0.0, 0.0, 0
    gap = (left - right).abs()
    size = left.abs()
    outside = int((~(gap <= atol + rtol * size) | ~torch.isfinite(size)).sum())
    relative = (gap / size)[size != 0]
    max_rel = float(relative.max()) if relative.numel() else 0.0
    return float(gap.max()), max_rel, outside


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest_finite(tensor: Tensor) -> float:
    largest = 0.0
    for piece, _ in _pieces(tensor, tensor):
        finite = piece[torch.isfinite(piece)]
        if finite.numel():
            largest = max(largest, float(finite.abs().max()))
    return largest


def _pieces(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield views of both tensors, cut in the same way, of at most `_PIECE_ELEMENTS` elements."""
    if one.numel() == 0:
        return
    if one.numel() <= _PIECE_ELEMENTS:
        yield one, other
        return
    axis = max(range(one.dim()), key=lambda dim: one.shape[dim])
    half = one.shape[axis] // 2
    for start, length in ((0, half), (half, one.shape[axis] - half)):
        yield from _pieces(one.narrow(axis, start, length), other.narrow(axis, start, length))


def _larger(one: float, other: float) -> float:
    """Return the larger; NaN, for values that cannot be compared, is the largest."""
    return other if math.isnan(other) or other > one else one
