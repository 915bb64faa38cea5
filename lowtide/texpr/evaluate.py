"""The reference meaning of tensor expressions: every element, by dense grids of torch tensors.

In:  a program, its input tensors and the values of its size symbols. Out: every value as a tensor.
For small sizes: a reduction builds its whole grid. Every load is checked to lie in bounds.

    evaluate(program, {"x": x}, {"N": 3})["t0"]         t0[i] = x[i] * 2: the tensor x * 2

(The idea is tinygrad's `ops_python.py`: a tiny interpreter as the living definition.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lowtide.ir.dtypes import HALVES
from lowtide.texpr.expr import (
    AddAt,
    Apply,
    At,
    Cast,
    Const,
    Delay,
    Expr,
    Load,
    Program,
    Reduce,
    Scalar,
    Select,
)
from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Gather, Index, Mod, Size
from lowtide.texpr.sizes import evaluate as evaluate_size

Tensor = torch.Tensor
Scope = tuple[Axis, ...]


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(c, a, b)


FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "floordiv": torch.floor_divide, "mod": torch.remainder, "fmod": torch.fmod,
    "fma": _fma,
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "atan2": torch.atan2, "sinh": torch.sinh, "cosh": torch.cosh,
    "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
    "sigmoid": torch.sigmoid, "erf": torch.erf, "erfc": torch.erfc, "pow": torch.pow,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "maximum": torch.maximum, "minimum": torch.minimum, "fmin": torch.fmin, "fmax": torch.fmax,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq,
    "ne": torch.ne, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "not": torch.bitwise_not, "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift, "isnan": torch.isnan, "isinf": torch.isinf,
    "isfinite": torch.isfinite, "sign": torch.sign, "copysign": torch.copysign,
}  # fmt: skip


def evaluate(
    program: Program,
    inputs: Mapping[str, Tensor],
    sizes: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
) -> dict[str, Tensor]:
    """Return every value of the program by name. `sizes`: values of symbols. `scalars`: values of
    numbers."""
    run = Evaluator(program, dict(inputs), sizes or {}, scalars or {})
    for y in program.delays.values():
        run.values[y.name] = torch.zeros(
            [evaluate_size(s, run.sizes) for s in y.shape], dtype=y.dtype.torch
        )
    while True:  # each time, one more step of some loop is right, until all are
        run.definitions()
        found = {y.name: run.delayed(y) for y in program.delays.values()}
        if all(_same(x, run.values[n]) for n, x in found.items()):
            return run.values
        run.values |= found


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal in all bits but those of NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


class Evaluator:
    """Evaluates expressions at all points of axes; `tile/evaluate` does so at those of a tile."""

    def __init__(
        self,
        program: Program,
        values: dict[str, Tensor],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float],
    ) -> None:
        self.program = program
        self.values = values
        self.sizes = sizes
        self.scalars = scalars
        self.memo: dict[tuple[Expr, Scope], Tensor] = {}

    def definitions(self) -> None:
        for d in self.program.defs.values():
            shape = [evaluate_size(s, self.sizes) for s in d.shape]
            self.memo.clear()
            if isinstance(d.expr, AddAt):
                self._add(d.expr, d.axes, shape)
                continue
            value = self.expr(d.expr, d.axes)
            self.values[d.name] = value.expand(shape).contiguous() if shape else value.reshape(())

    def _add(self, e: AddAt, scope: Scope, shape: Sequence[int]) -> None:
        at = tuple(self.index(i, scope).expand(shape) for i in e.place.index)
        value = self.expr(e.value, scope).expand(shape)
        self.values[e.place.source].index_put_(at, value, accumulate=True)

    def delayed(self, y: Delay) -> Tensor:
        """Return the source one step earlier, after `init`."""
        source, init = self.values[y.source], self.values[y.init].unsqueeze(0)
        return torch.cat([source[1:], init] if y.reverse else [init, source[:-1]])

    def expr(self, e: Expr, scope: Scope) -> Tensor:
        """Return the value with one dim for each axis in scope, of size 1 where it does not
        vary."""
        found = self.memo.get((e, scope))
        if found is None:
            found = self._expr(e, scope)
            if found.dtype is not e.dtype.torch:
                raise AssertionError(f"{e} is {found.dtype}, not {e.dtype}")
            self.memo[e, scope] = found
        return found

    def _expr(self, e: Expr, scope: Scope) -> Tensor:
        ones = (1,) * len(scope)
        match e:
            case Const():
                return torch.full(ones, e.value, dtype=e.dtype.torch)
            case Scalar():
                return torch.full(ones, self.scalars[e.name], dtype=e.dtype.torch)
            case At():
                return self.index(e.index, scope).to(e.dtype.torch)
            case Load():
                return self.load(e, scope)
            case Cast():
                return self.expr(e.arg, scope).to(e.dtype.torch)
            case Select():
                cond, yes, no = (self.expr(c, scope) for c in (e.cond, e.yes, e.no))
                return torch.where(cond, yes, no)
            case Apply():
                return FUNCTIONS[e.fn](*(self.expr(a, scope) for a in e.args))
            case Reduce():
                return self._reduce(e, scope)
            case _:
                raise AssertionError(f"no meaning for {type(e).__name__}")

    def load(self, e: Load, scope: Scope) -> Tensor:
        """The elements of a value, each checked to lie in bounds."""
        source = self.values[e.source]
        if not e.index:
            return source.reshape((1,) * len(scope))
        grids = [self.index(i, scope) for i in e.index]
        sizes = [
            0 if 0 in dims else max(dims) for dims in zip(*(g.shape for g in grids), strict=True)
        ]
        at = [g.expand(sizes) for g in grids]
        for k, i in enumerate(at):
            if i.numel() and (int(i.min()) < 0 or int(i.max()) >= source.shape[k]):
                raise IndexError(f"{e}: index {k} leaves [0, {source.shape[k]})")
        return source[tuple(at)]

    def _reduce(self, e: Reduce, scope: Scope) -> Tensor:
        extents = [evaluate_size(a.extent, self.sizes) for a in e.axes]
        n = len(scope)
        body = self.expr(e.body, (*scope, *e.axes))
        body = body.expand(*body.shape[:n], *extents)
        flat = body.flatten(n) if extents else body.unsqueeze(-1)
        if not flat.shape[-1] and e.fn in ("max", "min", "argmax", "argmin"):
            raise AssertionError("an extreme of nothing")
        match e.fn:
            case "sum":
                if e.dtype.name in HALVES:  # a product by the library, rounded once
                    return flat.sum(-1).to(e.dtype.torch)
                return flat.sum(-1, dtype=e.dtype.torch)
            case "prod":
                return flat.prod(-1, dtype=e.dtype.torch)
            case "max":
                return flat.amax(-1)
            case "min":
                return flat.amin(-1)
            case "any":
                return flat.any(-1)
            case "all":
                return flat.all(-1)
            case "argmax" | "argmin":
                best = flat.amax(-1, True) if e.fn == "argmax" else flat.amin(-1, True)
                hit = (flat == best) | ((flat != flat) & (best != best))
                place = torch.arange(flat.shape[-1])
                return torch.where(hit, place, flat.shape[-1]).amin(-1)
            case _:
                raise AssertionError(f"no reduction {e.fn}")

    def axis(self, a: Axis, scope: Scope) -> Tensor:
        """The points of an axis of the scope, along its dim."""
        return along(torch.arange(evaluate_size(a.extent, self.sizes)), a, scope)

    def index(self, index: Index, scope: Scope) -> Tensor:
        """Return the index as an i64 grid."""
        total = torch.zeros((1,) * len(scope), dtype=torch.int64)
        for monomial, factor in index.terms:
            part: Tensor | int = factor
            for atom in monomial:
                part = part * self._atom(atom, scope)
            total = total + part
        return total

    def _atom(self, atom: Atom, scope: Scope) -> Any:
        if isinstance(atom, Size):
            return self.sizes[atom.name]
        if isinstance(atom, Axis):
            return self.axis(atom, scope)
        if isinstance(atom, FloorDiv):
            den = self.index(atom.den, scope)
            return torch.floor_divide(self.index(atom.num, scope), den)
        if isinstance(atom, Mod):
            return torch.remainder(self.index(atom.num, scope), self.index(atom.den, scope))
        if isinstance(atom, Clamp):
            top = self.index(atom.extent, scope) - 1
            return torch.minimum(self.index(atom.num, scope).clamp(min=0), top)
        if isinstance(atom, Gather):
            return self.expr(atom.expr, scope)
        raise AssertionError(f"no meaning for {atom}")


def along(points: Tensor, axis: Axis, scope: Sequence[Axis]) -> Tensor:
    """The points of an axis as a grid over the scope."""
    for k, a in enumerate(scope):
        if a is axis:
            return points.reshape([-1 if j == k else 1 for j in range(len(scope))])
    raise AssertionError(f"{axis} is not in scope")
