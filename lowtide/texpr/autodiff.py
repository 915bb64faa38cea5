"""Reverse differentiation of a whole Program: again a Program, one definition per cotangent.

In: a forward Program, which inputs want gradients, which outputs have cotangents.
Out: a Program whose inputs are the forward inputs, what was saved, and the cotangents; its outputs
are the gradients. Values of the forward Program are computed again from the inputs; normalisation
and fusion then treat it as any Program, so that no value of pairs is stored.

    d[i, j]  = x[i] - y[j]                   ct_d[i, j] = 2 * d[i, j] * ct_s[i]
    s[i]     = sum[j](d[i, j] * d[i, j])     ct_x[i]    = sum[j](ct_d[i, j])

The rule per definition follows JAX's `vjp` of einsum-like primitives; that a load's adjoint is a
reduction over the axes that it does not fix is Halide's (Li et al., "Differentiable programming for
image processing and deep learning in Halide", 2018).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.adjoint import invert
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Unsupported
from lowtide.texpr.expr import Def, Expr, Input, Load, Program, Reduce, Rewriter
from lowtide.texpr.formula import F, all_of, is_number
from lowtide.texpr.index import Axis, Index, as_index, product
from lowtide.texpr.pullback import Pulled, is_constant, pull

# within these, a clamped index belongs to a load that a choice drops where it is out of bounds
DROPPING = frozenset({"cat", "hstack", "vstack", "pad", "diag_embed", "diag"})
MOST_MASKED = 64  # a scatter over at most so many points of a constant extent is a masked sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """`gradients`: of each input that has one, the output that holds it."""

    program: Program
    gradients: Mapping[str, str]


class Differentiation:
    """A forward Program made ready: reductions stand alone, it is known what carries gradients.

    Raises Unsupported if some gradient cannot be written down."""

    def __init__(self, forward: Program, wanted: Iterable[str]) -> None:
        self.forward = forward
        self.defs: dict[str, Def] = {}
        self._active = set(wanted)
        self._pulled: dict[str, Pulled] = {}
        for d in forward.defs.values():
            for part in isolated(d):
                self._take(part)

    def _take(self, d: Def) -> None:
        self.defs[d.name] = d
        if is_constant(d):
            return
        pulled = pull(d, _seed(d), lambda load: load.source in self._active)
        if pulled.loads:
            self._active.add(d.name)
            self._pulled[d.name] = pulled
            self.defs.update({a.name: a for a in pulled.aux})

    def carries(self, name: str) -> bool:
        """Does this value depend on an input that wants a gradient?"""
        return name in self._active

    def depending_on(self, wanted: Iterable[str]) -> set[str]:
        """These inputs, and all values through which gradients flow to them."""
        found = set(wanted)
        for name, pulled in self._pulled.items():
            if any(load.source in found for load in pulled.loads):
                found.add(name)
        return found

    def pulled(self, name: str) -> Pulled | None:
        """What a value hands on of its cotangent; None if it carries none."""
        return self._pulled.get(name)

    def shape(self, name: str) -> tuple[Index, ...]:
        found = self.forward.inputs.get(name)
        return found.shape if found is not None else self.defs[name].shape

    def dtype(self, name: str) -> DType:
        found = self.forward.inputs.get(name)
        return found.dtype if found is not None else self.defs[name].dtype

    def place(self, name: str) -> tuple[Loc, str]:
        """Where a value stems from: of an input, nowhere."""
        d = self.defs.get(name)
        return (d.loc, d.op) if d is not None else (UNKNOWN_LOC, "gradient")

    def recording(self, saved: Collection[str]) -> Program:
        """The forward Program that also gives what is saved."""
        extra = [n for n in saved if n not in self.forward.outputs]
        return pruned(Program(
            inputs=dict(self.forward.inputs),
            defs=dict(self.defs),
            outputs=[*self.forward.outputs, *extra],
            checks=list(self.forward.checks),
            equalities=list(self.forward.equalities),
        ))  # fmt: skip

    def backward(
        self,
        wanted: Collection[str],
        given: Mapping[str, tuple[Index, ...]],
        saved: Collection[str] = (),
    ) -> Backward:
        """The backward Program for gradients of `wanted` inputs. `given`: outputs that have a
        cotangent, with its strides. `saved`: values that are handed in, not computed again."""
        cots = _Cotangents(self, wanted)
        for name, strides in given.items():
            cots.give(name, strides)
        for d in reversed(self.defs.values()):
            cots.spread(d)
        gradients = {n: cotangent_name(n) for n in wanted if cots.define(n)}
        handed_in = {n: _as_input(self.defs[n]) for n in saved}
        forward = {n: d for n, d in self.defs.items() if n not in handed_in}
        program = Program(
            inputs={**self.forward.inputs, **handed_in, **cots.inputs},
            defs={**forward, **cots.defs},
            outputs=list(gradients.values()),
        )
        return Backward(program=pruned(program), gradients=gradients)


def activity(program: Program, made: Iterable[Def], active: Collection[str]) -> set[str]:
    """Which of these definitions carry gradients, if `active` values do; raises Unsupported where
    a gradient cannot be written down."""
    found: set[str] = set()
    parts: dict[str, Def] = {}

    def is_active(load: Load) -> bool:
        return load.source in active or load.source in found

    for d in made:
        for part in isolated(d):
            parts[part.name] = part
            pulled = None if is_constant(part) else pull(part, _seed(part), is_active)
            if pulled is None or not pulled.loads:
                continue
            found.add(part.name)
            for load, value in pulled.loads.items():
                of = program.inputs.get(load.source) or program.defs.get(load.source)
                y = tuple(Axis("y", size) for size in (of or parts[load.source]).shape)
                use = _Contribution(user=part, scope=pulled.scope, load=load, value=value)
                _body(use, y, value.dtype)
    return found


def given_name(name: str) -> str:
    """What a cotangent that is handed in is called."""
    return f"g_{name}"


def cotangent_name(name: str) -> str:
    """What the cotangent of a value is called."""
    return f"ct_{name}"


def _seed(d: Def) -> Load:
    return ex.load(cotangent_name(d.name), [as_index(a) for a in d.axes], d.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contribution:
    """What a load within a definition gives to the cotangent of its source."""

    user: Def
    scope: tuple[Axis, ...]
    load: Load
    value: Expr


class _Cotangents:
    """The backward definitions, made from the last forward definition to the first."""

    def __init__(self, diff: Differentiation, wanted: Collection[str]) -> None:
        self.diff = diff
        self.needed = diff.depending_on(wanted)
        self.inputs: dict[str, Input] = {}
        self.defs: dict[str, Def] = {}
        self.parts: dict[str, list[_Contribution]] = {}

    def give(self, name: str, strides: tuple[Index, ...]) -> None:
        """An output whose cotangent is handed in."""
        made = given_name(name)
        shape, dtype = self.diff.shape(name), self.diff.dtype(name)
        self.inputs[made] = Input(name=made, dtype=dtype, shape=shape, strides=strides)

    def spread(self, d: Def) -> None:
        """Defines the cotangent of a value, and hands it on to what the value is made of."""
        pulled = self.diff.pulled(d.name)
        if pulled is None or d.name not in self.needed or not self.define(d.name):
            return
        for load, value in pulled.loads.items():
            if load.source in self.needed:
                made = _Contribution(user=d, scope=pulled.scope, load=load, value=value)
                self.parts.setdefault(load.source, []).append(made)

    def define(self, name: str) -> bool:
        """Makes the definition of a cotangent; False where nothing reaches the value."""
        parts, given = self.parts.get(name, []), given_name(name)
        if not parts and given not in self.inputs:
            return False
        shape, dtype = self.diff.shape(name), self.diff.dtype(name)
        axes = tuple(Axis(f"y{k}", size) for k, size in enumerate(shape))
        within = _accumulator(dtype, [p.value for p in parts])
        total = F(ex.const(0, within))
        if given in self.inputs:
            total = F(ex.cast(ex.load(given, [as_index(a) for a in axes], dtype), within))
        for term in _terms(parts, axes, within):
            total = total + F(term)
        expr = ex.cast(total.e, dtype)
        loc, op = self.diff.place(name)
        made = cotangent_name(name)
        self.defs[made] = Def(name=made, axes=axes, expr=expr, loc=loc, op=op)
        return True


def _accumulator(dtype: DType, values: list[Expr]) -> DType:
    wide = any(v.dtype is dtypes.f64 for v in values) or dtype is dtypes.f64
    return dtypes.f64 if wide else dtypes.f32


def _terms(parts: list[_Contribution], y: tuple[Axis, ...], within: DType) -> list[Expr]:
    """The sums that make up a cotangent; those of one definition over the same axes are one."""
    groups: dict[tuple[Def, tuple[Axis, ...]], F] = {}
    for p in parts:
        if is_number(p.value, 0):
            continue
        rest, body = _body(p, y, within)
        key = (p.user, rest)
        groups[key] = groups[key] + F(body) if key in groups else F(body)
    return [_summed(rest, body.e, within) for (_, rest), body in groups.items()]


def _body(p: _Contribution, y: tuple[Axis, ...], within: DType) -> tuple[tuple[Axis, ...], Expr]:
    """One contribution at index y, and the axes that it is to be summed over."""
    inverse = invert(p.load.index, y, p.scope, p.user.op in DROPPING)
    value = F(ex.cast(at_indices(p.value, dict(inverse.at)), within))
    conditions = list(inverse.conditions)
    if inverse.data:
        if not _is_small(inverse.rest):
            raise Unsupported("the gradient of an index that is data is a scatter")
        conditions += [
            F(ex.cast(e, dtypes.i64)).equals(F(ex.at(rhs, dtypes.i64))) for rhs, e in inverse.data
        ]
    held = all_of(conditions)
    return inverse.rest, (value if held is None else held.or_zero(value)).e


def _is_small(rest: tuple[Axis, ...]) -> bool:
    count = product(a.extent for a in rest).const
    return count is not None and count <= MOST_MASKED


def _summed(rest: tuple[Axis, ...], body: Expr, within: DType) -> Expr:
    if not rest:
        return body
    fresh = {a: Axis(a.name, a.extent) for a in rest}
    moved = at_indices(body, {a: as_index(b) for a, b in fresh.items()})
    return ex.reduce("sum", [fresh[a] for a in rest], moved, within)


# ---- programs -----------------------------------------------------------------------------------


def isolated(d: Def) -> list[Def]:
    """The definition with every reduction in it as a definition of its own, inner ones first."""
    made: list[Def] = []

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node is d.expr:
            return None
        axes = tuple(sorted(ex.free_axes(node), key=lambda a: a.key))
        part = Def(name=f"{d.name}_{len(made)}", axes=axes, expr=node, loc=d.loc, op=d.op)
        made.append(part)
        return ex.load(part.name, [as_index(a) for a in axes], node.dtype)

    if isinstance(d.expr, Reduce):
        body = Rewriter(visit)(d.expr.body)
        expr: Expr = ex.reduce(d.expr.fn, d.expr.axes, body, d.expr.dtype)
    else:
        expr = Rewriter(visit)(d.expr)
    return [*made, Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)]


def pruned(program: Program) -> Program:
    """Without definitions and inputs that no output needs."""
    needed = {*program.outputs, *program.checks}
    defs: dict[str, Def] = {}
    for name, d in reversed(program.defs.items()):
        if name in needed:
            defs[name] = d
            needed |= {load.source for load in ex.loads(d.expr)}
    return Program(
        inputs={n: i for n, i in program.inputs.items() if n in needed},
        defs=dict(reversed(defs.items())),
        outputs=program.outputs,
        checks=program.checks,
        equalities=program.equalities,
    )


def contiguous_strides(shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Row-major strides."""
    steps: list[Index] = []
    step = as_index(1)
    for size in reversed(shape):
        steps.insert(0, step)
        step = step * size
    return tuple(steps)


def _as_input(d: Def) -> Input:
    return Input(name=d.name, dtype=d.dtype, shape=d.shape, strides=contiguous_strides(d.shape))
