"""Runs a backward pass that is differentiated itself by kernels: gradients of gradients.

In: a call of a region, its saved inputs and the cotangents of its outputs, as part of PyTorch's
graph. Out: gradients that are part of it, too.

    energy = pairs(x).sum()                       x: [N, 3], N * N distances are never stored
    forces, = grad(energy, x, create_graph=True)  the backward Program with nothing saved, run as
                                                  a region of its own: `_EdgeRegion.apply`
    loss(forces).backward()                       the backward pass of that Program

PyTorch computes third derivatives. It also computes second ones of regions without such a Program:
those with carried values of loops, scatters, 16-bit floats, or ops that are not in `TWICE`. For an
op in `TWICE`, the derivative of the formula of its gradient is PyTorch's at every point. A norm is
not in it, since its slope is set to 0 at 0; nor is `prod`, which has a case for zeros.

A gradient depends on the same tensors as in PyTorch: on none through the mask of a maximum, with
zeros through that of a relu. To find them, PyTorch runs the region's ops on its meta device.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch

from lowtide.diagnostics.faults import survive
from lowtide.execute.autograd_function import (
    Call,
    Launch,
    Recorder,
    Region,
    Shape,
    by_eager,
    rebuilt,
)
from lowtide.execute.gradient import Gradient, cotangent_pattern
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.specialise.abstract import Place
from lowtide.texpr import expr as ex
from lowtide.texpr.autodiff import Backward, given_name
from lowtide.texpr.build import Unsupported
from lowtide.texpr.expr import Apply, Const, Def, Program
from lowtide.texpr.index import row_major
from lowtide.texpr.sizes import evaluate
from lowtide.torch_private import torch_state
from lowtide.torch_private.tensors import is_zero_tensor

Tensor = torch.Tensor
_FLOATS: Final = ("f32", "f64")
# Ops whose second derivatives are PyTorch's also at zeros, ties and kinks
TWICE: Final = frozenset({
    "F.log_softmax", "F.softmax", "abs", "add", "addmm", "amax", "amin", "arange", "arange.end",
    "asinh", "atan", "baddbmm", "bmm", "cat", "chunk", "clone", "contiguous", "cos", "cosh",
    "cross_entropy", "detach", "diagonal", "div", "einsum", "eq", "erf", "exp", "exp2",
    "expand", "expand_as", "expm1", "flatten", "flip", "full_like", "ge", "gelu", "getitem",
    "group_norm", "gt", "index_select", "layer_norm", "le", "leaky_relu", "linear", "log", "log1p",
    "log_softmax", "logsumexp", "lt", "masked_fill", "matmul", "max.dim", "maximum", "mean",
    "min.dim", "minimum", "mish", "mm", "movedim", "mse_loss", "mul", "mv", "narrow", "ne", "neg",
    "nll_loss", "ones", "ones_like", "outer", "permute", "pow", "reciprocal", "relu", "repeat",
    "reshape", "roll", "rsqrt", "scaled_dot_product_attention", "select", "sigmoid", "sign",
    "silu", "sin", "sinh", "softmax", "softplus", "split", "sqrt", "square", "squeeze", "stack",
    "sub", "sum", "t", "tan", "tanh", "tensordot", "to", "transpose", "tril", "triu", "unbind",
    "unsqueeze", "var", "view", "where", "zeros", "zeros_like",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """A backward Program, run as a region to be differentiated a second time. `names`: its tensors;
    `outputs`: for each wanted gradient its output, None where there is no gradient."""

    recorder: Recorder
    names: tuple[str, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EagerBackward:
    """Computes the same gradients by PyTorch, which differentiates them further. The last live-in
    is the call of the region. `picked`: for each result the input whose gradient it is."""

    of: Recorder
    names: tuple[str, ...]
    needed: tuple[bool, ...]
    picked: tuple[int, ...]
    orders: tuple[None, ...]

    @property
    def live_ins(self) -> range:
        return range(len(self.names) + 1)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        found = self.all_gradients(values)
        return [found[k] for k in self.picked]

    def all_gradients(self, values: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradient of each input, wanted or not."""
        *tensors, call = values
        known: dict[str, Tensor] = dict(zip(self.names, tensors, strict=True))
        g = self.of.gradient
        inputs = [known.get(n) for n in g.saved_inputs]
        cotangents = [known.get(given_name(n)) for n in g.program.results]
        return by_eager(call, inputs, cotangents, self.needed)


