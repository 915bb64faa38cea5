"""Runs one region as one `torch.autograd.Function`.

In: a region's compiled forward Program, its `Gradient`, how its ops run in eager PyTorch. Out: a
callable in place of the kernels, whose results carry gradients.

    o = exe([a[0], a[1]], sizes, [], a)      forward kernels; inputs and a few values are saved
    loss(o).backward()                       backward kernels, compiled at their first use

PyTorch's engine joins regions. For a gradient of the gradient, the region's ops run again in
PyTorch, which can differentiate them any number of times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide.diagnostics.faults import survive
from lowtide.execute.gradient import Gradient, Pass, cotangent_pattern
from lowtide.execute.host_code import HostCode
from lowtide.execute.mutation import without_statistics
from lowtide.execute.parted import Kept, saved_for
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.interpret import Env, run_op
from lowtide.ir.named_results import build
from lowtide.memory import watching
from lowtide.memory.ledger import WATCHED
from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.runtime import ownership
from lowtide.runtime.block_kernels import KernelFault
from lowtide.specialise.abstract import Abs, Map, Place, Seq
from lowtide.specialise.specialise import Trace
from lowtide.texpr.autodiff import given_name
from lowtide.texpr.orders import Order, inverse
from lowtide.torch_private import torch_state
from lowtide.torch_private.autograd import StopRecomputation, keeps_graph
from lowtide.torch_private.tensors import version

Tensor = torch.Tensor
Values = Sequence[Any]
Path = tuple[Any, ...]  # subscripts: positions, and keys of dicts
Launch = Callable[[Any, list[Tensor], Sequence[int], Sequence[float]], Sequence[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRegion:
    """The ops of a region for PyTorch to run, without writing running statistics. `outputs`: for
    each kernel output, the value that it is and the subscripts into it, None for one that is only
    written into another tensor. `orders`: the order of dims in which the kernels store an output.
    `autocast`: the lower dtype of the forward pass."""

    ops: tuple[Op, ...]
    live_ins: tuple[Value, ...]
    outputs: tuple[tuple[Value, Path] | None, ...]
    orders: tuple[Order | None, ...]
    device_type: str
    autocast: torch.dtype | None

    def run(self, values: Values, run_op: Callable[[Op, Env], None] = run_op) -> Env:
        """Run each op by `run_op`; return all values."""
        env: dict[Value, Any] = dict(zip(self.live_ins, values, strict=True))
        with torch.autocast(self.device_type, self.autocast, enabled=self.autocast is not None):
            for op in self.ops:
                run_op(op, env)
        return env

    def __call__(self, values: Values) -> list[Any]:
        env = self.run(values)
        found = [None if at is None else item(env[at[0]], at[1]) for at in self.outputs]
        return [
            x if order is None or x is None else x.permute(order)
            for x, order in zip(found, self.orders, strict=True)
        ]


def eager_region(
    block: Block, start: int, stop: int, live_ins: Sequence[Value], trace: Trace, host: HostCode,
    device_type: str,
) -> EagerRegion | None:  # fmt: skip
    """Return how PyTorch computes the outputs of the kernels; None if one of them is not a value of
    the block."""
    env, written = trace.env, {id(new) for _, new in trace.writes}
    ops = [op for op in block.ops[start:stop] if op is not block.terminator]
    known = [v for v in (*live_ins, *(r for op in ops for r in op.results)) if v in env]
    rows = ((_paths(v, env[v], x) for v in known) for x in host.outputs)
    places = [next(itertools.chain.from_iterable(found), None) for found in rows]
    if any(p is None and id(x) not in written for p, x in zip(places, host.outputs, strict=True)):
        return None
    return EagerRegion(
        ops=tuple(without_statistics(ops) if written else ops),
        live_ins=tuple(live_ins),
        outputs=tuple(places),
        orders=host.orders,
        device_type=device_type,
        autocast=torch_state.autocast_dtype(device_type),
    )


def _paths(v: Value, x: Abs, wanted: Abs) -> list[tuple[Value, Path]]:
    if x is wanted:
        return [(v, ())]
    if isinstance(x.value, Map):
        inner = x.value.entries().items()
    elif isinstance(x.value, Seq):
        inner = enumerate(x.value.elems)
    else:
        return []
    return [(v, (k, *path)) for k, e in inner for _, path in _paths(v, e, wanted)]


def item(value: Any, path: Path) -> Any:
    """Return the element of a value at these subscripts."""
    for k in path:
        value = value[k]
    return value


@dataclass(frozen=True, slots=True)
class _Shape:
    """A placeholder for a tensor whose values the backward pass does not need."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def launched(
    executable: Any, tensors: list[Tensor], sizes: Sequence[int], numbers: Sequence[float]
) -> Sequence[Tensor]:
    """Run compiled kernels. A dry run passes another function instead."""
    return executable(tensors, sizes, numbers)


