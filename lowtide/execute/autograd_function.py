"""Runs one region as one `torch.autograd.Function`.

In: a region's compiled forward Program, its `Gradient`, its ops for eager PyTorch. Out: a callable
in place of the kernels, whose results carry gradients.

    o = exe([a[0], a[1]], sizes, [], a)      forward kernels; inputs and a few values are saved
    loss(o).backward()                       backward kernels, compiled at their first use

PyTorch's engine joins regions. For a gradient of the gradient see `second_order`; PyTorch, which
can differentiate a region's ops any number of times, runs them again where that does not serve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any, Protocol, cast

import torch

from lowtide.diagnostics.faults import survive
from lowtide.execute.gradient import Gradient, Pass, cotangent_pattern
from lowtide.execute.host_code import HostCode
from lowtide.execute.mutation import copied, without_statistics
from lowtide.execute.parted import Remaining, saved_for
from lowtide.execute.seen_results import Seen, check_unseen, dependent, watch
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
from lowtide.torch_private.autograd import FunctionBase, StopRecomputation, keeps_graph
from lowtide.torch_private.tensors import version

Tensor = torch.Tensor
Values = Sequence[Any]
Path = tuple[Any, ...]  # subscripts: positions, and keys of dicts
Launch = Callable[[Any, list[Tensor], Sequence[int], Sequence[float]], Sequence[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRegion:
    """The ops of a region for PyTorch to run, without writes to running statistics. `outputs`: for
    each kernel output its value in the block and the subscripts into it, None for an output that is
    only written into another tensor. `orders`: the order of dims in which the kernels store an
    output. `autocast`: the lower dtype of the forward pass."""

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
        ops=tuple(without_statistics(ops, live_ins) if written else ops),
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
class Shape:
    """A placeholder for a tensor whose values the backward pass does not need."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def launched(
    executable: Any, tensors: list[Tensor], sizes: Sequence[int], numbers: Sequence[float]
) -> Sequence[Tensor]:
    """Run compiled kernels; a dry run passes another function."""
    return executable(tensors, sizes, numbers)


class Eager(Protocol):
    """Ops that PyTorch can run: the members of an `EagerRegion` that `by_eager` reads."""

    @property
    def live_ins(self) -> Sequence[Any]: ...
    @property
    def orders(self) -> Sequence[Order | None]: ...
    def __call__(self, values: Values) -> list[Any]: ...


class Recorder:
    """A function with the call signature of the kernels, plus all live-ins as the last argument.

    `places`: the position of each tensor of the Program among the live-ins. `copies`: inputs that
    the function may change in place later; the backward pass gets a copy of those it needs.
    `launch` runs the kernels of a backward pass. `gradient` has recorded what it saves.
    `with_graph` computes gradients that are part of a graph, as `by_eager` does."""

    def __init__(
        self,
        executable: Any,
        gradient: Gradient,
        eager: Eager,
        places: Mapping[str, Place],
        copies: frozenset[str],
        launch: Launch,
        with_graph: Callable[..., Sequence[Tensor | None]],
    ) -> None:
        ownership.prepare()
        self.function: type[Region] = Region
        self.executable = executable
        self.launch = launch
        self.with_graph = with_graph
        self.seconds: dict[tuple[Any, ...], Any] = {}  # see `second_order`
        self.gradient = gradient
        self.eager = eager
        self.places = places
        self.names = tuple(gradient.program.inputs)
        self.wanted = tuple(self.names.index(n) for n in gradient.wanted)
        self.apart = tuple(k for k in self.wanted if self.names[k] not in gradient.reached)
        self.copied = tuple(
            k for k, n in enumerate(self.names) if n in copies and n in gradient.saved_inputs
        )
        # Fields for fast calls, without look-ups by name. `held`: inputs; outputs are -1, -2, …
        self.results = tuple(gradient.program.results)
        self.saved = tuple(s.name for s in gradient.saved if s.output < 0)
        self.shared = tuple((s.name, s.output) for s in gradient.saved if s.output >= 0)
        instead = {n: -1 - k for n, k in gradient.in_place_of.items()}
        self.held = tuple(instead.get(n, self.names.index(n)) for n in gradient.saved_inputs)
        self.dead = tuple(k for k, carries in enumerate(gradient.carrying) if not carries)
        self.dependent = dependent(gradient.program, gradient.carrying)
        self.is_turned = any(order is not None for order in eager.orders)
        # Live-ins that are tensors, of which a call stores the sizes only, and the others.
        self.tensors = tuple(p.position for p in places.values() if not p.path)
        self.others = tuple({*range(len(eager.live_ins))} - {*self.tensors})
        self.forms: tuple[tuple[torch.dtype, torch.device], ...] = ()  # the same in every call
        self.ways: dict[tuple[Any, ...], _Way] = {}

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
        call = Call(self, sizes, numbers, a)
        if written is None:
            return self._applied(call, tensors)
        call.made = []
        try:
            return self._applied(call, tensors)
        except StopRecomputation:
            if all(map(bool, call.made[len(self.results) :])):
                written(call.made)
            raise
        finally:
            call.made = None  # the call lives until the backward pass

    def _applied(self, call: Call, tensors: list[Tensor]) -> Sequence[Tensor]:
        found = self.function.apply(call, *tensors)
        call.seen = watch(found, self.dependent, self.gradient.program)
        return found

    def way(
        self,
        needed: tuple[bool, ...],
        patterns: tuple[tuple[bool, ...] | None, ...],
        unchanged: tuple[bool, ...],
        sizes: Sequence[int],
    ) -> _Way:
        """Return how the gradients are computed for this combination, see `_by_kernels`."""
        key = needed, patterns, unchanged, torch_state.may_add(self.gradient.machine)
        found = self.ways.get(key)
        if found is None:
            found = self.ways[key] = _way(self, needed, patterns, unchanged, sizes)
        return found


