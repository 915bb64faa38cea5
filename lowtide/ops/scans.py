"""Running sums and products, where there is no library: recurrences along a dim.

    cumsum(x, 0)   →   delay c[i, j] = t[i - 1, j] from 0          t[i, j] = c[i, j] + x[i, j]

Those of f32 are taken in f64 on the CPU, as PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.library import LIBRARY, require_kernels
from lowtide.ops.operands import Size, cast_to, dim_of, wide_on
from lowtide.ops.reductions import sum_dtype
from lowtide.ops.registry import op
from lowtide.ops.views import permute
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Delay, Expr
from lowtide.texpr.index import Index, as_index


class Carry:
    """The value that each of `steps` steps gets from the one before it, and `first` at the first.
    Steps are the first dim. `reverse`: the last step is the first."""

    def __init__(self, b: Builder, first: Val, steps: Size, *, reverse: bool = False) -> None:
        if b.loops or b.mask is not None or b.records:
            raise Unsupported("a recurrence within a loop or branch")
        self.b = b
        self.first = first
        self.reverse = reverse
        shape: list[Size] = [steps, *first.shape]
        name = b.axis(0).name.replace("i", "carry")
        self.before = Val(name, tuple(shape), first.dtype)

    def becomes(self, after: Val) -> Val:
        """Define the value that each step leaves. Return that of the last step."""
        b, before = self.b, self.before
        steps = as_index(before.shape[0])
        b.program.delays[before.name] = Delay(
            name=before.name,
            source=after.name,
            init=self.first.name,
            shape=tuple(as_index(s) for s in before.shape),
            dtype=before.dtype,
            reverse=self.reverse,
            loc=b.loc,
            why=f"each step of {b.op} needs what the one before it computed",
        )
        last = as_index(0) if self.reverse else steps - 1
        return b.tensor(before.shape[1:], before.dtype, lambda idx: b.load(after, (last, *idx)))


def _running(fn: str, start: float) -> Callable[..., Val]:
    def lower(b: Builder, x: Val, dim: Any, dtype: torch.dtype | None) -> Val:
        """Return the running reduction along a dim."""
        require_kernels(b)
        result = sum_dtype(x, dtype)
        if result is dtypes.boolean:
            raise Unsupported("a running sum of bools")
        x = cast_to(b, x, result)
        d = dim_of(b, dim, x.ndim)
        if x.ndim == 0:
            return b.tensor((), result, lambda idx: b.load(x, idx))
        if not all(b.at_least(size, 1) for size in x.shape):
            return b.tensor(x.shape, result, lambda idx: b.load(x, idx))
        order = [d, *(k for k in range(x.ndim) if k != d)]
        moved = permute(b, x, order)
        found = _along_first(b, moved, fn, start, wide_on(b, result) if result.is_float else result)
        found = permute(b, found, [order.index(k) for k in range(x.ndim)])
        return cast_to(b, found, result)

    return lower


def _along_first(b: Builder, x: Val, fn: str, start: float, within: DType) -> Val:
    rest: Sequence[Size] = x.shape[1:]
    first = b.tensor(rest, within, lambda _: b.const(start, within))
    carry = Carry(b, first, x.shape[0])

    def body(idx: tuple[Index, ...]) -> Expr:
        return b.apply(fn, b.load(carry.before, idx), b.cast(b.load(x, idx), within))

    found = b.tensor(x.shape, within, body)
    carry.becomes(found)
    return found


for _name, _fn, _start in (("cumsum", "add", 0), ("cumprod", "mul", 1)):
    op(
        _name,
        "(self: Tensor, dim: int, *, dtype: dtype? = None) -> Tensor",
        f"torch.{_name} Tensor.{_name}",
        kind=LIBRARY,
    )(_running(_fn, _start))