class Recorder:
    """Has the call signature of the kernels, plus all live-ins as the last argument.

    `places`: the position of each tensor of the Program among the live-ins. `copies`: inputs that
    the function may change in place later; the backward pass gets a copy of those it needs.
    `launch` runs the kernels of a backward pass.
    """

    def __init__(
        self,
        executable: Any,
        gradient: Gradient,
        eager: EagerRegion,
        places: Mapping[str, Place],
        copies: frozenset[str],
        launch: Launch,
    ) -> None:
        ownership.prepare()
        self.executable = executable
        self.launch = launch
        self.gradient = gradient
        self.eager = eager
        self.places = places
        self.names = tuple(gradient.program.inputs)
        self.wanted = tuple(self.names.index(n) for n in gradient.wanted)
        self.apart = tuple(k for k in self.wanted if self.names[k] not in gradient.reached)
        self.copied = tuple(
            k for k, n in enumerate(self.names) if n in copies and n in gradient.kept_inputs
        )

    def __call__(
        self,
        tensors: list[Tensor],
        sizes: Sequence[int],
        numbers: Sequence[float],
        a: Values,
        written: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> Sequence[Tensor]:
        """Return the outputs, with a graph. `written`: writes the running statistics, given the
        outputs. It is needed if PyTorch's checkpoint stops the recomputation at the last saved
        tensor, before the caller writes them."""
        for k in self.copied:
            tensors[k] = copied(tensors[k])
        for k in self.apart:
            tensors[k] = tensors[k].detach()
        call = _Call(self, tuple(sizes), tuple(numbers), a)
        if written is None:
            return _Region.apply(call, *tensors)  # pyright: ignore[reportUnknownVariableType]
        call.made = []
        try:
            return _Region.apply(call, *tensors)  # pyright: ignore[reportUnknownVariableType]
        except StopRecomputation:
            if all(map(bool, call.made[len(self.gradient.program.results) :])):
                written(call.made)
            raise
        finally:
            call.made = None  # the call lives until the backward pass


def copied(x: Tensor) -> Tensor:
    """Return a copy with the same strides, since the kernels were compiled for these."""
    copy = x.clone()
    if copy.stride() == x.stride() or not x.numel():
        return copy
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,)).clone().as_strided(x.shape, x.stride())