class Call:
    """One forward run, for its backward pass: sizes, numbers, and live-ins, the sizes only of their
    tensors. `aliases`: outputs that the backward pass reads; `versions`: their changes in place."""

    __slots__ = (
        *("aliases", "left", "live_ins", "made", "numbers", "recorder", "rules", "seen", "sizes"),
        "versions",
    )

    def __init__(
        self, recorder: Recorder, sizes: Sequence[int], numbers: Sequence[float], a: Values
    ) -> None:
        self.recorder = recorder
        self.sizes = tuple(sizes)
        self.numbers = tuple(numbers)
        self.rules = ownership.rules()
        self.made: list[Tensor] | None = None  # results and checks, if `written` needs them
        self.left: Remaining | None = None  # after a backward pass of some outputs
        self.aliases: Sequence[Tensor] = ()
        self.seen: Seen = ()
        self.versions: Sequence[int] = ()
        if not recorder.forms:
            recorder.forms = tuple((a[k].dtype, a[k].device) for k in recorder.tensors)
        self.live_ins = live_ins = [*a]
        for k in recorder.tensors:
            live_ins[k] = a[k].shape
        for k in recorder.others:
            live_ins[k] = _without_data(a[k])

    def values(self) -> list[Any]:
        """Return the live-ins, with placeholders for tensors."""
        found = [*self.live_ins]
        for k, form in zip(self.recorder.tensors, self.recorder.forms, strict=True):
            found[k] = Shape(found[k], *form)
        return found


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Shape(value.shape, value.dtype, value.device)
    return rebuilt(value, _without_data)


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a list, tuple or dict with its elements replaced; anything else unchanged."""
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {k: change(v) for k, v in entries.items()}
    if not isinstance(value, tuple | list):
        return value
    elems = [change(v) for v in cast("Sequence[Any]", value)]
    return build(cast("type", type(value)), elems)  # pyright: ignore[reportUnknownArgumentType]


class Region(FunctionBase):
    """Its `apply` is C's: no transform of torch.func is on where a program runs."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        r = call.recorder
        found = r.executable(tensors, call.sizes, call.numbers)
        count = len(r.results)
        outputs, extra = found[:count], count + len(r.saved)
        kept, checks = found[count:extra], found[extra:]
        if r.is_turned:
            outputs = [_permuted(x, o) for x, o in zip(outputs, r.eager.orders, strict=True)]
        if r.shared:
            call.aliases = [_stored(outputs[k].detach(), r, k) for _, k in r.shared]
            call.versions = [*map(version, call.aliases)]
        ctx.save_for_backward(*[tensors[k] if k >= 0 else outputs[-1 - k] for k in r.held], *kept)
        ctx.call = call
        ctx.set_materialize_grads(False)
        if r.dead or checks:
            ctx.mark_non_differentiable(*[outputs[k] for k in r.dead], *checks)
        if call.made is not None:
            call.made += (*outputs, *checks)
        return (*outputs, *checks)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        is_watched = call.rules.is_rehearsal and WATCHED in ctx.metadata
        unshared = ownership.all_alone_in_backward(cotangents, call.rules, is_watched)
        r = call.recorder
        g = r.gradient
        if call.seen:
            check_unseen(call.seen, g.program)
        if len(g.parts) < 2:
            kept: Sequence[Tensor] = ctx.saved_tensors if r.held or r.saved or r.shared else ()
        else:
            shared = [name for name, _ in r.shared]
            kept, call.left = saved_for(
                *(ctx, call.left, g.parts, (*g.saved_inputs, *r.saved), cotangents),
                lambda parts: g.reads(parts, (*r.saved, *shared)),
            )
        given = [
            (_stored(c, r, k) if r.is_turned else c) if carries and c is not None else None
            for k, (c, carries) in enumerate(zip(cotangents, g.carrying, strict=False))
        ]
        needed: tuple[bool, ...] = ctx.needs_input_grad
        with watching.aside():
            if torch.is_grad_enabled() or torch_state.in_transform(given):
                found = r.with_graph(call, kept[: len(r.held)], given, needed)
            else:
                found = _by_kernels(call, kept, given, needed, unshared)
        gradients: list[Tensor | None] = [None] * len(needed)
        for k, value in zip(r.wanted, found, strict=True):
            gradients[1 + k] = value
        return tuple(gradients)


