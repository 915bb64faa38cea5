"""Reverse differentiation of one definition: the cotangent of each of its loads.

In: a `Def` that is pointwise, or one reduction of a pointwise body; its cotangent at its axes.
Out: for each differentiable load a cotangent at the definition's axes and reduced axes.

    t[i] = sum[k](a[i, k] * w[k])      g = ct_t[i]     a[i, k]: g * w[k]      w[k]: g * a[i, k]

A `select` stays outermost, so that the branch not taken has no influence: the derivative of
`x == 0 ? 1 : sin(x) / x` at 0 is 0, not NaN. Ties follow PyTorch's convention for the op that the
definition comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Unsupported
from lowtide.texpr.derivatives import (
    AT_NAN,
    BETWEEN,
    CLAMPS,
    HALVED_CLAMP,
    LIPSCHITZ,
    NORMS,
    ROOTS,
    STRICT,
    cotangents,
    halved_between,
)
from lowtide.texpr.expr import Apply, Cast, Def, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.formula import F, is_number
from lowtide.texpr.index import Axis, Index, as_index, gather
from lowtide.texpr.index_ranges import clamp
from lowtide.texpr.own_gradients import RULES, own_parts
from lowtide.torch_private.autograd import HALVES_AT_LIMITS

# the maximum within them is only there to keep exponentials small: their value has no share in it
STABILISED: Final = frozenset({
    "softmax", "log_softmax", "F.softmax", "F.log_softmax", "softmin", "logsumexp", "cross_entropy",
    "scaled_dot_product_attention", "multi_head_attention",
})  # fmt: skip
# squared deviations sum up to the same where the mean moves a little: it counts as a constant there
CENTRED: Final = frozenset({
    "var", "var.unbiased", "var_mean", "var_mean.unbiased", "std", "std.unbiased", "std_mean",
    "std_mean.unbiased", "layer_norm", "group_norm", "instance_norm", "batch_norm",
})  # fmt: skip
# ties: `max.dim` sends the gradient to the returned index; other reductions divide it
INDEXED: Final = frozenset({"max.dim", "min.dim"})
DETACHED: Final = frozenset({"detach"})

# ops whose gradient is not that of their formula, alone or at a kink: they are not written into
# definitions of another op where gradients are recorded
OF_THEIR_OWN: Final = (
    STABILISED | CENTRED | INDEXED | DETACHED | ROOTS | CLAMPS | STRICT | LIPSCHITZ | AT_NAN.keys()
    | RULES.keys()
)  # fmt: skip

Contributions = dict[Load, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A definition pulled back: its contributions to the tensors that it loads. `aux`: values of
    the forward program that the cotangents also read: the index of an extreme, a count of zeros.
    `late`: the names of those `aux` that are computed when the backward pass begins."""

    loads: Contributions
    scope: tuple[Axis, ...]
    aux: tuple[Def, ...] = ()
    late: frozenset[str] = frozenset()


def is_constant(d: Def) -> bool:
    """Return whether the value has no cotangent, whatever its operands are."""
    if not d.dtype.is_float or d.op in DETACHED:
        return True
    return isinstance(d.expr, Reduce) and d.expr.fn in ("max", "min") and d.op in STABILISED


def pull(
    d: Def, cotangent: Expr, active: Callable[[Load], bool], exact: Expr | None = None
) -> Pulled:
    """Return the contributions of a definition to its active loads; raises Unsupported.

    `exact`: the body of an extreme, written so that each kernel computes the same bits.
    """
    return _Puller(d, active, exact).run(cotangent)