class _Call:
    """One forward run, saved for its backward pass: sizes, numbers, and live-ins that are not
    tensors."""

    __slots__ = (
        *("aliases", "left", "live_ins", "made", "numbers", "recorder", "rules", "saved"),
        "sizes",
        "versions",
    )

    def __init__(
        self, recorder: Recorder, sizes: tuple[int, ...], numbers: tuple[float, ...], a: Values
    ) -> None:
        self.recorder = recorder
        self.sizes = sizes
        self.numbers = numbers
        self.live_ins = [_without_data(v) for v in a]
        self.rules = ownership.rules()
        self.saved: tuple[str, ...] = ()
        self.made: list[Tensor] | None = None  # results and checks, where they are asked for
        self.aliases: dict[str, Tensor] = {}  # outputs that the backward pass reads, and …
        self.versions: dict[str, int] = {}  # … how often each had been changed in place
        self.left: Kept | None = None  # after a backward pass of some outputs


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Shape(value.shape, value.dtype, value.device)
    return _rebuilt(value, _without_data)


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a list, tuple or dict with its elements replaced; anything else unchanged."""
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {k: change(v) for k, v in entries.items()}
    if not isinstance(value, tuple | list):
        return value
    elems = [change(v) for v in cast("Sequence[Any]", value)]
    return build(cast("type", type(value)), elems)  # pyright: ignore[reportUnknownArgumentType]


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        r = call.recorder
        g = r.gradient
        found = r.executable(tensors, call.sizes, call.numbers)
        count = len(g.program.results)
        extra = [s for s in g.saved if s.output < 0]
        outputs = [_turned(x, o) for x, o in zip(found[:count], r.eager.orders, strict=True)]
        kept, checks = found[count : count + len(extra)], found[count + len(extra) :]
        for s in g.saved:
            if s.output >= 0:
                alias = call.aliases[s.name] = _stored(outputs[s.output].detach(), r, s.output)
                call.versions[s.name] = version(alias)
        call.saved = tuple(s.name for s in extra)
        given = dict(zip(r.names, tensors, strict=True))
        given.update({n: outputs[k] for n, k in g.in_place_of.items()})
        ctx.save_for_backward(*(given[n] for n in g.kept_inputs), *kept)
        ctx.call = call
        ctx.set_materialize_grads(False)
        dead = [o for o, carries in zip(outputs, g.carrying, strict=True) if not carries]
        ctx.mark_non_differentiable(*dead, *checks)
        if call.made is not None:
            call.made += (*outputs, *checks)
        return (*outputs, *checks)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        is_watched = call.rules.is_rehearsal and WATCHED in ctx.metadata
        unshared = ownership.all_alone_in_backward(cotangents, call.rules, is_watched)
        r = call.recorder
        count = len(r.gradient.kept_inputs)
        g = r.gradient
        kept, call.left = saved_for(
            *(ctx, call.left, g.parts, (*g.kept_inputs, *call.saved), cotangents),
            lambda parts: g.reads(parts, (*call.saved, *call.aliases)),
        )
        carrying = g.carrying
        given = [
            _stored(c, r, k) if carries and c is not None else None
            for k, (c, carries) in enumerate(zip(cotangents, carrying, strict=False))
        ]
        needed = tuple(bool(ctx.needs_input_grad[1 + k]) for k in r.wanted)
        with watching.aside():
            if torch.is_grad_enabled() or torch_state.in_transform(given):
                found = _by_eager(call, kept[:count], given, needed)
            else:
                found = _by_kernels(call, kept, given, needed, unshared)
        gradients: list[Tensor | None] = [None] * len(r.names)
        for k, value in zip(r.wanted, found, strict=True):
            gradients[k] = value
        return (None, *gradients)


def _turned(x: Tensor, order: Order | None) -> Tensor:
    """Return an output in the program's order of dims; the kernels store its dims in this order. It
    is not a view of the output in PyTorch's sense, so it may be changed in place."""
    return x if order is None else x.permute(inverse(order)).data


def _stored(x: Tensor, recorder: Recorder, output: int) -> Tensor:
    """Return the tensor in the order of dims in which the kernels store it."""
    order = recorder.eager.orders[output]
    return x if order is None else x.permute(order)


hide_with_callees(_Region.backward)  # which a function that Dynamo has compiled may call


def _by_kernels(
    call: _Call,
    kept: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    unshared: Sequence[int] = (),
) -> list[Tensor | None]:
    """Return the gradients. `unshared`: cotangents without other references, whose memory may be
    reused for gradients."""
    g = call.recorder.gradient
    tensors = dict(zip((*g.kept_inputs, *call.saved), kept, strict=True))
    unchanged = {n: x for n, x in call.aliases.items() if version(x) == call.versions[n]}
    if g.value_and_grad is not None:
        found = g.value_and_grad.gradients
        return [_scaled(tensors.get(found.get(n, "")), cotangents) if x else None
                for n, x in zip(g.wanted, needed, strict=True)]  # fmt: skip
    tensors.update(unchanged)
    patterns: list[tuple[bool, ...] | None] = []
    free: list[str] = []
    for k, (name, carries) in enumerate(zip(g.program.results, g.carrying, strict=True)):
        cotangent = cotangents[k]
        if cotangent is None or not carries:
            patterns.append(None)
            continue
        tensors[given_name(name)], pattern = cotangent_pattern(cotangent)
        patterns.append(pattern)
        if k in unshared and tensors[given_name(name)] is cotangent:  # no copy of it
            free.append(given_name(name))
    hints = dict(zip(g.names, call.sizes, strict=True))
    try:
        made = g.backward(needed, tuple(patterns), (*call.saved, *unchanged), hints)
        if made.executable is not None:
            made.executable.write()
    except Exception as error:
        survive(error, "the backward pass")
        return _by_eager(call, kept[: len(g.kept_inputs)], cotangents, needed)
    try:
        results = _run(made, tensors, call, free)
    except KernelFault:
        return _by_eager(call, kept[: len(g.kept_inputs)], cotangents, needed)
    return [results.get(n) if x else None for n, x in zip(g.wanted, needed, strict=True)]