def _permuted(x: Tensor, order: Order | None) -> Tensor:
    """Return an output in the program's order of dims; the kernels store its dims in this order. It
    is not a view of the output in PyTorch's sense, so it may be changed in place."""
    return x if order is None else x.permute(inverse(order)).data


def _stored(x: Tensor, recorder: Recorder, output: int) -> Tensor:
    """Return the tensor in the order of dims in which the kernels store it."""
    order = recorder.eager.orders[output]
    return x if order is None else x.permute(order)


hide_with_callees(Region.backward)  # a function that Dynamo has compiled may call it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """The compiled gradients for one combination of wanted ones, cotangents and saved values.
    `picked`: the kernels' inputs, by position among saved tensors, cotangents and aliases.
    `gradients`: for each of the wanted inputs, the place of its gradient."""

    made: Pass
    picked: tuple[int, ...]
    gradients: tuple[_Found | int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Finds a gradient that is more than a result of the kernels, such as one with scatters.
    `output`: the dense result, or -1. `is_last`: no other gradient is made of it. `order`: of its
    dims in memory. `parts`: (index, values) of each scatter. `place`: of the live-in."""

    output: int
    is_last: bool
    order: Order | None
    parts: tuple[tuple[int, int], ...]
    dtype: torch.dtype
    place: Place

    def gradient(self, results: list[Any], call: Call) -> Tensor:
        """Return the gradient, in the input's dtype."""
        dense: Tensor | None = results[self.output] if self.output >= 0 else None
        parts = [(results[index], results[values]) for index, values in self.parts]
        if dense is not None and self.order is not None:
            dense = dense.permute(inverse(self.order))
        if dense is None or parts:
            form: Shape = item(call.values(), (self.place.position, *self.place.path))
            return _added(dense, parts, form)
        if self.is_last:
            results[self.output] = None
        return dense.to(self.dtype)


def _by_kernels(
    call: Call,
    kept: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    unshared: Sequence[int] = (),
) -> list[Tensor | None]:
    """Return the gradients of the wanted inputs. `needed`: of all arguments of the Function.
    `unshared`: cotangents without other references, whose memory may be reused for gradients."""
    r = call.recorder
    if r.gradient.value_and_grad is not None:
        found = r.gradient.value_and_grad.gradients
        known = dict(zip((*r.gradient.saved_inputs, *r.saved), kept, strict=True))
        return [
            _scaled(known.get(found.get(r.names[k], "")), cotangents) if needed[1 + k] else None
            for k in r.wanted
        ]
    patterns: list[tuple[bool, ...] | None] = []
    free: list[str] = []
    dense: list[Tensor | None] = []
    for k, cotangent in enumerate(cotangents):
        if cotangent is None:
            patterns.append(None)
            dense.append(None)
            continue
        x, pattern = cotangent_pattern(cotangent)
        patterns.append(pattern)
        dense.append(x)
        if k in unshared and x is cotangent:  # no copy of it
            free.append(given_name(r.results[k]))
    unchanged = tuple(map(eq, map(version, call.aliases), call.versions))
    try:
        way = r.way(needed, tuple(patterns), unchanged, call.sizes)
    except Exception as error:
        survive(error, "the backward pass")
        return by_eager(call, kept[: len(r.held)], cotangents, needed)
    if way.made.executable is None:
        results = list[Tensor]()
    else:
        values = (*kept, *dense, *call.aliases)
        given = [cast("Tensor", values[k]) for k in way.picked]
        executable = way.made.reusing(free) if free else way.made.executable
        try:
            results = [*r.launch(executable, given, call.sizes, call.numbers)]
        except KernelFault:
            return by_eager(call, kept[: len(r.held)], cotangents, needed)
    return [
        at.gradient(results, call)
        if isinstance(at, _Found)
        else None
        if at is None
        else results[at]
        for at in way.gradients
    ]