class _WithoutValues(Call):
    """A call whose tensors lie on PyTorch's meta device."""

    __slots__ = ()

    def __init__(self, call: Call) -> None:
        for name in Call.__slots__:
            setattr(self, name, getattr(call, name))

    def values(self) -> list[Any]:
        return [_on_meta(v) for v in super().values()]


def _on_meta(value: Any) -> Any:
    if isinstance(value, Shape):
        return replace(value, device=torch.device("meta"))
    return rebuilt(value, _on_meta)


class _Recorder(Recorder):
    """The recorder of a backward Program. `edges`: for each result the positions of the tensors
    that it depends on in PyTorch."""

    def __init__(
        self, executable: Any, gradient: Gradient, eager: _EagerBackward, launch: Launch,
        edges: Sequence[frozenset[int]],
    ) -> None:  # fmt: skip
        places = {n: Place(position=k, path=()) for k, n in enumerate(eager.names)}
        super().__init__(executable, gradient, eager, places, frozenset(), launch, by_eager)
        self.function = _EdgeRegion
        self.edges = edges
        self.apart = self.dead = ()


class _EdgeRegion(Region):
    """A region whose results depend on the same tensors as in PyTorch: `_Recorder.edges`."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = Region.forward(ctx, call, *tensors)
        edges = cast("_Recorder", call.recorder).edges
        needed = ctx.needs_input_grad
        apart = [
            x for x, to in zip(found, edges, strict=True) if not any(needed[1 + k] for k in to)
        ]
        if apart:
            ctx.mark_non_differentiable(*apart)
        ctx.forms = [(x.shape, x.dtype, x.device) for x in tensors]
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [*Region.backward(ctx, *cotangents)]
        edges = cast("_Recorder", ctx.call.recorder).edges
        given = [to for c, to in zip(cotangents, edges, strict=True) if c is not None]
        reached = frozenset[int]().union(*given)
        for k, (shape, dtype, device) in enumerate(ctx.forms):
            if k not in reached:
                found[1 + k] = None
            elif found[1 + k] is None and ctx.needs_input_grad[1 + k]:
                found[1 + k] = torch.zeros(shape, dtype=dtype, device=device)
        return tuple(found)


hide_with_callees(_EdgeRegion.backward)


def gradients(
    call: Call,
    kept: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> Sequence[Tensor | None]:
    """Return the gradients of the wanted inputs, see `by_eager`."""
    if torch_state.in_transform(cotangents):
        return by_eager(call, kept, cotangents, needed)
    r = call.recorder
    key = needed, tuple(c is not None for c in cotangents)
    if key not in r.seconds:
        try:
            r.seconds[key] = _second(call, kept, *key)
        except Exception as error:
            survive(error, "the gradient of a gradient")
            r.seconds[key] = None
    second: Second | None = r.seconds[key]
    if second is None:
        return by_eager(call, kept, cotangents, needed)
    g = r.gradient
    known = dict(zip(g.saved_inputs, kept, strict=True))
    for name, c in zip(g.program.results, cotangents, strict=True):
        if c is not None:
            known[given_name(name)] = _dense(c)
    tensors = [known[n] for n in second.names]
    found = second.recorder([*tensors], call.sizes, call.numbers, [*tensors, call])
    return [None if k is None else found[k] for k in second.outputs]


def _dense(c: Tensor) -> Tensor:
    if is_zero_tensor(c) or c.is_neg():
        c, _ = cotangent_pattern(c)
    return c.contiguous()


def _second(
    call: Call,
    kept: Sequence[Tensor],
    needed: tuple[bool, ...],
    has_cotangent: tuple[bool, ...],
) -> Second | None:
    r = call.recorder
    g = r.gradient
    wanted = [n for n, k in zip(g.wanted, r.wanted, strict=True) if needed[1 + k]]
    given = {
        n: row_major(g.diff.shape(n))
        for n, is_given in zip(g.program.results, has_cotangent, strict=True)
        if is_given
    }
    ops = {d.op for d in g.diff.defs.values() if d.op and d.dtype.is_float}
    if g.in_place_of or not ops <= TWICE or not all(map(_is_power_of_tensor, _powers(g))):
        return None
    made = g.diff.backward(wanted, given)
    if not _is_plain(made):
        return None
    program, names = _apart(made.program, g.diff.defs)
    floats = [n for n, x in program.inputs.items() if x.dtype.is_float]
    try:
        own = Gradient(program, floats, g.names, g.scalars, g.machine, g.tiles, f"{g.name} again")
    except Unsupported:
        return None
    if not own.exists:
        return None
    results, tensors = program.results, tuple(program.inputs)
    outputs = [made.gradients.get(n) if n in wanted else None for n in g.wanted]
    places = [results.index(names.get(n, n)) if n else None for n in outputs]
    eager = _EagerBackward(
        of=r,
        names=tensors,
        needed=needed,
        picked=tuple(places.index(k) for k in range(len(results))),
        orders=(None,) * len(results),
    )
    with outside_dispatch_modes():  # a dry run doesn't count this
        edges = _edges(eager, program, dict(zip(g.saved_inputs, kept, strict=True)), call)
    if edges is None or [e is None for e in edges] != [k is None for k in places]:
        return None
    hints = dict(zip(g.names, call.sizes, strict=True))
    executable = own.kernels(own.record(hints), hints)
    executable.write()

    def run(tensors: list[Tensor], sizes: Sequence[int], numbers: Sequence[float]) -> Any:
        return r.launch(executable, tensors, sizes, numbers)

    joined = [frozenset[int]()] * len(results)
    for k, to in zip(places, edges, strict=True):
        if k is not None and to is not None:
            joined[k] |= to
    recorder = _Recorder(run, own, eager, r.launch, joined)
    return Second(recorder=recorder, names=tensors, outputs=tuple(places))


def _edges(
    eager: _EagerBackward, program: Program, saved: Mapping[str, Tensor], call: Call
) -> list[frozenset[int] | None] | None:
    """For each input of the region the positions of the tensors that its gradient depends on, None
    if it has no gradient. None: PyTorch can't tell."""
    values: list[Any] = []
    sizes = dict(zip(eager.of.gradient.names, call.sizes, strict=True))
    for name, given in program.inputs.items():
        dtype = given.dtype.torch
        if name in saved:
            x = saved[name]
            like = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device="meta")
        else:
            shape = [evaluate(n, sizes) for n in given.shape]
            like = torch.empty(shape, dtype=dtype, device="meta")
        values.append(like.requires_grad_(given.dtype.is_float))
    floats = {k: x for k, x in enumerate(values) if x.requires_grad}
    with torch.device("meta"):
        try:
            found = eager.all_gradients([*values, _WithoutValues(call)])
        except (RuntimeError, NotImplementedError):  # what has no kernel there
            return None
        return [None if x is None else _reached(x, floats) for x in found]