@dataclass(slots=True)
class _Puller:
    d: Def
    active: Callable[[Load], bool]
    exact: Expr | None
    late: set[str] = field(default_factory=set[str])
    aux: list[Def] = field(default_factory=list[Def])
    done: dict[tuple[Expr, Expr], Contributions] = field(
        default_factory=dict[tuple[Expr, Expr], Contributions]
    )

    def run(self, g: Expr) -> Pulled:
        e = self.d.expr
        if not isinstance(e, Reduce):
            found = {x: self._with_result(v) for x, v in self.pull(e, g).items()}
            return Pulled(loads=self._at_nan(found, g), scope=self.d.axes)
        match e.fn:
            case "sum":
                found = self.pull(e.body, g)
            case "min" | "max":
                if self.d.op in INDEXED:
                    return self._found(self._picked(e, g), self.d.axes)
                found = self.pull(e.body, self._shared(e, F(g))) if self._reaches(e.body) else {}
            case "prod":
                found = self.pull(e.body, self._product(e, F(g)))
            case _:
                found = {}
        return self._found(found, (*self.d.axes, *e.axes))

    def _found(self, loads: Contributions, scope: tuple[Axis, ...]) -> Pulled:
        return Pulled(loads=loads, scope=scope, aux=tuple(self.aux), late=frozenset(self.late))

    # -- pointwise --

    def _with_result(self, value: Expr) -> Expr:
        """Return a slope that reads the definition's own value: tanh' = 1 - tanh²."""
        whole = self.d.expr
        if not isinstance(whole, Apply):
            return value

        def visit(node: Expr) -> Expr | None:
            return self._own().e if node is whole else None

        return Rewriter(visit)(value)

    def _at_nan(self, found: Contributions, g: Expr) -> Contributions:
        slope = AT_NAN.get(self.d.op)
        if slope is None:
            return found
        result: Contributions = {}
        for load, value in found.items():
            at = F(ex.cast(load, dtypes.BY_NAME[load.dtype.compute])).test("isnan")
            result[load] = at.where(F(ex.cast(g, value.dtype)) * slope, F(value)).e
        return result

    def pull(self, e: Expr, g: Expr) -> Contributions:
        known = self.done.get((e, g))
        if known is None:
            known = self.done[e, g] = self._pull(e, g)
        return known

    def _pull(self, e: Expr, g: Expr) -> Contributions:
        if isinstance(e, Load):
            return {e: g} if self._counts(e) else {}
        if not e.dtype.is_float or not self._reaches(e):
            return {}
        if isinstance(e, Cast):
            wide = g if isinstance(e.arg, Load) else ex.cast(g, e.arg.dtype)
            return self.pull(e.arg, wide)
        parts = own_parts(e, g, self.d.op)
        if parts is not None:
            return self._merged([part for part, _ in parts], [f.e for _, f in parts])
        if isinstance(e, Select):
            return self._select(e, g)
        if isinstance(e, Apply):
            inner = e.args[0]
            if self.d.op in BETWEEN and isinstance(inner, Apply) and inner.fn == "maximum":
                return self._between(e, inner, F(g))
            found = cotangents(e, g, self.d.op)
            if found is None:
                raise Unsupported(f"{e.fn} has no derivative")
            return self._merged(e.args, found)
        return {}

    def _between(self, e: Apply, inner: Apply, g: F) -> Contributions:
        """clamp(x, low, high): to x within, low below, high above; to high if low > high."""
        x, low, high = F(inner.args[0]), F(inner.args[1]), F(e.args[1])
        if self.d.op == HALVED_CLAMP:
            return self._merged((x.e, low.e, high.e), halved_between(g, x, low, high))
        if HALVES_AT_LIMITS:
            return self._merged((x.e,), (((x > low) & (x < high)).or_zero(g).e,))
        parts = (
            ((x >= low) & (x <= high)).or_zero(g).e,
            ((x < low) & (low < high)).or_zero(g).e,
            ((x > high) | (high < low)).or_zero(g).e,
        )
        return self._merged((x.e, low.e, high.e), parts)

    def _merged(self, args: Sequence[Expr], found: Sequence[Expr | None]) -> Contributions:
        total: dict[Load, list[Expr]] = {}
        for arg, g in zip(args, found, strict=True):
            if g is None:
                if arg.dtype.is_float:
                    for load in _loads(arg, self._counts):
                        total.setdefault(load, [])
                continue
            for load, part in self.pull(arg, g).items():
                total.setdefault(load, []).append(part)
        return {load: _sum(parts, load.dtype) for load, parts in total.items()}

    def _select(self, e: Select, g: Expr) -> Contributions:
        yes, no = self.pull(e.yes, g), self.pull(e.no, g)
        found: Contributions = {}
        for load in (*yes, *(k for k in no if k not in yes)):
            a, b = yes.get(load), no.get(load)
            like = a if a is not None else b
            assert like is not None
            zero = ex.const(0, like.dtype)
            a, b = _same_dtype(a or zero, b or zero)
            found[load] = a if a is b else ex.select(e.cond, a, b)
        return found

    def _counts(self, load: Load) -> bool:
        return load.dtype.is_float and self.active(load) and not self._is_mean(load)

    def _is_mean(self, load: Load) -> bool:
        """Return whether the load reads a mean, within a sum of squared deviations of the same
        op."""
        inside = isinstance(self.d.expr, Reduce) and self.d.op in CENTRED
        return inside and len(load.index) > 0 and _constant_along(load, self.d.expr)

    def _reaches(self, e: Expr) -> bool:
        return any(True for _ in _loads(e, self._counts))

    # -- reductions --

    def _helper(self, suffix: str, fn: str, e: Reduce, body: Expr) -> F:
        """Another reduction over the same axes, as a value of the forward program."""
        fresh = {a: Axis(a.name, a.extent) for a in (*self.d.axes, *e.axes)}
        moved = at_indices(body, {a: as_index(b) for a, b in fresh.items()})
        dtype = dtypes.i64 if fn in ("argmin", "argmax") else body.dtype
        made = Def(
            name=f"{self.d.name}_{suffix}",
            axes=tuple(fresh[a] for a in self.d.axes),
            expr=ex.reduce(fn, [fresh[a] for a in e.axes], moved, dtype),
            loc=self.d.loc,
            op=self.d.op,
        )
        self.aux.append(made)
        return F(ex.load(made.name, self._here(), dtype))

    def _here(self) -> list[Index]:
        return [as_index(a) for a in self.d.axes]

    def _own(self) -> F:
        return F(ex.load(self.d.name, self._here(), self.d.dtype))

    def _picked(self, e: Reduce, g: Expr) -> Contributions:
        """Return the cotangent for the element whose index is returned with the extreme."""
        if not self._reaches(e.body):
            return {}
        (axis,) = e.axes
        if self.exact is None:
            best = self._helper("best", f"arg{e.fn}", e, e.body)
        else:
            hit = self._hit(self.exact)
            none = ex.at(axis.extent, dtypes.i64)
            at = ex.select(hit.e, ex.at(as_index(axis), dtypes.i64), none)
            best = self._helper("best", "min", e, at)
            self.late.add(self.aux[-1].name)
        here = clamp(gather(best.e), axis.extent)
        return self.pull(at_indices(e.body, {axis: here}), g)

    def _hit(self, body: Expr) -> F:
        """Return whether an element is the extreme, as a formula. NaN is, wherever there is one."""
        value, own = F(body), self._own()
        return value.equals(own) | value.test("isnan")

    def _shared(self, e: Reduce, g: F) -> Expr:
        """Return the cotangent divided among equal extremes. With a NaN, `amax` gives NaN to all,
        `max` and norms all to the NaN."""
        if self.exact is None:
            raise Unsupported("equal extremes of sums, which may differ when computed again")
        whole = self.d.op in ("max", "min")
        is_norm = self.d.op in NORMS
        # Others than extremes get nothing, even of an infinite cotangent.
        apart = whole or (self.d.op in ROOTS and not is_norm)
        is_nan = whole or is_norm
        hit = self._hit(self.exact) if is_nan else F(self.exact).equals(self._own())
        ones = F(ex.cast(hit.e, e.dtype))
        count = self._helper("ties", "sum", e, ones.e)
        self.late.add(self.aux[-1].name)
        share = g / count
        return hit.or_zero(share).e if apart else (ones * share).e

    def _product(self, e: Reduce, g: F) -> Expr:
        """Return the product of all other elements: the product over the element. With one zero,
        only that element has a product, of the rest. With more, the gradient of the product of a
        whole tensor is 0 even where the cotangent is infinite; of a row it is cotangent * 0."""
        body = F(e.body)
        zero = body.equals(0)
        zeros = self._helper("zeros", "sum", e, ex.cast(zero.e, e.dtype))
        rest = self._helper("rest", "prod", e, zero.where(body.like(1), body).e)
        alone = zero.where((zeros.equals(1)).where(rest, 0), rest / body)
        others = g * (zeros.equals(0) | zero).where(alone, 0)
        return (others if self.d.axes else (zeros.equals(0) | zeros.equals(1)).where(others, 0)).e


