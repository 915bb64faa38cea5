"""The builder that an op's `lower` receives: it makes the tensor expressions of one region.

In:  the region's inputs as `Val`, sizes as ints or `Index`, numbers as Python values or `Expr`.
Out: a `Program`. A comparison of sizes that the known ranges cannot decide raises `NeedConst`.
`specialise` then makes these sizes constants of the signature, and lowers the region a second time.

    b.tensor((n, m), f32, lambda idx: b.load(x, idx[:1]))      adds t0[i, j] = x[i], returns its Val
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import bounds
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Expr, Input, Program
from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    Index,
    Size,
    as_index,
    deep_atoms,
    exact_division,
    from_terms,
    gather,
    numbered_axis,
)
from lowtide.texpr.index_ranges import clamp, nonnegative, rebuild

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite"})


class Unsupported(Exception):
    """This case is not lowered; PyTorch runs the op. The text says why, for `explain()`."""


class ShapeError(Exception):
    """The user's shapes or dtypes do not fit; PyTorch then raises its own error."""


class NeedConst(Exception):
    """These symbols must be constants of the signature. `slack`: if the question is whether that is
    0 or more."""

    def __init__(self, symbols: frozenset[str], slack: Index | None = None) -> None:
        super().__init__(", ".join(sorted(symbols)))
        self.symbols = symbols
        self.slack = slack


