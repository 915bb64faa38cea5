"""Helpers of lowerings: promotion, broadcasting, dims, elements of operands, formulas of terms.

In: abstract operands (`Val`, Python numbers, `Index`, `Expr`). Out: dtypes, shapes and expressions.

    pointwise(b, [x, 2], common, lambda x, two: x * two)      x: [N, M] bf16
    →  t[i, j] = bf16(f32(x[i, j]) * 2.0)

Arithmetic is done in the compute dtype (f32 for bf16 and f16) and cast back at the end of the op.
Promotion is PyTorch's own rule: tensors with dimensions first, then 0-dim tensors, then numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, cast

import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Axis, Index, as_index, product
from lowtide.texpr.index_ranges import floordiv, mod

Size = Index | int
Number = int | float | bool | Index | Expr
Operand = Val | Number
Body = Callable[[tuple[Index, ...]], Expr]

INF = float("inf")


class Term:
    """An expression with Python's operators, to write formulas in: `0.5 * x * (1 + x.fn("tanh"))`.

    Python numbers become constants of the term's own dtype."""

    __slots__ = ("b", "expr")

    def __init__(self, b: Builder, expr: Expr) -> None:
        self.b = b
        self.expr = expr

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    def like(self, value: Term | float) -> Term:
        """Return a number as a constant of this term's dtype."""
        if isinstance(value, Term):
            return value
        return Term(self.b, self.b.const(value, self.dtype))

    def fn(self, name: str, *others: Term | float) -> Term:
        """Return a pointwise function of this term, by its texpr name."""
        args = [self.expr, *(self.like(o).expr for o in others)]
        return Term(self.b, self.b.apply(name, *args))

    def cast(self, dtype: DType) -> Term:
        return Term(self.b, self.b.cast(self.expr, dtype))

    def where(self, yes: Term | float, no: Term | float) -> Term:
        """Return `yes` where this bool term holds, else `no`; one of them must be a term."""
        like = yes if isinstance(yes, Term) else no
        assert isinstance(like, Term)
        picked = self.b.select(self.expr, like.like(yes).expr, like.like(no).expr)
        return Term(self.b, picked)

    def __add__(self, o: Term | float) -> Term:
        return self.fn("add", o)

    def __sub__(self, o: Term | float) -> Term:
        return self.fn("sub", o)

    def __mul__(self, o: Term | float) -> Term:
        return self.fn("mul", o)

    def __truediv__(self, o: Term | float) -> Term:
        return self.fn("div", o)

    def __radd__(self, o: float) -> Term:
        return self.like(o) + self

    def __rsub__(self, o: float) -> Term:
        return self.like(o) - self

    def __rmul__(self, o: float) -> Term:
        return self.like(o) * self

    def __rtruediv__(self, o: float) -> Term:
        return self.like(o) / self

    def __neg__(self) -> Term:
        return self.fn("neg")

    def __lt__(self, o: Term | float) -> Term:
        return self.fn("lt", o)

    def __le__(self, o: Term | float) -> Term:
        return self.fn("le", o)

    def __gt__(self, o: Term | float) -> Term:
        return self.fn("gt", o)

    def __ge__(self, o: Term | float) -> Term:
        return self.fn("ge", o)

    def equals(self, o: Term | float) -> Term:
        return self.fn("eq", o)

    def __and__(self, o: Term) -> Term:
        return self.fn("and", o)

    def __or__(self, o: Term) -> Term:
        return self.fn("or", o)


Formula = (
    Callable[[Term], Term]
    | Callable[[Term, Term], Term]
    | Callable[[Term, Term, Term], Term]
    | Callable[[Term, Term, Term, Term], Term]
)

# ---- dtypes -----------------------------------------------------------------------------------


def compute(dtype: DType) -> DType:
    """Return the dtype in which arithmetic on `dtype` is done; u8 for bool."""
    return dtypes.u8 if dtype is dtypes.boolean else dtypes.BY_NAME[dtype.compute]


def wide_on(b: Builder, dtype: DType) -> DType:
    """Return the dtype in which PyTorch computes moments: f64 for f32 on the CPU, else the compute
    dtype."""
    return dtypes.f64 if dtype is dtypes.f32 and b.device.type == "cpu" else compute(dtype)


def from_torch(dtype: torch.dtype) -> DType:
    """Return the record of a torch dtype; raises Unsupported for complex, int16, ..."""
    found = dtypes.from_torch(dtype)
    if found is None:
        raise Unsupported(f"dtype {dtype}")
    return found


def default_float() -> DType:
    return from_torch(torch.get_default_dtype())


def number_dtype(x: Number) -> DType:
    """Return the dtype that a number has in promotion: bool, i64, or the default float."""
    if isinstance(x, bool):
        return dtypes.boolean
    if isinstance(x, int | Index):
        return dtypes.i64
    if isinstance(x, float):
        return default_float()
    return default_float() if x.dtype.is_float else x.dtype


