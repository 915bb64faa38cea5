"""Reverse differentiation of a whole Program: again a Program, one definition per cotangent.

In: a forward Program, the inputs that want gradients, the outputs that have cotangents.
Out: a Program from the forward inputs, the saved values and the cotangents to the gradients. Other
forward values are recomputed from the inputs. Normalisation and fusion then treat the Program as
any other, so that no value of pairs is stored.

    d[i, j]  = x[i] - y[j]                   ct_d[i, j] = 2 * d[i, j] * ct_s[i]
    s[i]     = sum[j](d[i, j] * d[i, j])     ct_x[i]    = sum[j](ct_d[i, j])

The rule per definition follows JAX's `vjp` of einsum-like primitives. The adjoint of a load is a
reduction over the axes that the load does not fix, as in Halide. (Li et al., "Differentiable
programming for image processing and deep learning in Halide", 2018.)
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Val
from lowtide.texpr.contribution import (
    Contribution,
    Scatter,
    accumulator,
    placed,
    summed_terms,
    without_clamps,
)
from lowtide.texpr.exact import exact_sources
from lowtide.texpr.exchange import exchanged
from lowtide.texpr.expr import AddAt, Def, Delay, Expr, Input, Load, Program, Reduce, Rewriter
from lowtide.texpr.formula import F, is_number
from lowtide.texpr.index import Axis, Index, as_index, product, row_major
from lowtide.texpr.index_ranges import nonnegative
from lowtide.texpr.pullback import Pulled, is_constant, pull
from lowtide.texpr.sizes import elements, likely
from lowtide.texpr.softmax import with_weights_outside

_SPREAD = 2  # times as many values scattered: what is read is better stored

# within these, a clamped index belongs to a load that a choice drops where it is out of bounds
DROPPING = frozenset({"cat", "hstack", "vstack", "pad", "diag_embed", "diag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """`gradients`: of each input that has one, the output that holds it, "" where only scatters
    give to it. `scatters` are to be added to it by the caller; none is left where the Program adds
    them (`ex.AddAt`). Such a gradient is in the dtype in which it is summed."""

    program: Program
    gradients: Mapping[str, str]
    scatters: tuple[Scatter, ...]


class Differentiation:
    """Definitions made ready: reductions stand alone, it is known what carries gradients.

    `must_save`: reductions that the backward pass must have bit by bit; `late`: values that are
    computed when it begins; `instead`: what it computes in place of a definition of the same name
    (see `idempotent`)."""

    def __init__(
        self,
        inputs: Mapping[str, Input],
        wanted: Iterable[str],
        delays: Mapping[str, Delay] | None = None,
    ) -> None:
        self.inputs = inputs
        self.delays: Mapping[str, Delay | Val] = delays or {}
        self.defs: dict[str, Def] = {}
        self.must_save: set[str] = set()
        self.late: set[str] = set()
        self.instead: Mapping[str, Def] = {}
        self._active = set(wanted)
        self._pulled: dict[str, Pulled] = {}
        self._passes: dict[tuple[object, ...], Backward] = {}

    def backward(
        self,
        wanted: Collection[str],
        given: Mapping[str, tuple[Index, ...]],
        saved: Collection[str] = (),
        adding: bool = False,
    ) -> Backward:
        """See `backward`: once for the same."""
        key = tuple(wanted), tuple(given.items()), tuple(saved), adding
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = backward(self, wanted, given, saved, adding)
        return found

    def add(self, d: Def) -> None:
        """Add a definition. Raises Unsupported if it has no gradient formula."""
        for part in isolated(d):
            self._take(part)

    def _take(self, d: Def) -> None:
        self.defs[d.name] = d
        if is_constant(d):
            return
        exact = self._exact(d)
        body = d.expr.body if exact is not None and isinstance(d.expr, Reduce) else None
        of = replace(d, expr=d.expr.value) if isinstance(d.expr, AddAt) else d
        pulled = pull(of, _seed(d), lambda load: load.source in self._active, body)
        if not pulled.loads:
            return
        if exact is not None:
            self.must_save |= exact
        self._active |= {d.name, d.adds_to or d.name}
        self._pulled[d.name] = pulled
        self.late |= pulled.late
        self.defs.update({a.name: a for a in pulled.aux})
        self._check(d, pulled)

    def scatters_terms(self, d: Def, sizes: Mapping[str, int]) -> bool:
        """Return whether a backward pass by scatters would scatter more than what the definition
        reads. That is so for `(x @ w.T)[n]`, which would scatter the terms `x[i, k] * w[j, k]`. It
        is also so for `cat([x, y])[perm]`, once for each value of which `cat` is made. `sizes`:
        likely sizes."""
        return any(
            (not self._reads_few(part, source) and self._are_terms(part, source))
            or self._spreads(part, source, sizes)
            or (self._reads_all(part, source) and self._is_made_of_several(source))
            for name in (p.name for p in isolated(d))
            for source, part in self._handed_on(name)
            if part.is_sparse and source in self.defs
        )

    def _handed_on(self, name: str) -> list[tuple[str, Contribution]]:
        pulled = self._pulled.get(name)
        if pulled is None:
            return []
        d = self.defs[name]
        return [(x.source, _contribution(d, pulled, x, value)) for x, value in pulled.loads.items()]

    def _spreads(self, part: Contribution, name: str, sizes: Mapping[str, int]) -> bool:
        """Return whether scattering a contribution further on would scatter `_SPREAD` times as many
        points as the values have elements. An example is `h[n, e, i] * w[e, i, j]`, summed and read
        at `e[n, j]`, which scatters all terms."""
        todo = [(part, name)]
        try:
            few = max(likely(part.places, sizes), elements(self.shape(name), sizes))
            while todo:
                part, name = todo.pop()
                handed_on = self._handed_on(name)
                few = max([few, *(elements(self.shape(source), sizes) for source, _ in handed_on)])
                for source, handed in handed_on:
                    on = part.through(self.defs[name], _seed(self.defs[name]), handed)
                    if on.is_sparse:
                        if likely(on.places, sizes) > _SPREAD * few:
                            return True
                        todo.append((on, source))
        except KeyError:  # a size that is known when it runs
            return False
        return False

    def _reads_few(self, part: Contribution, source: str) -> bool:
        """Return whether the points are certainly no more than the elements of the value."""
        points = product(a.extent for a in part.scope)
        return nonnegative(product(self.shape(source)) - points)

    def _reads_all(self, part: Contribution, source: str) -> bool:
        """Return whether the points are certainly at least as many as the elements of the value."""
        points = product(a.extent for a in part.scope)
        return nonnegative(points - product(self.shape(source)))

    def _is_made_of_several(self, name: str) -> bool:
        handed = self._handed_on(name)
        return len(handed) > 1 or any(self._is_made_of_several(source) for source, _ in handed)

    def _are_terms(self, part: Contribution, name: str) -> bool:
        if part.is_to_be_summed:
            return True
        for source, handed in self._handed_on(name):
            on = part.through(self.defs[name], _seed(self.defs[name]), handed)
            if on.is_sparse and self._are_terms(on, source):
                return True
        return False

    def _exact(self, d: Def) -> frozenset[str] | None:
        if not isinstance(d.expr, Reduce) or d.expr.fn not in ("min", "max"):
            return None
        found = exact_sources(d, self.defs)
        if found is None or not all(self._fits(self.defs[n]) for n in found):
            return None
        return found

    def _fits(self, d: Def) -> bool:
        """Return whether the definition is certainly no larger than some input."""
        size = product(d.shape)
        return any(nonnegative(product(i.shape) - size) for i in self.inputs.values())

    def _check(self, d: Def, pulled: Pulled) -> None:
        for load, value in pulled.loads.items():
            use = _contribution(d, pulled, load, value)
            if not use.is_sparse or load.source in self.delays:
                for part in without_clamps(use):
                    placed(part, tuple(Axis("y", size) for size in self.shape(load.source)))

    def assume(self, value: Val) -> None:
        """Assume that a value which a loop carries depends on inputs that require gradients."""
        self.delays = {**self.delays, value.name: value}
        if value.dtype.is_float:
            self._active.add(value.name)

    def carries(self, name: str) -> bool:
        """Return whether the value depends on an input that requires a gradient."""
        return name in self._active

    def depending_on(self, wanted: Iterable[str]) -> set[str]:
        """These inputs, and all values through which gradients flow to them."""
        found = set(wanted)
        count = 0
        while len(found) > count:  # once, and again for each turn through a delay
            count = len(found)
            for y in self.active_delays():
                if y.source in found or y.init in found:
                    found.add(y.name)
            for name, pulled in self._pulled.items():
                if any(load.source in found for load in pulled.loads):
                    found.add(name)
        return found

    def active_delays(self) -> list[Delay]:
        """Delays that carry gradients."""
        return [y for n, y in self.delays.items() if isinstance(y, Delay) and n in self._active]

    def pulled(self, name: str) -> Pulled | None:
        """Return what a value passes on of its cotangent, or None if it carries none."""
        return self._pulled.get(name)

    def shape(self, name: str) -> tuple[Index, ...]:
        found = self.inputs.get(name) or self.delays.get(name) or self.defs[name]
        return tuple(as_index(size) for size in found.shape)

    def dtype(self, name: str) -> DType:
        return (self.inputs.get(name) or self.delays.get(name) or self.defs[name]).dtype

    def place(self, name: str) -> tuple[Loc, str]:
        """Return the source line and the op of a value. An input has no op, and the line at which
        it is first read."""
        d = self.defs.get(name)
        if d is not None:
            return d.loc, d.op
        read = (
            d.loc for d in self.defs.values() if any(x.source == name for x in ex.loads(d.expr))
        )
        return next(read, UNKNOWN_LOC), ""


_in_use: weakref.WeakValueDictionary[tuple[object, ...], Differentiation]
_in_use = weakref.WeakValueDictionary()


def differentiated(forward: Program, wanted: Iterable[str]) -> Differentiation:
    """Return the differentiation of all definitions of a Program. Raises Unsupported. It is cached
    for the same Program, as long as that is in use."""
    active = frozenset(wanted)
    key = forward.contents(), active
    found = _in_use.get(key)
    return _in_use.setdefault(key, _differentiated(forward, active)) if found is None else found


def _differentiated(forward: Program, wanted: Iterable[str]) -> Differentiation:
    active = set(wanted)
    while True:
        diff = Differentiation(forward.inputs, active, forward.delays)
        for d in forward.defs.values():
            diff.add(d)
        more = {
            y.name
            for y in forward.delays.values()
            if y.dtype.is_float and (diff.carries(y.source) or diff.carries(y.init))
        }
        if more <= active:
            diff.must_save |= {y.source for y in forward.delays.values() if y.source in diff.defs}
            return diff
        active |= more


def recording(forward: Program, diff: Differentiation, saved: Collection[str]) -> Program:
    """Return the forward Program with the saved values as further outputs."""
    extra = [n for n in saved if n not in forward.outputs]
    return ex.pruned(
        Program(
            inputs=dict(forward.inputs),
            delays=dict(forward.delays),
            defs=dict(diff.defs),
            outputs=[*forward.outputs, *extra],
            checks=list(forward.checks),
            equalities=list(forward.equalities),
            shared_sums={**forward.shared_sums, **_sums(diff.defs, {*forward.outputs, *saved})},
        )
    )


def _sums(defs: Mapping[str, Def], at_hand: Container[str]) -> dict[str, DType]:
    """Return the rounded sums that the backward pass recomputes where it needs them."""
    return {n: d.tiles_dtype for n, d in defs.items() if d.is_rounded and n not in at_hand}


def backward(
    diff: Differentiation,
    wanted: Collection[str],
    given: Mapping[str, tuple[Index, ...]],
    saved: Collection[str] = (),
    adding: bool = False,
) -> Backward:
    """Return the backward Program for gradients of `wanted` inputs. `given`: outputs that have a
    cotangent, with its strides. `saved`: values that are inputs, not recomputed. `adding`: the
    Program adds scatters to the gradients by itself."""
    cots = _Cotangents(diff, wanted, adding)
    for name, strides in given.items():
        cots.give(name, strides)
    for y in diff.active_delays():
        cots.hand_back(y)
    for d in reversed(diff.defs.values()):
        cots.spread(d)
    for y in diff.active_delays():
        cots.close(y)
    gradients = {n: found for n in wanted if (found := cots.gradient(n)) is not None}
    handed_in = {n: ex.stored(n, diff.defs[n].shape, diff.defs[n].dtype) for n in saved}
    forward = {n: d for n, d in {**diff.defs, **diff.instead}.items() if n not in handed_in}
    scattered = [n for s in cots.scatters for n in (s.values, s.index)]
    scattered += [n for n, d in cots.defs.items() if d.adds_to]
    everything = {**diff.defs, **cots.defs}
    cots.defs = {n: exchanged(d, everything, diff.defs.values()) for n, d in cots.defs.items()}
    cots.defs = {n: with_weights_outside(d, everything) for n, d in cots.defs.items()}
    program = Program(
        inputs={**diff.inputs, **handed_in, **cots.inputs},
        delays={**_delays(diff), **cots.delays},
        defs=ex.ordered({**forward, **cots.defs}),
        outputs=[*filter(None, gradients.values()), *scattered],
        shared_sums=_sums(forward, ()),
    )
    return Backward(program=ex.pruned(program), gradients=gradients, scatters=tuple(cots.scatters))


def given_name(name: str) -> str:
    """Return the name of a cotangent that is an input of the backward pass."""
    return f"g_{name}"


def cotangent_name(name: str) -> str:
    """Return the name of the cotangent of a value."""
    return f"ct_{name}"


def _contribution(d: Def, pulled: Pulled, load: Load, value: Expr) -> Contribution:
    return Contribution(
        user=d.name,
        scope=pulled.scope,
        index=load.index,
        value=value,
        dropping=d.op in DROPPING and not isinstance(d.expr, Load),
    )


def _seed(d: Def) -> Load:
    """Return the load of a value's cotangent. A value that is added to an output, and read by
    nothing else, has the output's cotangent at the place of the addition."""
    if isinstance(d.expr, AddAt):
        return ex.load(given_name(d.adds_to), d.expr.place.index, d.dtype)
    return ex.load(cotangent_name(d.name), [as_index(a) for a in d.axes], d.dtype)