@dataclass(frozen=True, slots=True)
class Val:
    """A tensor of the region: its name in the program, sizes and dtype."""

    name: str
    shape: tuple[Index | int, ...]
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Builder:
    """Collects the definitions of one region. `loc` and `op` name where the next ones come from."""

    def __init__(self) -> None:
        self.program = Program()
        self.loc: Loc = UNKNOWN_LOC
        self.op = ""
        self.records = False  # are gradients of these definitions wanted?
        # True if a region that records gradients may recompute these ops; both then use the same
        # library calls.
        self.may_recompute = False
        self.adds = False  # may kernels add at places that the data name?
        self.sums = set[str]()  # what was added to so: only the caller reads it
        self.device = torch.device("cpu")  # where all of its tensors are
        self.autocast: DType | None = None  # the lower dtype
        self.default_device = torch.device("cpu")  # where a new one is that names no device
        self.lifts = False  # is the body of a loop followed, of which no view outlives the region?
        self.assumed: list[Index] = []  # not negative where the branch is taken that is followed
        self.mask: Expr | None = None  # where that is
        self.masks: str | None = None  # the kind of the op in it that reads what carries gradients
        self.unmasked = set[str]()  # made in it, of what was masked
        self.branched = False  # was any followed?
        self.writes: list[tuple[Val, Val]] = []  # inputs, and what is to be written there at last
        self.ask: bounds.Ask = lambda _: None  # may split the signature by the answer
        self.found_equal: Callable[[Index, Index], None] = lambda _, __: None  # may have one symbol
        self.answers: Mapping[Index, bool] = {}  # to earlier questions
        self.loops: list[int] = []  # the first definitions of the bodies that are followed
        self._serial = 0

    # -- values --

    def input(
        self,
        name: str,
        shape: Sequence[Index | int],
        strides: Sequence[Index | int],
        dtype: DType,
        order: tuple[int, ...] | None = None,
    ) -> Val:
        sizes = tuple(as_index(s) for s in shape)
        steps = tuple(as_index(s) for s in strides)
        self.program.inputs[name] = Input(
            name=name, dtype=dtype, shape=sizes, strides=steps, order=order
        )
        return Val(name, plain(sizes), dtype)

    def tensor(
        self,
        shape: Sequence[Index | int],
        dtype: DType,
        body: Callable[[tuple[Index, ...]], Expr],
    ) -> Val:
        """Return a new value whose element at `idx` is `body(idx)`, cast to `dtype`."""
        axes = tuple(self.axis(size) for size in shape)
        expr = ex.cast(body(tuple(as_index(a) for a in axes)), dtype)
        self._serial += 1
        name = f"t{self._serial}"
        self.program.defs[name] = Def(name=name, axes=axes, expr=expr, loc=self.loc, op=self.op)
        return Val(name, plain(shape), dtype)

    def added(
        self,
        x: Val,
        shape: Sequence[Index | int],
        place: Callable[[tuple[Index, ...]], Sequence[Index]],
        value: Callable[[tuple[Index, ...]], Expr],
    ) -> Val:
        """Return a new value: `x` with a value added at a place for each point of `shape`. The
        region must end before it is read, because memory does not hold what its definition says."""
        if self.loops or self.mask is not None:
            raise Unsupported("adds at indices from data in a loop or branch")
        if any(as_index(size).const == 0 for size in (*x.shape, *shape)):
            raise Unsupported("adds nothing")
        total = self.tensor(x.shape, x.dtype, lambda idx: self.load(x, idx))
        axes = tuple(self.axis(size) for size in shape)
        idx = tuple(as_index(a) for a in axes)
        expr = ex.add_at(ex.load(total.name, place(idx), x.dtype), ex.cast(value(idx), x.dtype))
        name = f"{total.name}_add"
        self.program.defs[name] = Def(name=name, axes=axes, expr=expr, loc=self.loc, op=self.op)
        self.sums.add(total.name)
        return total

    def axis(self, extent: Index | int) -> Axis:
        self._serial += 1
        return numbered_axis(self._serial, extent)

    # -- expressions --

    def load(self, val: Val, idx: Sequence[Index | int]) -> Expr:
        if len(idx) != val.ndim:
            raise AssertionError(f"{val.name} has {val.ndim} dimensions, not {len(idx)}")
        if val.name in self.sums:
            raise Unsupported("reads a tensor that was added to at indices from data")
        at = [as_index(i) for i in idx]
        if self.mask is None:
            return ex.load(val.name, at, val.dtype)
        if any(_is_curved(i) for i in at):
            raise Unsupported("reads at a product of numbers of steps")
        # kernels read there wherever the branch is not taken, too
        held = [clamp(i, size) for i, size in zip(at, val.shape, strict=True)]
        found = ex.load(val.name, held, val.dtype)
        if self.masks is None or val.name in self.unmasked or (self.masks == "view" and held == at):
            return found
        return ex.select(self.mask, found, ex.const(0, val.dtype))

    def const(self, value: float | int | bool, dtype: DType) -> Expr:
        return ex.const(value, dtype)

    def at(self, index: Index | int) -> Expr:
        return ex.at(index, dtypes.i64)

    def gather(self, expr: Expr, extent: Index | int) -> Index:
        """Return the data-dependent index `expr` (i64), clamped to [0, extent) so that it is safe
        to load.

        `check_bounds` checks that it was in bounds.
        """
        return clamp(gather(ex.cast(expr, dtypes.i64)), extent)

    def clamp(self, index: Index | int, extent: Index | int) -> Index:
        """Return an index clamped to [0, extent), for a load whose value a select drops outside."""
        return clamp(index, extent)

    def apply(self, fn: str, *args: Expr) -> Expr:
        first = args[0].dtype
        if any(a.dtype is not first for a in args):
            raise AssertionError(f"{fn} of {[a.dtype for a in args]}")
        return ex.apply(fn, args, dtypes.boolean if fn in COMPARISONS else first)

    def select(self, cond: Expr, yes: Expr, no: Expr) -> Expr:
        if yes.dtype is not no.dtype or cond.dtype is not dtypes.boolean:
            raise AssertionError(f"select of {cond.dtype}, {yes.dtype}, {no.dtype}")
        return ex.select(cond, yes, no)

    def cast(self, expr: Expr, dtype: DType) -> Expr:
        return ex.cast(expr, dtype)

    def reduce(
        self, fn: str, extents: Sequence[Index | int], body: Callable[[tuple[Index, ...]], Expr]
    ) -> Expr:
        """Reduce `body` over fresh axes. argmin and argmax take one axis and give an i64."""
        axes = tuple(self.axis(size) for size in extents)
        inner = body(tuple(as_index(a) for a in axes))
        if not axes and fn not in ("argmin", "argmax"):
            return inner
        dtype = dtypes.i64 if fn in ("argmin", "argmax") else inner.dtype
        return ex.reduce(fn, axes, inner, dtype)

    # -- questions about sizes --

    def equal(self, a: Index | int, b: Index | int) -> bool:
        """Return whether two sizes are the same in every run of this signature. Raises NeedConst if
        only constants can decide."""
        a, b = as_index(a), as_index(b)
        if a is b:
            return True
        if differ(a, b):
            return False
        self.found_equal(a, b)
        above = self._answer(a - b - 1)
        below = False if above else self._answer(b - a - 1)
        if above is None or below is None:
            raise NeedConst(symbols(a) | symbols(b))
        return not (above or below)

    def is_one(self, size: Index | int) -> bool:
        """Return whether a dim of this size is broadcast. A size that differs between iterations is
        not, even where it is 1: its element 0 is read there as well."""
        return not varies(as_index(size)) and self.equal(size, 1)

    def at_least(self, size: Index | int, least: int) -> bool:
        slack = as_index(size) - least
        known = self._answer(slack)
        if known is None:
            raise NeedConst(symbols(slack), slack)
        return known

    def extent(self, size: Index | int, message: str) -> Index | int:
        """Return a size from an int: 0, or at least 1 in every run; in some iterations of a loop it
        may be 0. Raises ShapeError, with `message`, for a negative int."""
        is_many = varies(as_index(size))
        if not is_many and self.at_least(size, 1):
            return size
        if not self.at_least(size, 0):
            raise ShapeError(message)
        return size if is_many else 0

    def _answer(self, index: Index) -> bool | None:
        """Return whether index >= 0, None if only a constant can tell. An open question splits the
        signature."""
        known = self.is_known(index)
        if known is None:
            known = (self.is_always(index) or None) if varies(index) else self.ask(index)
        return known

    def is_known(self, index: Index) -> bool | None:
        """Return whether index >= 0 on the branch that is followed; None if that is open."""
        if self._is_shown(index):
            return True
        if index in self.answers:
            return self.answers[index]
        if self._is_shown(-index - 1):
            return False
        if varies(index):
            return None
        for other, holds in self.answers.items():
            known = other if holds else -other - 1  # not negative
            if nonnegative(index - known):
                return True
            if nonnegative(-index - 1 - known):
                return False
        return None

    def is_always(self, index: Index) -> bool:
        """Return whether index >= 0 in all iterations, by the checks at the start of a run."""
        return all(self._is_checked(part) for part in bounds.parts(index))

    def _is_checked(self, index: Index) -> bool:
        worst = None if self._is_shown(index) else bounds.least(index)
        return self._is_shown(index) or (worst is not None and self.ask(worst) is True)

    def _is_shown(self, index: Index) -> bool:
        return all(
            nonnegative(part) or any(nonnegative(part - i) for i in self.assumed)
            for part in bounds.parts(index)
        )

    def freed(self, index: Index) -> Index:
        """Return the index without clamps that have no effect on the branch that is traced."""

        def inside(atom: Atom) -> Index | None:
            if not isinstance(atom, Clamp):
                return None
            slack = atom.extent - atom.num - 1
            return atom.num if self.is_known(atom.num) and self.is_known(slack) else None

        return rebuild(index, inside) if self.assumed else index

    def divides(self, den: Index | int, num: Index | int) -> bool:
        """Return whether `num` is a multiple of `den`. Raises NeedConst if only constants can
        decide."""
        num, den = as_index(num), as_index(den)
        if (n := num.const) is not None and (d := den.const) is not None:
            return d != 0 and n % d == 0
        if exact_division(num, den) is not None:
            return True
        if len(den.terms) == 1 and den.terms[0][0]:  # sizes that cancel need not be constants
            ((sizes, count),) = den.terms
            rest = exact_division(num, from_terms([(sizes, 1)]))
            if rest is not None:
                return self.divides(count, rest)
        raise NeedConst(symbols(num) | symbols(den))

    def static_int(self, value: object) -> int:
        """Return the constant of a value that the signature must fix (a dim, a count)."""
        if isinstance(value, int):
            return int(value)
        if isinstance(value, Index):
            if (number := value.const) is not None:
                return number
            raise NeedConst(symbols(value))
        raise Unsupported(f"{value!r} is not a constant int")

    def require_equal(self, a: Index | int, b: Index | int, message: str) -> None:
        """Require equal sizes: decided now, or compared before each run."""
        a, b = as_index(a), as_index(b)
        if a is b:
            return
        if differ(a, b):
            raise ShapeError(message)
        self.found_equal(a, b)
        self.program.equalities.append((a, b, message))

    def check_bounds(self, val: Val, low: Index | int, high: Index | int) -> None:
        """Require each element of an integer tensor to be in [low, high); a run raises PyTorch's
        IndexError."""
        i64 = dtypes.i64

        def inside(idx: tuple[Index, ...]) -> Expr:
            e = ex.cast(self.load(val, idx), i64)
            above = self.apply("ge", e, self.at(low))
            return self.apply("and", above, self.apply("lt", e, self.at(high)))

        ok = self.tensor((), dtypes.boolean, lambda _: self.reduce("all", val.shape, inside))
        self.program.checks.append(ok.name)

    def error(self, message: str) -> ShapeError:
        return ShapeError(message)