def _scaled(found: Tensor | None, cotangents: Sequence[Tensor | None]) -> Tensor | None:
    """Return a gradient for cotangent 1, multiplied by the cotangent; in place if the gradient is
    not needed again."""
    scalar = next((c for c in cotangents if c is not None), None)
    if found is None or scalar is None:
        return None
    scalar = scalar.reshape(()).to(found.dtype)
    return found * scalar if keeps_graph() else found.mul_(scalar)


def _run(
    made: Pass, tensors: Mapping[str, Tensor], call: _Call, free: Sequence[str]
) -> dict[str, Tensor]:
    """Run a compiled backward pass; return the gradients by input, in the memory of `free` tensors
    where possible."""
    found: dict[str, Tensor] = {}
    if made.executable is not None:
        given = [tensors[n] for n in made.inputs]
        executable = made.over(free) if free else made.executable
        results = call.recorder.launch(executable, given, call.sizes, call.numbers)
        found = dict(zip(made.outputs, results, strict=True))
        del results
    gradients: dict[str, Tensor] = {}
    for name, output in made.gradients.items():
        place = call.recorder.places[name]
        like: _Shape = item(call.live_ins, (place.position, *place.path))
        dense = found[output] if output else None
        if dense is not None and name in made.orders:
            dense = dense.permute(inverse(made.orders[name]))
        parts = [(found[s.index], found[s.values]) for s in made.scatters if s.input == name]
        if dense is None or parts:
            gradients[name] = _added(dense, parts, like)
            continue
        if dense.dtype is not like.dtype:  # the kernels have added to it
            del found[output]
        gradients[name] = dense.to(like.dtype)
    return gradients


def _added(dense: Tensor | None, parts: Sequence[tuple[Tensor, Tensor]], like: _Shape) -> Tensor:
    """Return a gradient with values scattered into it one after another, at indices from the
    data."""
    wide = torch.float64 if like.dtype is torch.float64 else torch.float32
    device = parts[0][1].device
    total = torch.zeros(like.shape, dtype=wide, device=device) if dense is None else dense.to(wide)
    flat = total.view(-1)
    for index, values in parts:
        flat.index_add_(0, index.reshape(-1), values.reshape(-1).to(wide))
    return total.to(like.dtype)


def _by_eager(
    call: _Call,
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Run the region's ops again in PyTorch and return their gradients, which are themselves
    differentiable."""
    r = call.recorder
    g = r.gradient
    again = torch.is_grad_enabled()
    known = dict(zip(g.kept_inputs, inputs, strict=True))
    with torch.enable_grad():
        values = [*call.live_ins]
        starts: dict[str, Tensor] = {}
        for name, place in r.places.items():
            x = known.get(name)
            if name in g.wanted:
                x = _start(item(values, (place.position, *place.path)) if x is None else x)
                starts[name] = x
            if x is not None:
                _put(values, place, x)
        outputs = r.eager([_with_data(v) for v in values])
        pairs = [
            (o, c)
            for o, c, carries in zip(outputs, cotangents, g.carrying, strict=True)
            if carries and c is not None and o.requires_grad
        ]
        chosen = [starts[n] for n, x in zip(g.wanted, needed, strict=True) if x]
        if not pairs or not chosen:
            return [None] * len(needed)
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                chosen,
                [c for _, c in pairs],
                create_graph=again,
                allow_unused=True,
            )
        )
    return [next(found) if x else None for x in needed]


def _start(x: Tensor | _Shape) -> Tensor:
    """Return a tensor to differentiate with respect to that is still part of the outer graph."""
    if isinstance(x, _Shape):
        return x.tensor().requires_grad_()
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _put(values: list[Any], place: Place, x: Tensor) -> None:
    values[place.position] = _replaced(values[place.position], place.path, x)


def _replaced(value: Any, path: Path, x: Tensor) -> Any:
    if not path:
        return x
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {**entries, path[0]: _replaced(entries[path[0]], path[1:], x)}
    elems: list[Any] = list(value)
    elems[path[0]] = _replaced(elems[path[0]], path[1:], x)
    return build(type(value), elems)  # pyright: ignore[reportUnknownArgumentType]


def _with_data(value: Any) -> Any:
    return value.tensor() if isinstance(value, _Shape) else _rebuilt(value, _with_data)