class _Cotangents:
    """The backward definitions, made from the last forward definition to the first."""

    def __init__(self, diff: Differentiation, wanted: Collection[str], adding: bool) -> None:
        self.diff = diff
        self.adding = adding
        self.needed = diff.depending_on(wanted)
        self.inputs: dict[str, Input] = {}
        self.defs: dict[str, Def] = {}
        self.parts: dict[str, list[Contribution]] = {}
        self.scatters: list[Scatter] = []
        self.delays: dict[str, Delay] = {}

    def hand_back(self, y: Delay) -> None:
        """Define the cotangent of a delay. A delay reads one step earlier, so its cotangent is a
        delay that runs the other way. The cotangent of the first step goes to the initial value."""
        if y.name not in self.needed:
            return
        ct, zero, back = cotangent_name(y.name), f"zero_{y.name}", f"back_{y.name}"
        shape, dtype = y.shape, y.dtype
        axes = tuple(Axis(f"y{k}", size) for k, size in enumerate(shape))
        self._put(zero, y.source, axes[1:], ex.const(0, dtype))
        self.delays[back] = Delay(
            name=back,
            source=ct,
            init=zero,
            shape=shape,
            dtype=dtype,
            reverse=not y.reverse,
            loc=y.loc,
            why=y.why,
        )
        at = tuple(as_index(a) for a in axes)
        self._hand(y.source, y.name, axes, ex.load(back, at, dtype))
        self._hand(y.init, y.name, axes[1:], ex.load(ct, (y.first, *at[1:]), dtype))

    def _hand(self, name: str, user: str, axes: tuple[Axis, ...], value: Expr) -> None:
        if name in self.needed:
            at = tuple(as_index(a) for a in axes)
            self.parts.setdefault(name, []).append(
                Contribution(user=user, scope=axes, index=at, value=value, dropping=False)
            )

    def close(self, y: Delay) -> None:
        """Define the cotangent of a value, and pass it on to the operands of the value."""
        if y.name not in self.needed:
            return
        dense, _ = self._split(y.name, False)
        if not self._define(y.name, dense):
            axes = tuple(Axis(f"y{k}", size) for k, size in enumerate(y.shape))
            self._put(cotangent_name(y.name), y.source, axes, ex.const(0, y.dtype))

    def give(self, name: str, strides: tuple[Index, ...]) -> None:
        """Make the cotangent of an output an input of the backward Program."""
        made = given_name(name)
        shape, dtype = self.diff.shape(name), self.diff.dtype(name)
        self.inputs[made] = Input(name=made, dtype=dtype, shape=shape, strides=strides)

    def spread(self, d: Def) -> None:
        """Define the cotangent of a value, and pass it on to the operands of the value."""
        pulled = self.diff.pulled(d.name)
        if pulled is None or d.name not in self.needed:
            return
        dense, sparse = self._split(d.name, isinstance(d.expr, Load))
        defined = given_name(d.adds_to) in self.inputs if d.adds_to else self._define(d.name, dense)
        for load, value in pulled.loads.items():
            if load.source not in self.needed:
                continue
            given = self.parts.setdefault(load.source, [])
            handed = _contribution(d, pulled, load, value)
            if defined:
                given.append(handed)
            given += [part.through(d, _seed(d), handed) for part in sparse]

    def gradient(self, name: str) -> str | None:
        """Return the output with the gradient of an input: "" if it consists of scatters, None if
        it is zero."""
        dense, sparse = self._split(name, False)
        parts = [part for part in sparse if not is_number(part.value, 0)]
        if parts and self.adding:
            self._define(name, dense, _summed_in(self.diff.dtype(name)))
            for k, part in enumerate(parts):
                self._add(name, part, f"add{k}_{name}")
            return cotangent_name(name)
        for part in parts:
            self._scatter(name, part)
        zero = self.diff.dtype(name) if sparse and not parts else None
        if self._define(name, dense, zero):
            return cotangent_name(name)
        return "" if parts else None

    def _split(self, name: str, is_view: bool) -> tuple[list[Contribution], list[Contribution]]:
        """Contributions that are written down over the value's own axes, and those at places that
        the data name: these become a mask where the rest is written down anyway."""
        parts = self.parts.get(name, [])
        dense = [p for p in parts if not p.is_sparse]
        sparse = [p for p in parts if p.is_sparse]
        if name in self.diff.delays:  # whatever is read of it: `_check` has seen that it can be
            return parts, []
        is_input = name in self.diff.inputs
        if is_input or ((dense or given_name(name) in self.inputs) and not is_view):
            y = tuple(Axis("y", size) for size in self.diff.shape(name))
            masks = [p for p in sparse if p.as_mask(y)]
            dense, sparse = [*dense, *masks], [p for p in sparse if p not in masks]
        return dense, sparse

    def _define(
        self, name: str, parts: list[Contribution], at_least_zero: DType | None = None
    ) -> bool:
        """Define the cotangent of a value as the sum of its parts. Return False if there are no
        parts and no cotangent is given. `at_least_zero`: define it in that dtype anyway, as 0,
        because more will be added to it."""
        given = given_name(name)
        if not parts and given not in self.inputs and at_least_zero is None:
            return False
        shape, dtype = self.diff.shape(name), self.diff.dtype(name)
        axes = tuple(Axis(f"y{k}", size) for k, size in enumerate(shape))
        within = accumulator(dtype, [p.value for p in parts])
        total = F(ex.const(0, within))
        if given in self.inputs:
            total = F(ex.cast(ex.load(given, [as_index(a) for a in axes], dtype), within))
        some = [p for p in parts if all(a.extent.const != 0 for a in p.scope)]
        for term in summed_terms(some, axes, within):
            total = total + F(term)
        self._put(cotangent_name(name), name, axes, ex.cast(total.e, at_least_zero or dtype))
        return True

    def _scatter(self, name: str, part: Contribution) -> None:
        """Define a scatter: values and flat indices over the contribution's own axes."""
        serial = len(self.scatters)
        made = Scatter(input=name, values=f"sv{serial}_{name}", index=f"si{serial}_{name}")
        self.scatters.append(made)
        within = accumulator(self.diff.dtype(name), [part.value])
        axes, moved = _fresh(part.scope)
        self._put(made.values, name, axes, at_indices(ex.cast(part.value, within), moved))
        flat = as_index(0)
        for i, size in zip(part.index, self.diff.shape(name), strict=True):
            flat = flat * size + i
        self._put(made.index, name, axes, at_indices(ex.at(flat, dtypes.i64), moved))

    def _add(self, name: str, part: Contribution, made: str) -> None:
        """Define an addition of the contribution to the cotangent, within the Program."""
        within = _summed_in(self.diff.dtype(name))
        if product(self.diff.shape(name)).const == 0:
            return
        place = ex.load(cotangent_name(name), part.index, within)
        axes, moved = _fresh(part.scope)
        whole = ex.add_at(place, ex.cast(part.value, within))
        self._put(made, name, axes, at_indices(whole, moved))

    def _put(self, made: str, source: str, axes: tuple[Axis, ...], expr: Expr) -> None:
        loc, op = self.diff.place(source)
        self.defs[made] = Def(name=made, axes=axes, expr=expr, loc=loc, op=op)