def _reached(x: Tensor, floats: Mapping[int, Tensor]) -> frozenset[int]:
    if not x.requires_grad:
        return frozenset()
    found: Mapping[int, Any] = dict(
        zip(
            floats,
            torch.autograd.grad(
                x, [*floats.values()], torch.ones_like(x), retain_graph=True, allow_unused=True
            ),
            strict=True,
        )
    )
    return frozenset(k for k, slope in found.items() if slope is not None)


def _powers(g: Gradient) -> Iterator[Apply]:
    for d in g.diff.defs.values():
        for node in ex.walk(d.expr):
            if isinstance(node, Apply) and node.fn == "pow":
                yield node


def _is_power_of_tensor(power: Apply) -> bool:
    """Return whether it is a tensor to a number, whose logarithm plays no part."""
    base, exponent = power.args
    return isinstance(exponent, Const) and not isinstance(base, Const)


def _is_plain(made: Backward) -> bool:
    """Return whether each gradient is a value of its own, computed without loops, in 32 or 64
    bits."""
    p = made.program
    values = [*p.inputs.values(), *p.defs.values()]
    is_simple = not (
        made.scatters or p.delays or p.checks or any(d.adds_to for d in p.defs.values())
    )
    return is_simple and all(not x.dtype.is_float or x.dtype.name in _FLOATS for x in values)


def _apart(program: Program, forward: Container[str]) -> tuple[Program, Mapping[str, str]]:
    """Return the Program with names that its own backward Program does not use. A value outside of
    the `forward` Program has no op: the gradient rule of an op does not hold for its gradient."""
    # names derived from a definition never end in `_`
    names = {n: f"d_{n}_" for n in program.defs}
    defs: dict[str, Def] = {
        names[n]: replace(
            d, name=names[n], expr=ex.reading(d.expr, names), op=d.op if n in forward else ""
        )
        for n, d in program.defs.items()
    }
    outputs = [names.get(n, n) for n in program.outputs]
    return replace(program, defs=defs, outputs=outputs), names
