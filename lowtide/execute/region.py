"""Compiles and finds the kernels of a region: the ops of a block from one position on.

In: the live-ins of a call. Out: an `Entry` to run. The region looks in two caches, first by exact
sizes (one dict look-up), then by signature. If both miss, it specialises and compiles.

    exact:    (f32, (1000, 4), (4, 1), ...)  ->  Entry(run, z=[1000], sizes=[1000])
    classes:  (f32, 's0', '4', ...)          ->  Specialisation, or Split(s0 - 101 >= 0 ? ... : ...)

Invariant: look-ups take no lock; changes of the caches are made under the region's lock.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from lowtide import compiler
from lowtide.diagnostics import debug, stats
from lowtide.diagnostics.faults import survive
from lowtide.errors import LowtideError
from lowtide.execute import backend, eager_threshold, host_code, reuse, second_order
from lowtide.execute.autograd_function import (
    EagerRegion,
    Launch,
    Recorder,
    eager_region,
    item,
    launched,
)
from lowtide.execute.differences import differences, signature_facts
from lowtide.execute.gradient import Gradient
from lowtide.execute.host_code import HostCode
from lowtide.execute.keys import Keys
from lowtide.execute.output_orders import ViewFails, is_plain, orders_of, reads_layout
from lowtide.execute.region_state import Aliasing, RegionContext, RegionOps, Signatures
from lowtide.execute.replan import GROWN, GROWN_AGAIN, OUTGROWN, TOO_WIDE, Plan, input_output_bytes
from lowtide.execute.specialisations import Donatable, Entry, Node, Specialisation, Split
from lowtide.execute.unsaved import unsaved
from lowtide.ir.core import Value, walk
from lowtide.ops.library import without_library
from lowtide.specialise.abstract import Abs
from lowtide.specialise.region_boundaries import adds_at_places
from lowtide.specialise.signature import (
    CPU,
    TENSOR_TYPES,
    Binding,
    escalated,
    grouped,
    size_like,
    with_varying,
)
from lowtide.specialise.specialise import NeedAlike, NeedGuards, NeedSizes, Trace
from lowtide.specialise.torch_ops import NeedFloats
from lowtide.texpr.build import NeedConst, Unsupported, symbols
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.orders import Order
from lowtide.texpr.sizes import evaluate
from lowtide.torch_private import torch_state

MAX_EXACT: Final = 4096  # entries of the first cache; then it is emptied
MAX_CLASSES: Final = 64  # compiled signatures; PyTorch runs further ones
_MAX_ATTEMPTS: Final = 200

_default_dtype = torch.get_default_dtype


@dataclass(slots=True, kw_only=True, eq=False)
class _TreeSlot:
    """The place of a specialisation in the tree of splits: a side of `parent`. `assumed`: the
    answers on the way there."""

    key: tuple[Any, ...]
    found: Specialisation | None = None
    parent: Split | None = None
    assumed: dict[Index, bool] = field(default_factory=dict[Index, bool])


@dataclass(slots=True, kw_only=True, eq=False)
class Region:
    """See the module's text. What each call reads stands first: `exact` is the first cache, `keys`
    make its keys, `adds` tells whether an op adds at data-dependent places, in any order;
    `eager_entries`: see `eager_entry`."""

    exact: dict[tuple[Any, ...], Entry] = field(default_factory=dict[tuple[Any, ...], Entry])
    keys: Keys = field(default_factory=Keys)
    adds: bool = field(init=False)
    eager_entries: dict[tuple[torch.Size, ...], Entry] = field(
        default_factory=dict[tuple[torch.Size, ...], Entry]
    )
    ops: RegionOps
    aliasing: Aliasing
    context: RegionContext
    signatures: Signatures = field(default_factory=Signatures)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.adds = any(
            adds_at_places(inner)
            for op in self.ops.until(self.ops.end)
            for inner in (op, *(o for block in op.blocks for o in walk(block)))
        )

    def find(self, values: Sequence[Any]) -> Entry:
        """Return the entry for these live-ins. Raises Ineligible."""
        key = (*torch_state.surroundings(self.adds), *self.keys.of(values))
        return self.exact.get(key) or self._miss(values)

    def _miss(self, values: Sequence[Any]) -> Entry:
        with self.lock:
            entry = self.resolve(values)
            spec = entry.spec
            if spec.host is not None and not entry.eager:
                try:
                    entry.run = self._runner(spec, entry)
                    entry.donatable = self.donatable(entry)
                except LowtideError:
                    raise
                except Exception as error:
                    why = survive(error, f"{self.context.name}: code generation")
                    spec.eager = entry.eager = why
            if len(self.exact) >= MAX_EXACT:
                self.exact.clear()
            if self.keys.has_read(self.ops.until(spec.stop + 1), self.ops.live_ins):
                self.exact.clear()
            self.exact[*torch_state.surroundings(self.adds), *self.keys.of(values)] = entry
            return entry

    def _runner(self, spec: Specialisation, entry: Entry) -> Callable[..., tuple[Any, ...]]:
        if spec.run is None:
            assert spec.host is not None
            spec.run = spec.host.bind(self._callable(spec, entry))
        return spec.run

    def donatable(self, entry: Entry) -> Donatable | None:
        """Return the operands that end with the region and that its kernels may overwrite. The
        entry must have an `executable`."""
        o = self.ops
        outer = frozenset(o.block.terminator.operands) if o.owned else frozenset[Value]()
        return reuse.donatable(entry.spec, entry, o.live_ins, o.owned, outer)

    def run_for(self, entry: Entry, values: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
        """Return the function that runs the kernels on these live-ins. Results are written over
        operands without other references: `values` and its environment must hold the only ones."""
        run, spec = entry.run, entry.spec
        assert run is not None
        if entry.donatable is None or not (alone := entry.donatable.alone(values)):
            return run
        taken = spec.executable.reusable_inputs(alone)
        key = tuple(taken.items())
        found = spec.reusing.get(key)
        if found is None:
            with self.lock:
                assert spec.host is not None
                made = self.recording(spec, spec.executable.taking(taken), launched)
                found = spec.reusing.setdefault(key, spec.host.bind(made))
        return found

    def _callable(self, spec: Specialisation, entry: Entry) -> Any:
        executable = self.executable(spec, entry)
        if executable is not None:
            executable.write()
        return self.recording(spec, executable, launched)

    def recording(self, spec: Specialisation, executable: Any, launch: Launch) -> Any:
        """Return the callable that runs the kernels, and records them if outputs carry
        gradients."""
        if spec.gradient is None or spec.eager_ops is None:
            return executable
        live = {v: k for k, v in enumerate(self.ops.live_ins)}
        changed = {live[v] for v in self.aliasing.changed if v in live}
        copies = spec.unsaved.union(n for n, x in spec.places.items() if x.position in changed)
        with_graph = second_order.gradients
        return Recorder(
            executable, spec.gradient, spec.eager_ops, spec.places, copies, launch, with_graph
        )

    def executable(self, spec: Specialisation, entry: Entry) -> Any:
        """Return the compiled kernels of a specialisation, None if it needs none."""
        host = spec.host
        if host is None or host.is_empty:
            return None
        with self.lock:
            if spec.executable is None:
                hints = dict(zip(host.symbols, entry.sizes, strict=True))
                stats.count("compiles")
                program = host.program if spec.gradient is None else spec.gradient.record(hints)
                compile_program = functools.partial(
                    backend.compile_program,
                    program,
                    symbols=host.symbols,
                    scalars=host.scalars,
                    hints=hints,
                    machine=spec.machine,
                    tiles=self.context.tiles,
                )
                spec.executable = debug.planned(self.context.name, compile_program, hints)
                spec.planned_io_bytes = evaluate(spec.io_bytes, hints)
            return spec.executable

    # -- the second cache --

    def resolve(self, values: Sequence[Any], device: torch.device = CPU) -> Entry:
        """Return the entry for these live-ins without compiling kernels. Meta tensors stand for
        tensors of `device`."""
        with self.lock:
            while True:
                binding, spec = self.specialisation(list(values), device)
                if spec.eager or not spec.advances:
                    return Entry(spec, [], [], None, spec.eager)
                entry = self._entry(spec, binding, values)
                if entry.eager or not self._is_outgrown(entry, binding, values):
                    return entry

    def _entry(self, spec: Specialisation, binding: Binding, values: Sequence[Any]) -> Entry:
        host = spec.host
        assert host is not None
        z = list(binding.numbers.values())
        if host.prepare is not None:
            try:
                host.prepare(values, z)
            except Exception as error:
                return Entry(spec, z, [], None, f"{type(error).__name__} in the user's arithmetic")
        numbers = dict(zip(host.names, z, strict=True))
        for a, b, message in host.program.equalities:
            if evaluate(a, numbers) != evaluate(b, numbers):
                return Entry(spec, z, [], None, message)
        entry = Entry(spec, z, [z[k] for k in host.pick], None)
        if spec.excess_bytes is not None and evaluate(spec.excess_bytes, numbers) <= 0:
            entry.eager = eager_threshold.WHY
            if len(self.eager_entries) >= MAX_EXACT:
                self.eager_entries.clear()
            if not _has_ints(binding, symbols(spec.excess_bytes)):
                self.eager_entries[_shapes(values)] = entry
        return entry

    def eager_entry(self, values: Sequence[Any]) -> Entry | None:
        """Return the entry by which PyTorch has run the region for these shapes, with gradients.
        The region's ops run as they stand, so dtypes, strides and numbers may differ."""
        if not self.eager_entries or not torch.is_grad_enabled():
            return None
        return self.eager_entries.get(_shapes(values))

    def _is_outgrown(self, entry: Entry, binding: Binding, values: Sequence[Any]) -> bool:
        """Return whether the signature was split, because kernels planned for these sizes take much
        less memory, or the present ones cannot hold an axis of this size."""
        spec, host = entry.spec, entry.spec.host
        if host is None or spec.executable is None or self.signatures.count >= MAX_CLASSES:
            return False
        sizes = dict(zip(host.symbols, entry.sizes, strict=True))
        io_bytes, plan = evaluate(spec.io_bytes, sizes), _plan(spec)
        wide = plan.too_wide(sizes)
        if wide is not None and symbols(wide) <= binding.numbers.keys():
            fresh = self._replanned(spec, binding, TOO_WIDE)
            return self._is_split(binding, Split(wide, yes=fresh, no=spec))
        if io_bytes <= max(GROWN * spec.planned_io_bytes, GROWN_AGAIN * spec.searched_io_bytes):
            return False
        if not plan.may_be_outgrown(sizes):
            spec.searched_io_bytes = io_bytes
            return False
        fresh = self._replanned(spec, binding, OUTGROWN)
        try:
            self.executable(fresh, entry)
            is_worth_it = plan.is_outgrown(_plan(fresh), sizes)
        except Exception as error:
            what = f"{self.context.name}: kernels for larger sizes"
            survive(error, what, "those for smaller ones run")
            is_worth_it = False
        if not is_worth_it:
            spec.planned_io_bytes = io_bytes
            return False
        return self._is_split(binding, Split(plan.threshold(sizes), yes=fresh, no=spec))

    def _replanned(self, spec: Specialisation, binding: Binding, why: str) -> Specialisation:
        """Return the same specialisation without kernels."""
        assert spec.host is not None
        gradient = self._gradient(spec.host, binding)
        return replace(
            spec, gradient=gradient, executable=None, run=None, reusing={}, differences=(why,)
        )

    def _is_split(self, binding: Binding, split: Split) -> bool:
        """Replace the node in the tree by a split; return True."""
        self.signatures.count += 1
        self._put(self.tree_slot(binding), split)
        return True

    def tree_slot(self, binding: Binding) -> _TreeSlot:
        """Return the place of the specialisation for these live-ins in the tree."""
        where = (torch_state.surroundings(self.adds), binding.device, binding.machine)
        slot = _TreeSlot(key=(_default_dtype(), *where, *binding.key))
        node = self.signatures.classes.get(slot.key)
        while isinstance(node, Split):
            slot.parent, holds = node, evaluate(node.index, binding.numbers) >= 0
            slot.assumed[node.index] = holds
            node = node.yes if holds else node.no
        slot.found = node
        return slot

    def _put(self, slot: _TreeSlot, node: Node) -> None:
        if slot.parent is None:
            self.signatures.classes[slot.key] = node
        elif slot.assumed[slot.parent.index]:
            slot.parent.yes = node
        else:
            slot.parent.no = node

    def specialisation(
        self, values: list[Any], device: torch.device
    ) -> tuple[Binding, Specialisation]:
        """Return the specialisation, found or made. Making it may need more constants in the
        signature, or further splits."""
        for _ in range(_MAX_ATTEMPTS):
            binding = self.binding(values, device)
            slot = self.tree_slot(binding)
            if slot.found is not None:
                return binding, slot.found
            made = self.make(binding, slot.assumed, values)
            if made is None:
                continue  # the levels have been raised, so the signature is another one
            self._put(slot, made)
            if isinstance(made, Specialisation):
                return binding, made
        fault = AssertionError(f"the signature of {self.context.name} does not settle")
        binding = self.binding(values, device)
        return binding, self._eager(survive(fault, f"{self.context.name}: specialisation"))

    def binding(self, values: Sequence[Any], device: torch.device) -> Binding:
        """Return the live-ins seen through the signature as it is now."""
        known = self.signatures
        made = Binding(values, known.levels, self.keys.floats, device, known.alike)
        made.may_recompute = self.context.may_recompute
        return made

    def make(self, binding: Binding, assumed: dict[Index, bool], values: list[Any]) -> Node | None:
        """Return a specialisation, a split, or None after the levels have been raised."""
        o, known = self.ops, self.signatures
        if known.count >= MAX_CLASSES:
            return self._eager(f"{MAX_CLASSES} signatures are compiled already")
        varying = with_varying(known.levels, values, known.small)
        if varying is not None:  # specialisations that exist stay valid
            known.levels = varying
            return None
        floats = {
            name: item(values, (place.position, *place.path))
            for name, place in binding.floats.items()
        }
        stats.count("traces")
        try:
            reach = range(o.start, o.end if o.is_parted else len(o.block.ops))
            trace = compiler.specialise(
                o.block, reach, o.live_ins, binding, assumed, floats, self.aliasing.statistics,
                o.layers,
            )  # fmt: skip
            return self._specialised(trace, binding, assumed, values)
        except NeedGuards as need:
            found: Split | None = None
            for index, holds in reversed(list(need.answers.items())):
                found = Split(index, found, None) if holds else Split(index, None, found)
            return found
        except NeedSizes as need:
            known.levels = size_like(known.levels, binding, need.symbols)
        except NeedAlike as need:
            known.alike = grouped(known.alike, binding, need.symbols)
        except NeedFloats:
            self.keys.hold_floats()
            self.exact.clear()
            known.classes.clear()
        except NeedConst as need:
            levels = escalated(known.levels, binding, need.symbols)
            if levels is None:
                return self._eager(f"sizes that are known only at run time: {need}")
            known.levels = levels
        except Unsupported as why:  # of ops that each could be differentiated by itself
            return self._eager(str(why))
        except LowtideError:
            raise
        except Exception as error:
            return self._eager(survive(error, f"{self.context.name}: lowering"))
        return None

    def _specialised(
        self, trace: Trace, binding: Binding, assumed: dict[Index, bool], values: list[Any]
    ) -> Specialisation:
        o, known = self.ops, self.signatures
        if trace.misfit:
            return self._eager(f"shapes do not fit: {trace.reason}")
        finished = trace.stop == len(o.block.ops)
        if finished:
            results = list(o.block.terminator.operands)
        else:
            born = trace.env.keys() - set(o.live_ins)
            alive = o.live_at[trace.stop]
            results = [v for v in trace.env if v in alive and v in born]
        host = gradient = eager_ops = apart = None
        if trace.stop > o.start:
            try:
                host, orders = self._host_code(trace, binding, results, values)
            except ViewFails as why:
                return self._eager(f"a view that does not fit the strides: {why.__cause__}")
            gradient = self._gradient(host, binding)
            if gradient is None and binding.wanted:
                host = self._host(trace, binding, results, False, orders)
            elif gradient is not None:
                eager_ops = self._eager_ops(trace, binding, host)
                if eager_ops is None:
                    return self._eager("gradients of a value from within a branch or a loop")
                lent = self.aliasing.lent
                apart = unsaved(eager_ops, gradient, binding.tensors, o.live_ins, lent, values)
        known.count += 1
        stats.count("specialisations")
        sizes = self._size_names(binding)
        facts = signature_facts(binding, [self.shown_name(v) for v in o.live_ins], assumed, sizes)
        earlier, known.history = known.history, [*known.history, facts]
        return Specialisation(
            stop=trace.stop,
            finished=finished,
            whole=finished and (host is None or host.only_permutes or not binding.wanted),
            reason=trace.reason,
            loc=trace.loc,
            results=results,
            dead=self._dead(trace.stop),
            ops=trace.ops,
            size_names=sizes,
            host=host,
            gradient=gradient,
            eager_ops=eager_ops,
            places=binding.tensors,
            unsaved=apart or frozenset(),
            differences=differences(facts, earlier),
            machine=binding.machine,
            io_bytes=as_index(0) if host is None else input_output_bytes(host.program),
            excess_bytes=self._excess_bytes(trace, host, binding),
        )

    def _excess_bytes(self, trace: Trace, host: HostCode | None, binding: Binding) -> Index | None:
        """Return by how many bytes all values are too many for PyTorch to be as fast."""
        ops = self.ops.until(trace.stop)
        is_whole = self.ops.start == 0 and trace.stop == len(self.ops.block.ops)
        if host is None or not binding.wanted or (is_whole and not self.context.is_repeated):
            return None
        limit = eager_threshold.limit_bytes(ops, self.context.is_repeated)
        found = eager_threshold.bytes_of(trace.env.values()) - limit
        return found if limit and symbols(found) <= set(host.names) else None

    def _host_code(
        self, trace: Trace, binding: Binding, results: Sequence[Value], values: list[Any]
    ) -> tuple[HostCode, Mapping[Abs, Order]]:
        """Return the host code, and the memory orders of its outputs."""
        records = bool(binding.wanted)
        host = self._host(trace, binding, results, records)
        has_format = any(isinstance(x.value, torch.memory_format) for x in trace.env.values())
        plain = not has_format and is_plain(self.ops.until(trace.stop))
        if (binding.is_contiguous and plain) or host.is_empty or without_library():
            return host, host_code.NO_ORDERS
        orders = orders_of(self._eager_ops(trace, binding, host), host.outputs, values)
        return self._host(trace, binding, results, records, orders) if orders else host, orders

    def _eager_ops(self, trace: Trace, binding: Binding, host: HostCode) -> EagerRegion | None:
        o, kind = self.ops, binding.device.type
        return eager_region(o.block, o.start, trace.stop, o.live_ins, trace, host, kind)

    def _host(
        self,
        trace: Trace,
        binding: Binding,
        results: Sequence[Value],
        records: bool,
        orders: Mapping[Abs, Order] = host_code.NO_ORDERS,
    ) -> HostCode:
        return host_code.write(
            trace.builder,
            list(binding.numbers),
            binding.tensors,
            binding.floats,
            trace.derived,
            [trace.env[v] for v in results],
            trace.writes,
            self.aliasing.mutates,
            records,
            orders,
            self._visible_layouts(trace, results),
            trace.used,
        )

    def _visible_layouts(self, trace: Trace, results: Sequence[Value]) -> host_code.Layouts:
        """Return the values whose layout the program shows."""
        leaving = [trace.env[v] for v in results if v in self.aliasing.returned]
        if trace.stop == len(self.ops.block.ops):
            return host_code.Layouts(leaving=leaving)
        op = self.ops.block.ops[trace.stop]
        operands = set(op.operands) if reads_layout(op) else set[Value]()
        inspected = [trace.env[v] for v in results if v in operands]
        return host_code.Layouts(leaving=leaving, inspected=inspected)

    def _gradient(self, host: HostCode, binding: Binding) -> Gradient | None:
        """Return the backward pass, None if no output carries a gradient."""
        if not binding.wanted or host.is_empty:
            return None
        made = Gradient(
            host.program,
            binding.wanted,
            host.symbols,
            host.scalars,
            binding.machine,
            self.context.tiles,
            self.context.name,
        )
        return made if made.exists else None

    def _size_names(self, binding: Binding) -> dict[str, str]:
        """Return the user's expression for each symbol: {"s0": "x.shape[0]"}."""
        found: dict[str, str] = {}
        for symbol, spots in binding.spots.items():
            for (place, dim, _), *_ in [spots] if spots else []:
                path = "".join(f"[{i!r}]" for i in place.path)
                name = self.shown_name(self.ops.live_ins[place.position]) + path
                found[symbol] = name if dim < 0 else f"{name}.shape[{dim}]"
        return found

    def shown_name(self, value: Value) -> str:
        """Return the user's name of a live-in."""
        return self.context.shown.get(value) or value.name or "_"

    def _eager(self, why: str) -> Specialisation:
        o = self.ops
        return Specialisation(
            stop=o.end,
            finished=False,
            whole=False,
            reason="",
            loc=o.block.ops[o.start].loc,
            results=[],
            dead=self._dead(o.end),
            eager=why,
        )

    def _dead(self, stop: int) -> list[Value]:
        o = self.ops
        alive = set(o.live_at[stop]) if stop < len(o.live_at) else set[Value]()
        return [v for v in o.live_ins if v not in alive]


def _has_ints(binding: Binding, names: Container[str]) -> bool:
    """Return whether these names, or the program itself, depend on the value of an int."""
    codes = [form[1] for form in binding.key if form[0] is int]
    return any(not isinstance(code, str) or code in names for code in codes)


def _shapes(values: Sequence[Any]) -> tuple[torch.Size, ...]:
    return tuple([v.shape for v in values if type(v) in TENSOR_TYPES])


def _plan(spec: Specialisation) -> Plan:
    return Plan(
        io_bytes=spec.io_bytes,
        executable=spec.executable,
        gradient=spec.gradient,
        planned_io_bytes=spec.planned_io_bytes,
    )