def _is_curved(index: Index) -> bool:
    """Return whether the index contains a product of axes."""
    return any(sum(isinstance(a, Axis) for a in product) > 1 for product, _ in index.terms)


def plain(sizes: Sequence[Index | int]) -> tuple[Index | int, ...]:
    """Sizes with constants as Python ints."""
    result: list[Index | int] = []
    for s in sizes:
        number = s.const if isinstance(s, Index) else s
        result.append(s if number is None else number)
    return tuple(result)


def varies(index: Index) -> bool:
    """Return whether the index depends on an axis: an iteration, or a place in a value."""
    return any(isinstance(a, Axis) for a in deep_atoms(index))


def symbols(index: Index) -> frozenset[str]:
    """Return the names of the size symbols in it."""
    return frozenset(a.name for a in deep_atoms(index) if isinstance(a, Size))


def differ(a: Index, b: Index) -> bool:
    """Return whether two sizes, which are different indices, are certainly different numbers."""
    apart = nonnegative(a - b - 1) or nonnegative(b - a - 1)
    return apart or (has_own_value(a) and has_own_value(b))


def has_own_value(index: Index) -> bool:
    """Return whether the index is a size symbol that no other symbol equals. `specialise/signature`
    names them s0, s1, ..."""
    atom = lone_size(index)
    return atom is not None and atom.name.startswith("s")


def lone_size(index: Index) -> Size | None:
    """Return the symbol if the index is one, else None."""
    if len(index.terms) != 1 or index.terms[0][1] != 1 or len(index.terms[0][0]) != 1:
        return None
    atom = index.terms[0][0][0]
    return atom if isinstance(atom, Size) else None