def promote(*operands: Operand) -> DType:
    """Return `torch.result_type` of any number of operands."""
    groups: list[DType | None] = [None, None, None]  # with dimensions, 0-dim, numbers
    for x in operands:
        if isinstance(x, Val):
            which, dtype = (0 if x.ndim else 1), x.dtype
        else:
            which, dtype = 2, number_dtype(x)
        groups[which] = promote_types(groups[which], dtype)
    dims, zero, number = groups
    found = _with_precedence(dims, _with_precedence(zero, number))
    assert found is not None
    return found


def promote_types(a: DType | None, b: DType | None) -> DType | None:
    if a is None or b is None:
        return a or b
    return from_torch(torch.promote_types(a.torch, b.torch))


def _with_precedence(higher: DType | None, lower: DType | None) -> DType | None:
    """Return `combine_categories` of ATen: the lower category counts only if it is of a higher
    kind."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_float:
        return higher
    if higher is dtypes.boolean or lower.is_float:
        return promote_types(higher, lower)
    return higher


def to_float(dtype: DType) -> DType:
    """Return `dtype`, or the default float for ints and bools."""
    return dtype if dtype.is_float else default_float()


def require_float(*xs: Val | None) -> None:
    """Require floats; other tensors are left to PyTorch."""
    for x in xs:
        if x is not None and not x.dtype.is_float:
            raise Unsupported(f"a float operation on {x.dtype}")


def same_dtype(*xs: Val | None) -> DType:
    """Return the common dtype of all tensors; mixed ones are left to PyTorch."""
    found = {x.dtype for x in xs if x is not None}
    if len(found) != 1:
        raise Unsupported(f"mixed dtypes {sorted(d.name for d in found)}")
    return found.pop()


# ---- shapes -----------------------------------------------------------------------------------


def dim_of(b: Builder, dim: Any, ndim: int) -> int:
    """Return a dimension in [0, ndim); 0-dim tensors count as having one."""
    value = b.static_int(dim)
    bound = max(ndim, 1)
    if not -bound <= value < bound:
        raise b.error(f"dim {value} of a tensor with {ndim} dimensions")
    return value % bound


def dims_of(b: Builder, dim: Any, ndim: int) -> tuple[int, ...]:
    """Distinct dimensions in order; None or an empty list means all."""
    if dim is None or (is_list(dim) and not dim):
        return tuple(range(ndim))
    given = dim if is_list(dim) else [dim]
    dims = sorted(dim_of(b, d, ndim) for d in given)
    if len(set(dims)) != len(dims):
        raise b.error("a dim appears twice")
    return tuple(dims) if ndim else ()


def broadcast(b: Builder, *shapes: Sequence[Size]) -> tuple[Size, ...]:
    """Return the broadcast shape; sizes that must agree are required to."""
    ndim = max((len(s) for s in shapes), default=0)
    out: list[Size] = []
    for back in range(ndim, 0, -1):
        given = [shape[-back] for shape in shapes if back <= len(shape)]
        size: Size = 1
        if all(as_index(s) is as_index(given[0]) for s in given):
            out.append(given[0])
            continue
        for other in given:
            if b.is_one(other):
                continue
            if isinstance(size, int) and size == 1:
                size = other
            else:
                b.require_equal(size, other, f"sizes {size} and {other}")
        out.append(size)
    return tuple(out)


def broadcast_index(b: Builder, shape: Sequence[Size], idx: Sequence[Index]) -> list[Index]:
    """Return the index into a tensor of `shape` for an element `idx` of what it is broadcast to."""
    last = idx[len(idx) - len(shape) :]
    return [
        i if _runs_over(i, s) else as_index(0) if b.is_one(s) else i
        for s, i in zip(shape, last, strict=True)
    ]


def _runs_over(index: Index, size: Size) -> bool:
    """Return whether the index is an axis of just this size, which is not known to be 1."""
    if isinstance(size, int) or len(index.terms) != 1:
        return False
    axes = [a for a in index.atoms() if isinstance(a, Axis)]
    return len(axes) == 1 and index is as_index(axes[0]) and axes[0].extent is size


def ravel(idx: Sequence[Index], shape: Sequence[Size]) -> Index:
    """Return the row-major linear index."""
    linear = as_index(0)
    for i, size in zip(idx, shape, strict=True):
        linear = linear * size + i
    return linear


def unravel(linear: Index, shape: Sequence[Size]) -> tuple[Index, ...]:
    """Return the inverse of `ravel`."""
    idx: list[Index] = []
    for k in range(len(shape)):
        inner = product(shape[k + 1 :])
        part = floordiv(linear, inner) if inner.const != 0 else as_index(0)
        if k and not (isinstance(shape[k], int) and shape[k] == 0):
            part = mod(part, shape[k])
        idx.append(part)
    return tuple(idx)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether the value is a list operand."""
    return isinstance(value, list | tuple)


def size_list(value: Any) -> list[Size]:
    """Return the sizes in a list operand: (2, 3), or 5 for (5,)."""
    sizes: list[Any] = list(value) if is_list(value) else [value]
    if not all(isinstance(s, int | Index) and not isinstance(s, bool) for s in sizes):
        raise Unsupported("a size that is a bool, or known only at run time")
    return sizes


