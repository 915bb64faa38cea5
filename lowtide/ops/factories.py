"""Factories: tensors from sizes and numbers.

    torch.arange(n)   →   t[i] = i          zeros_like(x)   →   t[i, j] = 0

Only on the region's device: `device` must name it, or be omitted if it is the default. `empty`
gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ir.effects import Effects
from lowtide.ops.operands import (
    Number,
    Size,
    Term,
    check_fits,
    default_float,
    from_torch,
    number,
    number_dtype,
    size_list,
)
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv

OPTIONS: Final = (
    "*, dtype: dtype? = None, layout: any? = None, device: device? = None, "
    "requires_grad: bool = False, pin_memory: bool? = None"
)
LIKE: Final = (
    "*, dtype: dtype? = None, layout: any? = None, device: device? = None, "
    "requires_grad: bool = False, memory_format: any? = None"
)
Fill = Callable[[Builder, DType], Expr]


def check_device(b: Builder, device: Any) -> None:
    """Check the device: all tensors of a region lie on one."""
    wanted = torch.device(device)
    same = wanted.type == b.device.type and wanted.index == b.device.index
    if wanted == torch.device(wanted.type) and wanted.type == b.device.type:
        same = wanted.type == "cpu" or torch.cuda.device_count() == 1  # the current one
    if not same:
        raise Unsupported(f"device {device}")


def _check_options(
    b: Builder, layout: Any, device: Any, requires_grad: Any, rest: Any, like: bool = False
) -> None:
    """`like`: without a device, it is that of a tensor."""
    if device is not None or not like:
        check_device(b, b.default_device if device is None else device)
    if layout not in (None, torch.strided) or requires_grad or rest not in (None, False):
        raise Unsupported("layout, requires_grad, pin_memory or memory_format")


def filled(b: Builder, shape: Sequence[Size], dtype: DType, value: Number) -> Val:
    """Return one number everywhere."""
    extents = [b.extent(s, f"size {s} in a shape") for s in shape]
    return b.tensor(extents, dtype, lambda _: _cast_number(b, value, dtype))


def _cast_number(b: Builder, value: Number, dtype: DType) -> Expr:
    check_fits(b, dtype, value)
    if isinstance(value, bool | int | float):
        if not dtype.is_float and isinstance(value, float):
            if not math.isfinite(value):
                raise Unsupported("infinity or NaN as an int")
            value = bool(value) if dtype is dtypes.boolean else int(value)
        if dtype is dtypes.boolean:
            value = bool(value)
    return number(b, value, dtype)


# ---- of given sizes ---------------------------------------------------------------------------

_MOST_ELEMENTS: Final = 2.0**62
_VALUE: Final = {"zeros": 0, "ones": 1, "empty": 0}


def _sized(value: int) -> Lower:
    def lower(
        b: Builder, size: Any, dtype: Any, layout: Any, device: Any, requires_grad: Any, pin: Any
    ) -> Val:
        _check_options(b, layout, device, requires_grad, pin)
        record = default_float() if dtype is None else from_torch(dtype)
        return filled(b, size_list(size), record, value)

    return lower


def _like(value: int) -> Lower:
    def lower(
        b: Builder, x: Val, dtype: Any, layout: Any, device: Any, requires_grad: Any, rest: Any
    ) -> Val:
        _check_options(b, layout, device, requires_grad, None, like=True)
        del rest  # memory_format: the specialiser chooses the layout
        return filled(b, x.shape, x.dtype if dtype is None else from_torch(dtype), value)

    return lower


def _new(value: int) -> Lower:
    def lower(
        b: Builder, x: Val, size: Any, dtype: Any, layout: Any, device: Any, grad: Any, pin: Any
    ) -> Val:
        _check_options(b, layout, device, grad, pin, like=True)
        record = x.dtype if dtype is None else from_torch(dtype)
        return filled(b, size_list(size), record, value)

    return lower


for _name, _value in _VALUE.items():
    add_op(
        _name,
        f"(*size: int[], {OPTIONS}) -> Tensor",
        f"torch.{_name}",
        kind="factory",
        effects=Effects.MAKES | Effects.RAISES,
        lower=_sized(_value),
    )
    add_op(
        f"{_name}_like",
        f"(self: Tensor, {LIKE}) -> Tensor",
        f"torch.{_name}_like",
        kind="factory",
        effects=Effects.MAKES | Effects.RAISES,
        lower=_like(_value),
    )
    add_op(
        f"new_{_name}",
        f"(self: Tensor, *size: int[], {OPTIONS}) -> Tensor",
        f"Tensor.new_{_name}",
        kind="factory",
        effects=Effects.MAKES | Effects.RAISES,
        lower=_new(_value),
    )


@op(
    "full",
    f"(size: int[], fill_value: Scalar, {OPTIONS}) -> Tensor",
    "torch.full",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_full(
    b: Builder, size: Any, value: Number, dtype: Any, layout: Any, device: Any, grad: Any, pin: Any
) -> Val:
    """One number everywhere; its kind is the dtype's by default."""
    _check_options(b, layout, device, grad, pin)
    record = number_dtype(value) if dtype is None else from_torch(dtype)
    return filled(b, size_list(size), record, value)