def _scaled(found: Tensor | None, cotangents: Sequence[Tensor | None]) -> Tensor | None:
    """Return a gradient for cotangent 1, multiplied by the cotangent; in place if the gradient is
    not needed again."""
    scalar = next((c for c in cotangents if c is not None), None)
    if found is None or scalar is None:
        return None
    scalar = scalar.reshape(()).to(found.dtype)
    return found * scalar if keeps_graph() else found.mul_(scalar)


def _way(
    r: Recorder,
    needed: tuple[bool, ...],
    patterns: tuple[tuple[bool, ...] | None, ...],
    unchanged: tuple[bool, ...],
    sizes: Sequence[int],
) -> _Way:
    """Compile the kernels for a combination, see `_by_kernels`."""
    g = r.gradient
    wanted = tuple(needed[1 + k] for k in r.wanted)
    shared = [name for name, _ in r.shared]
    saved = (*r.saved, *itertools.compress(shared, unchanged))
    made = g.backward(wanted, patterns, saved, dict(zip(g.names, sizes, strict=True)))
    if made.executable is not None:
        made.executable.write()
    values = [*g.saved_inputs, *r.saved, *map(given_name, r.results), *shared]
    last = {output: name for name, output in made.gradients.items()}
    found: list[_Found | int | None] = []
    for name, is_needed in zip(g.wanted, wanted, strict=True):
        output = made.gradients.get(name)
        if not is_needed or output is None:
            found.append(None)
            continue
        at = made.outputs.index(output) if output else -1
        whole = _Found(
            output=at,
            is_last=last[output] == name,
            order=made.orders.get(name),
            parts=tuple(
                (made.outputs.index(s.index), made.outputs.index(s.values))
                for s in made.scatters
                if s.input == name
            ),
            dtype=g.program.inputs[name].dtype.torch,
            place=r.places[name],
        )
        is_plain = at >= 0 and made.dtypes[at] is whole.dtype
        found.append(at if is_plain and whole.order is None and not whole.parts else whole)
    picked = tuple(values.index(n) for n in made.inputs)
    return _Way(made=made, picked=picked, gradients=tuple(found))


def _added(dense: Tensor | None, parts: Sequence[tuple[Tensor, Tensor]], like: Shape) -> Tensor:
    """Return a gradient with values scattered into it one after another, at indices from the
    data."""
    wide = torch.float64 if like.dtype is torch.float64 else torch.float32
    device = parts[0][1].device
    total = torch.zeros(like.shape, dtype=wide, device=device) if dense is None else dense.to(wide)
    flat = total.view(-1)
    for index, values in parts:
        flat.index_add_(0, index.reshape(-1), values.reshape(-1).to(wide))
    return total.to(like.dtype)


def by_eager(
    call: Call,
    inputs: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Run the region's ops again in PyTorch and return their gradients, which are themselves
    differentiable."""
    r = call.recorder
    g = r.gradient
    create_graph = torch.is_grad_enabled()
    known = dict(zip(g.saved_inputs, inputs, strict=True))
    with torch.enable_grad():
        values = call.values()
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
        wanted = [needed[1 + k] for k in r.wanted]
        chosen = [starts[n] for n, x in zip(g.wanted, wanted, strict=True) if x]
        if not pairs or not chosen:
            return [None] * len(wanted)
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                chosen,
                [c for _, c in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return [next(found) if x else None for x in wanted]


def _start(x: Tensor | Shape) -> Tensor:
    """Return a tensor to differentiate with respect to that is still part of the outer graph."""
    if isinstance(x, Shape):
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
    return value.tensor() if isinstance(value, Shape) else rebuilt(value, _with_data)