def numel(x: Val) -> Size:
    total = product(x.shape)
    return total if total.const is None else total.const


# ---- elements ---------------------------------------------------------------------------------


def element(
    b: Builder, x: Operand, idx: Sequence[Index], dtype: DType, exact: bool = False
) -> Expr:
    """Return the element of an operand at an index of the broadcast shape, in the compute dtype.

    A number is rounded to `dtype` before that, as PyTorch does, but for what it calls `exact`.
    """
    target = compute(dtype)
    if isinstance(x, Val):
        value = b.load(x, broadcast_index(b, x.shape, idx))
        return b.cast(b.cast(value, dtype), target)
    return number(b, x, target) if exact else b.cast(number(b, x, dtype), target)


def number(b: Builder, x: Number, dtype: DType) -> Expr:
    """Return a number as an expression."""
    if isinstance(x, Index):
        return b.cast(b.at(x), dtype)
    if isinstance(x, Expr):
        return b.cast(x, dtype)
    if not dtype.is_float:
        if isinstance(x, float) and not x.is_integer():
            raise Unsupported(f"the number {x} in {dtype}")
        top = 8 * dtype.itemsize - (1 if dtype.is_signed else 0)
        if not -(1 << top) <= x < 1 << top or (x < 0 and not dtype.is_signed):
            raise Unsupported(f"the number {x} does not fit {dtype}")
    return b.const(x, dtype)


def pointwise(
    b: Builder,
    operands: Sequence[Operand],
    common: DType,
    formula: Formula,
    result: DType | None = None,
    conditions: Sequence[Val] = (),
    exact: bool = False,
) -> Val:
    """One element of the result is `formula` of the broadcast operands' elements.

    Computed in the compute dtype of `common`; the result is `common` unless told otherwise.
    `conditions` are bool tensors: their elements come first in the formula, as bools.
    `exact`: numbers are taken as they are, not as `common` has them."""
    tensors = [*conditions, *(x for x in operands if isinstance(x, Val))]
    shape = broadcast(b, *(x.shape for x in tensors))
    out = result or common

    def body(idx: tuple[Index, ...]) -> Expr:
        loads = [b.load(c, broadcast_index(b, c.shape, idx)) for c in conditions]
        terms = [Term(b, e) for e in loads]
        terms.extend(Term(b, element(b, x, idx, common, exact)) for x in operands)
        return cast(Callable[..., Term], formula)(*terms).cast(out).expr

    return b.tensor(shape, out, body)


def check_fits(b: Builder, dtype: DType, *numbers: Operand | None) -> None:
    """Refuses numbers that PyTorch does not convert to `dtype`, for which it raises: -1e9 as f16,
    256 as u8. Only ops that convert their numbers ask; arithmetic goes to infinity, or wraps."""
    if dtype in (dtypes.boolean, dtypes.i64):
        return
    if dtype.is_float:
        most = torch.finfo(dtype.torch).max
        least, is_narrow = -most, dtype is dtypes.f16  # others hold the ints of programs
    else:
        info = torch.iinfo(dtype.torch)
        least, most, is_narrow = info.min, info.max, True
    for x in numbers:
        fits = True
        if isinstance(x, float | int):
            fits = least <= x <= most or not math.isfinite(x)
        elif isinstance(x, Index) and is_narrow:
            fits = b.at_least(x, math.ceil(least)) and b.at_least(math.floor(most) - x, 0)
        elif isinstance(x, Expr) and is_narrow and x.dtype is not dtypes.boolean:
            fits = False
        if not fits:
            raise Unsupported(f"a number that does not fit {dtype}: {x}")


def check_converts(b: Builder, dtype: DType, x: object) -> None:
    """Refuses numbers that PyTorch may not convert, for which it raises, in a loop, too."""
    if isinstance(x, Val) or dtype is dtypes.boolean:
        return
    if dtype.is_float:
        check_fits(b, dtype, cast("Number", x))
    if dtype.is_float or isinstance(x, bool):
        return
    is_int = isinstance(x, Index) or (isinstance(x, Expr) and not x.dtype.is_float)
    info = torch.iinfo(dtype.torch)
    if not (is_int and dtype is dtypes.i64) and not (type(x) is int and info.min <= x <= info.max):
        raise Unsupported(f"a number that may not fit {dtype}")


def cast_to(b: Builder, x: Val, dtype: DType) -> Val:
    """Return the tensor in another dtype; itself if it has it."""
    if x.dtype is dtype:
        return x
    return b.tensor(x.shape, dtype, lambda idx: b.cast(b.load(x, idx), dtype))


def constant_float(x: Any) -> float:
    """Return a number that must be known when compiling."""
    if isinstance(x, bool | int | float):
        return float(x)
    if isinstance(x, Index) and x.const is not None:
        return float(x.const)
    raise Unsupported("a number that is known only at run time")


def is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def is_one(x: Any) -> bool:
    return isinstance(x, int | float) and x == 1