def _summed_in(dtype: DType) -> DType:
    """Return the dtype in which scatters are added to a gradient."""
    return dtypes.f64 if dtype is dtypes.f64 else dtypes.f32


def _fresh(scope: Sequence[Axis]) -> tuple[tuple[Axis, ...], dict[Axis, Index]]:
    """Return new axes for a definition, and the index over them for each axis of the scope."""
    fresh = {a: Axis(f"n{k}", a.extent) for k, a in enumerate(scope)}
    return tuple(fresh.values()), {a: as_index(b) for a, b in fresh.items()}


def gradients(program: Program, wanted: Iterable[str] | None = None) -> Program:
    """Return the backward Program for all outputs that carry gradients, with nothing saved.
    `wanted`: inputs; all of floats if None."""
    floats = [n for n, i in program.inputs.items() if i.dtype.is_float]
    diff = differentiated(program, floats if wanted is None else wanted)
    given = {n: row_major(diff.shape(n)) for n in program.results if diff.carries(n)}
    return diff.backward(floats if wanted is None else list(wanted), given, ()).program


# ---- programs -----------------------------------------------------------------------------------


def isolated(d: Def) -> list[Def]:
    """Return the definition, preceded by one for each reduction inside it, inner ones first."""
    made: list[Def] = []

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node is d.expr:
            return None
        axes = ex.ordered_axes(node, d.axes)
        part = Def(name=f"{d.name}_{len(made)}", axes=axes, expr=node, loc=d.loc, op=d.op)
        made.append(part)
        return ex.load(part.name, [as_index(a) for a in axes], node.dtype)

    if isinstance(d.expr, Reduce):
        body = Rewriter(visit)(d.expr.body)
        expr: Expr = ex.reduce(d.expr.fn, d.expr.axes, body, d.expr.dtype)
    else:
        expr = Rewriter(visit)(d.expr)
    return [*made, Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)]


def _delays(diff: Differentiation) -> dict[str, Delay]:
    return {n: y for n, y in diff.delays.items() if isinstance(y, Delay)}