def _constant_along(load: Load, e: Expr) -> bool:
    assert isinstance(e, Reduce)
    return not (load.free & frozenset(e.axes))


def _loads(e: Expr, counts: Callable[[Load], bool]) -> Collection[Load]:
    """Return the counting loads that the value of an expression depends on smoothly."""
    found: dict[Load, None] = {}
    seen: set[Expr] = set()
    todo = [e]
    while todo:
        node = todo.pop()
        if node in seen or not node.dtype.is_float:
            continue
        seen.add(node)
        if isinstance(node, Load):
            if counts(node):
                found[node] = None
        elif isinstance(node, Select):
            todo += [node.yes, node.no]
        elif isinstance(node, Apply | Cast):
            todo += node.children
    return found


def _sum(parts: list[Expr], dtype: dtypes.DType) -> Expr:
    """Return the sum of the parts, equal ones counted."""
    real = [p for p in parts if not is_number(p, 0)]
    if not real:
        return parts[0] if parts else ex.const(0, dtypes.BY_NAME[dtype.compute])
    counts: dict[Expr, int] = {}
    for p in real:
        counts[p] = counts.get(p, 0) + 1
    total: Expr | None = None
    for p, n in counts.items():
        term = (F(p) * n).e
        total = term if total is None else _add(total, term)
    assert total is not None
    return total


def _add(a: Expr, b: Expr) -> Expr:
    a, b = _same_dtype(a, b)
    return (F(a) + F(b)).e


def _same_dtype(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    if a.dtype is b.dtype:
        return a, b
    wide = dtypes.f64 if dtypes.f64 in (a.dtype, b.dtype) else dtypes.f32
    return ex.cast(a, wide), ex.cast(b, wide)