@op(
    "full_like",
    f"(self: Tensor, fill_value: Scalar, {LIKE}) -> Tensor",
    "torch.full_like",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_full_like(
    b: Builder, x: Val, value: Number, dtype: Any, layout: Any, device: Any, grad: Any, rest: Any
) -> Val:
    """One number in the shape of self."""
    _check_options(b, layout, device, grad, None, like=True)
    del rest
    return filled(b, x.shape, x.dtype if dtype is None else from_torch(dtype), value)


@op(
    "new_full",
    f"(self: Tensor, size: int[], fill_value: Scalar, {OPTIONS}) -> Tensor",
    "Tensor.new_full",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_new_full(
    b: Builder, x: Val, size: Any, value: Number, dtype: Any, layout: Any, device: Any, grad: Any,
    pin: Any,
) -> Val:  # fmt: skip
    """One number, in the dtype of self."""
    _check_options(b, layout, device, grad, pin, like=True)
    return filled(b, size_list(size), x.dtype if dtype is None else from_torch(dtype), value)


@op(
    "tensor",
    "(data: Scalar, *, dtype: dtype? = None, device: device? = None, requires_grad: bool = False)"
    " -> Tensor",
    "torch.tensor",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_tensor(b: Builder, value: Number, dtype: Any, device: Any, grad: Any) -> Val:
    """A single number; `torch.tensor` of a list is left to PyTorch."""
    if isinstance(value, list | tuple):
        raise Unsupported("torch.tensor of a list")
    _check_options(b, None, device, grad, None)
    return filled(b, (), number_dtype(value) if dtype is None else from_torch(dtype), value)


# ---- ranges -----------------------------------------------------------------------------------


def _arange(b: Builder, start: Number, end: Number, step: Number, options: Sequence[Any]) -> Val:
    dtype, layout, device, grad, pin = options
    _check_options(b, layout, device, grad, pin)
    numbers = (start, end, step)
    if any(isinstance(v, Expr | bool) for v in numbers):
        raise Unsupported("arange with a number of the run")
    whole = all(isinstance(v, int | Index) for v in numbers)
    record = (dtypes.i64 if whole else default_float()) if dtype is None else from_torch(dtype)
    if record is dtypes.boolean:
        raise Unsupported("arange of bools")
    if whole:
        return _arange_ints(b, as_index_(start), as_index_(end), as_index_(step), record)
    first, last, by = (_plain_float(v) for v in numbers)
    if by == 0 or not record.is_float or (last - first) / by < 0:
        raise Unsupported("arange of no floats, or of floats as ints")
    count = (last - first) / by
    if not count < _MOST_ELEMENTS:
        raise Unsupported("arange of NaN, or of infinitely many floats")
    within = dtypes.f64

    def body(idx: tuple[Index, ...]) -> Expr:
        i = Term(b, b.cast(b.at(idx[0]), within))
        return (first + i * by).cast(record).expr

    return b.tensor([math.ceil(count)], record, body)


def _plain_float(v: Number) -> float:
    if isinstance(v, int | float):
        return float(v)
    if isinstance(v, Index) and v.const is not None:
        return float(v.const)
    raise Unsupported("arange of floats up to a size of the run")


def as_index_(v: Number) -> Index:
    assert isinstance(v, int | Index)
    return as_index(v)


def _arange_ints(b: Builder, start: Index, end: Index, step: Index, dtype: DType) -> Val:
    forward = b.at_least(step, 1)
    if not forward:
        if b.at_least(step, 0):
            raise b.error("arange with a step of 0")
        start, end, step, sign = -start, -end, -step, -1
    else:
        sign = 1
    if not b.at_least(end - start, 0):
        raise b.error("arange: the end lies before the start")
    length = b.extent(floordiv(end - start + step - 1, step), "arange: a negative length")
    return b.tensor(
        [length], dtype, lambda idx: b.cast(b.at((start + idx[0] * step) * sign), dtype)
    )


@op(
    "arange.end",
    f"(end: Scalar, {OPTIONS}) -> Tensor",
    "torch.arange",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_arange_end(b: Builder, end: Number, *options: Any) -> Val:
    """0, 1, ... below end."""
    return _arange(b, 0, end, 1, options)


@op(
    "arange",
    f"(start: Scalar, end: Scalar, step: Scalar = 1, {OPTIONS}) -> Tensor",
    "torch.arange",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_arange(b: Builder, start: Number, end: Number, step: Number, *options: Any) -> Val:
    """start, start + step, ... before end."""
    return _arange(b, start, end, step, options)


def _triangle(b: Builder, sizes: Sequence[Size], options: Sequence[Any], *, upper: bool) -> Val:
    """Return the places of half a square, row by row. Row and column are formulas of the place's
    number, so that what is read at them is a value of pairs that needs no list of pairs."""
    rows, columns, offset = (as_index(v) for v in sizes)
    dtype, layout, device, pin = options
    _check_options(b, layout, device, False, pin)
    if b.records:
        raise Unsupported("a list of pairs, for gradients")  # added up faster along a stored one
    skipped = offset.const if upper else (-offset).const
    if not b.equal(rows, columns) or skipped is None or skipped < 0:
        raise Unsupported("indices of a part that is no triangle")
    if not b.at_least(rows, 0):
        raise b.error("indices of a triangle of a negative size")
    n = rows - skipped
    count = floordiv(n * (n + 1), 2) if b.at_least(n, 1) else 0
    within = dtypes.f64  # exact: nobody has 2 ** 52 pairs

    def body(idx: tuple[Index, ...]) -> Expr:
        k, last = (Term(b, b.cast(b.at(i), within)) for i in (idx[1], n * 2 + 1))

        def before(row: Term) -> Term:  # how many places
            return row * ((last - row) if upper else (row + 1)) * 0.5

        root = (last * last - k * 8 if upper else k * 8 + 1).fn("sqrt")
        row = ((last - root if upper else root - 1) * 0.5).fn("floor")
        row = (before(row) > k).where(row - 1, row)  # the root was rounded
        row = (before(row + 1) <= k).where(row + 1, row)
        column = k - before(row)
        row, column = (row, column + row + skipped) if upper else (row + skipped, column)
        is_row = Term(b, b.at(idx[0])).equals(0)
        return is_row.where(row, column).cast(from_torch(dtype or torch.int64)).expr

    return b.tensor([2, count], from_torch(dtype or torch.int64), body)


_TRIANGLE: Final = (
    "(row: int, col: int, offset: int = 0, *, dtype: dtype? = None, layout: any? = None, "
    "device: device? = None, pin_memory: bool? = None) -> Tensor"
)


@op(
    "triu_indices",
    _TRIANGLE,
    "torch.triu_indices",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_triu_indices(b: Builder, row: Size, col: Size, offset: Size, *options: Any) -> Val:
    """The places above a diagonal, as rows and columns."""
    return _triangle(b, (row, col, offset), options, upper=True)


@op(
    "tril_indices",
    _TRIANGLE,
    "torch.tril_indices",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_tril_indices(b: Builder, row: Size, col: Size, offset: Size, *options: Any) -> Val:
    """The places below a diagonal, as rows and columns."""
    return _triangle(b, (row, col, offset), options, upper=False)


@op(
    "linspace",
    f"(start: Scalar, end: Scalar, steps: int, {OPTIONS}) -> Tensor",
    "torch.linspace",
    kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_linspace(b: Builder, start: Number, end: Number, steps: Size, *options: Any) -> Val:
    """`steps` numbers from start to end, counted from the nearer one."""
    dtype, layout, device, grad, pin = options
    _check_options(b, layout, device, grad, pin)
    record = default_float() if dtype is None else from_torch(dtype)
    if not record.is_float:
        raise Unsupported("linspace of ints")
    first, last = _plain_float(start), _plain_float(end)
    check_fits(b, record, first, last)
    if not b.at_least(steps, 0):
        raise b.error("linspace: a negative number of steps")
    if not b.at_least(steps, 2):
        return filled(b, [steps], record, first)
    within = dtypes.f64 if record is dtypes.f64 else dtypes.f32

    def body(idx: tuple[Index, ...]) -> Expr:
        def count(i: Index) -> Term:
            return Term(b, b.cast(b.at(i), within))

        i, n = idx[0], as_index(steps)
        by = Term(b, b.const(last - first, within)) / count(n - 1)
        low = Term(b, b.apply("lt", b.at(i), b.at(floordiv(n, 2))))
        return low.where(first + by * count(i), last - by * count(n - 1 - i)).cast(record).expr

    return b.tensor([steps], record, body)


@op("eye", f"(n: int, m: int? = None, {OPTIONS}) -> Tensor", "torch.eye", kind="factory",
    effects=Effects.MAKES | Effects.RAISES,
    eager=lambda n, m, dtype, layout, device, requires_grad, pin_memory: torch.eye(
        n, n if m is None else m, dtype=dtype, device=device, requires_grad=requires_grad),
)  # fmt: skip
def lower_eye(b: Builder, n: Size, m: Size | None, *options: Any) -> Val:
    """1 on the diagonal, else 0."""
    dtype, layout, device, grad, pin = options
    _check_options(b, layout, device, grad, pin)
    record = default_float() if dtype is None else from_torch(dtype)

    def body(idx: tuple[Index, ...]) -> Expr:
        return b.cast(b.apply("eq", b.at(idx[0]), b.at(idx[1])), record)

    sizes = [b.extent(s, "eye of a negative size") for s in (n, n if m is None else m)]
    return b.tensor(sizes, record, body)
