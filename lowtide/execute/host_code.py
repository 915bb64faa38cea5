"""Writes the program of a region around its kernels from a trace, and binds it to the kernels.

In:  a Trace and the values that outlive its region.
Out: a `Program` without dead definitions, a `RegionProgram` (`codegen/host/region`) of what happens
     before and after the kernels, and the two Python functions that are printed from it.

PyTorch makes a view of a live-in, or of another value that outlives the region, from the real
tensor, so it aliases as in eager mode. An output whose memory order is not the order of its dims is
a permuted view of the kernels' output (`texpr/orders`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.codegen.host.region import (
    Call,
    Entries,
    Group,
    Kernels,
    Let,
    Literal,
    Live,
    Made,
    Number,
    Object,
    Operand,
    Output,
    Permute,
    PythonRegion,
    RegionProgram,
    Size,
    Sized,
    Statement,
    Write,
    function_name,
    live_ins,
    verify_region,
)
from lowtide.ir.literals import is_literal
from lowtide.ops.library import without_library
from lowtide.specialise.abstract import (
    Abs,
    Map,
    Origin,
    Place,
    Seq,
    holds_list,
    is_constant,
    tensors_in,
)
from lowtide.specialise.abstract import concrete as concrete_value
from lowtide.specialise.kernel_numbers import stored_for
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.build import symbols as symbols_of
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import nonnegative
from lowtide.texpr.orders import Order, inverse, stored_in

NO_ORDERS: Final[Mapping[Abs, Order]] = {}

# A returned part of a tensor is stored alone, without gaps, if it has less than 1 / _LEAST_PART of
# the elements, and the tensor has more than _SMALL elements.
_LEAST_PART: Final = 4
_SMALL: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Values whose strides or storage the program shows. `leaving`: results, whose strides and
    aliasing the caller may inspect. `inspected`: operands of ops that return such facts."""

    leaving: Sequence[Abs] = ()
    inspected: Sequence[Abs] = ()


NO_LAYOUTS: Final = Layouts()


class CheckFailed(Exception):
    """A data-dependent index was out of bounds, or a size did not fit; or a check cannot be read
    because a CUDA graph is being captured."""


class HostFault(Exception):
    """Computing a number or a view failed. Its cause is Python's or PyTorch's own exception."""


@dataclass(slots=True, kw_only=True)
class HostCode:
    """`symbols` and `scalars`: the sizes and numbers that the program needs, in order. `pick`: the
    positions of these sizes in `z`.

    `around`: the program before and after the kernels, from which `prepare` and `run` are printed.
    `names`: all of `z`. `outputs`: the value of each kernel output. `orders`: the memory order of
    its dims. `bind(exe)` returns the `run` function.

    `only_permutes`: whether the only views of kernel outputs are permutations for such an order.
    `reads_after`: live-ins that are read or returned after the kernels have run. `may_fail_after`:
    whether a step after the kernels may raise, so that PyTorch repeats the call.
    """

    program: Program
    around: RegionProgram
    names: tuple[str, ...]
    symbols: tuple[str, ...]
    scalars: tuple[str, ...]
    pick: tuple[int, ...]
    prepare: Callable[[Sequence[Any], list[int]], None] | None
    bind: Callable[[Any], Callable[..., tuple[Any, ...]]]
    text: str
    outputs: tuple[Abs, ...] = ()
    orders: tuple[Order | None, ...] = ()
    only_permutes: bool = True
    reads_after: frozenset[int] = frozenset()
    may_fail_after: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing for a kernel to do."""
        return not self.program.outputs and not self.program.checks


def write(
    builder: Builder,
    numbers: Sequence[str],
    tensors: Mapping[str, Place],
    floats: Mapping[str, Place],
    derived: Mapping[str, Abs],
    results: Sequence[Abs],
    writes: Sequence[tuple[Abs, Abs]],
    mutates: bool,
    records: bool = False,
    orders: Mapping[Abs, Order] = NO_ORDERS,
    seen: Layouts = NO_LAYOUTS,
    used: Sequence[Abs] = (),
) -> HostCode:
    """Return the host code of a trace whose `results` outlive it. `writes`: pairs (live-in, new
    value), written after everything that may fail. `mutates`: the function changes tensors in
    place, so two views of one tensor must share memory. `records`: the kernels also get all
    live-ins, for a backward pass. `orders`: see `HostCode`. `seen`: results whose layout the
    program shows. `used`: numbers that are computed but not returned."""
    ints = [n for n, x in derived.items() if isinstance(x.value, Index)]
    order = {name: k for k, name in enumerate([*numbers, *ints])}
    stored = _materialised([*results, *(new for _, new in writes)], mutates, seen)
    writer = _Writer(builder, stored, orders, records)
    sizes = writer.sizes({name: derived[name] for name in ints})
    returned = writer.operands(results)
    writer.operands(used)
    written = [Write(to=writer.of(x), value=writer.of(new)) for x, new in writes]
    after = writer.statements
    added = builder.program.additions(writer.outputs)
    program = ex.pruned(builder.program, [*writer.outputs, *added])
    symbols = tuple(n for n in order if n in _symbols(program))
    scalars = tuple(sorted(_scalars(program)))
    known = {n: Abs(None, place) for n, place in floats.items()} | dict(derived)
    before, kernels = writer.kernels(program, tensors, [known[n] for n in scalars])
    around = RegionProgram(
        numbers=tuple(numbers),
        sizes=tuple(sizes),
        before=tuple(before),
        kernels=kernels,
        after=tuple(after),
        writes=tuple(written),
        results=tuple(returned),
    )
    verify_region(around)
    only_permutes = all(isinstance(s, Permute) for s in after)
    python = PythonRegion(around, records)
    prepare, run = python.prepare(), python.run()
    scope = {**writer.functions, **writer.objects, **python.literals}

    def bind(exe: Any) -> Callable[..., tuple[Any, ...]]:
        return _compiled(run, "run", {**scope, "exe": exe})

    return HostCode(
        program=program,
        around=around,
        names=tuple(order),
        symbols=symbols,
        scalars=scalars,
        pick=tuple(order[n] for n in symbols),
        prepare=_compiled(prepare, "prepare", scope) if prepare else None,
        bind=bind,
        text=f"{prepare}\n\n{run}" if prepare else run,
        outputs=tuple(writer.outputs.values()),
        orders=tuple(map(orders.get, writer.outputs.values())),
        reads_after=frozenset(live_ins(around)),
        only_permutes=only_permutes,
        may_fail_after=bool(program.checks) or not only_permutes,
    )


def _compiled(text: str, name: str, constants: Mapping[str, Any]) -> Any:
    space: dict[str, Any] = {**constants, "CheckFailed": CheckFailed, "HostFault": HostFault}
    space["write"] = _write
    space["sized"] = _sized
    space["capturing"] = _is_capturing
    exec(compile(text, f"<lowtide {name}>", "exec"), space)
    return space.pop(name)  # in the scope, it would be a reference cycle that keeps `exe` alive


def _is_capturing() -> bool:
    """Return whether a CUDA graph is being captured. CUDA is never initialised here, since a plan
    may be for a GPU that this machine does not have."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _write(x: torch.Tensor, new: torch.Tensor) -> None:
    """Copy running statistics without recording, as PyTorch's norms do."""
    x.data.copy_(new)


# ---- which values are stored ------------------------------------------------------------------


def _materialised(results: Sequence[Abs], mutates: bool, seen: Layouts) -> set[int]:
    """Return (by id) the tensors that must be materialised so that their views alias them: results;
    tensors whose views certainly overlap, being larger together; if the function mutates, all with
    several views or one that is expanded; and those whose layout the program shows."""
    leaves = {id(x): x for r in results for x in (*tensors_in(r), *stored_for(r))}
    views: dict[Abs, list[Abs]] = {}
    for leaf in leaves.values():
        views.setdefault(_root(leaf), []).append(leaf)
    several = {root: found for root, found in views.items() if len(found) > 1}
    stored = set(leaves) | {id(x) for x, found in several.items() if mutates or _overlap(x, found)}
    stored |= {id(x) for x, found in views.items() if mutates and _overlap(x, found)}
    stored |= {id(_root(x)) for r in seen.inspected for x in tensors_in(r)}
    leaving = {id(x) for r in seen.leaving for x in tensors_in(r)}
    for root, found in views.items():
        parts = [x for x in found if id(x) in leaving]
        if parts and _cover(root, parts):
            stored.add(id(root))
    return stored


def _root(x: Abs) -> Abs:
    while x.base is not None:
        x = x.base
    return x


def _overlap(base: Abs, views: Sequence[Abs]) -> bool:
    """Return whether the views have more elements together than their base. Adds no guard on
    sizes."""
    excess = -_count(base)
    for view in views:
        excess += _count(view)
    return nonnegative(excess - 1)


def _cover(base: Abs, views: Sequence[Abs]) -> bool:
    """Return whether the views may have a good part of the elements of their base, or the base has
    few. Adds no guard on sizes."""
    whole = _count(base)
    if whole.const is not None and whole.const <= _SMALL:
        return True
    excess = -whole
    for view in views:
        excess += _count(view) * _LEAST_PART
    return not nonnegative(-excess - 1)


def _count(x: Abs) -> Index:
    assert isinstance(x.value, Val)
    return product(x.value.shape)


class _Writer:
    """Writes values as operands. A value that must be made only once becomes a statement."""

    def __init__(
        self,
        builder: Builder,
        stored: set[int],
        orders: Mapping[Abs, Order],
        records: bool,
    ) -> None:
        self.builder = builder
        self.stored = stored
        self.orders = orders
        self.records = records
        self.functions: dict[str, Any] = {}  # by their names in Python
        self.objects: dict[str, Any] = {}
        self.statements: list[Statement] = []
        self.outputs: dict[str, Abs] = {}  # in order, by name
        self._output_names: set[str] = set()  # of their definitions, before `stored_in`
        self._names: dict[int, str] = {}  # by id of an Abs or Origin
        self._alive: list[object] = []  # so that ids stay unique

    # -- the parts of the program --

    def sizes(self, derived: Mapping[str, Abs]) -> list[Statement]:
        """Return statements for the sizes that are computed once for each new set of sizes."""
        for name, x in derived.items():
            assert isinstance(x.origin, Origin)
            op, operands = self._function(x.origin), tuple(map(self._operand, x.origin.operands))
            self.statements.append(Size(name=name, op=op, operands=operands))
        found, self.statements, self._names = self.statements, [], {}
        return found

    def operands(self, values: Sequence[Abs]) -> list[Operand]:
        """Return values as operands, after the statements that make them."""
        return [self.of(x) for x in values]

    def kernels(
        self, program: Program, tensors: Mapping[str, Place], scalars: Sequence[Abs]
    ) -> tuple[list[Statement], Kernels | None]:
        """Return the statements before the launch, and the launch."""
        if not program.outputs and not program.checks:
            return [], None
        self.statements, self._names = [], {}  # values after the kernels do not exist here
        numbers = tuple(self.operands(scalars))
        kernels = Kernels(
            inputs=tuple(_live(tensors[name]) for name in program.inputs),
            numbers=numbers,
            outputs=len(program.results),
            checks=len(program.checks),
            may_capture=bool(program.checks) and self.builder.device.type == "cuda",
        )
        return self.statements, kernels

    # -- values --

    def of(self, x: Abs) -> Operand:
        """Return a value as an operand."""
        if isinstance(x.value, Val):
            return self._tensor(x)
        is_object = holds_list(x) or (isinstance(x.value, Seq | Map) and not is_constant(x))
        if isinstance(x.origin, Place) and (is_object or not is_constant(x)):
            return _live(x.origin)
        if is_object:  # a list that is used in several places is one list
            return self._once(x, lambda name: Let(name=name, value=self._sequence(x, self.of)))
        if isinstance(x.value, Index):
            return Number(index=x.value)
        if isinstance(x.origin, Origin):
            return self._origin(x)
        if isinstance(x.origin, Place):
            return _live(x.origin)
        return self._constant(concrete_value(x))

    def _tensor(self, x: Abs) -> Operand:
        if isinstance(x.origin, Place):
            return _live(x.origin)
        if x.base is not None and self._exists(x.base) and not without_library():
            return self._origin(x)
        return self._output(x)  # without PyTorch, a view is a copy: see `c_library/walk`

    def _exists(self, x: Abs) -> bool:
        """Return whether the tensor is materialised, apart from uses by views."""
        if isinstance(x.origin, Place) or id(x) in self.stored:
            return True
        return x.base is not None and self._exists(x.base)

    def _output(self, x: Abs) -> Operand:
        k = next((k for k, made in enumerate(self.outputs.values()) if made is x), None)
        output = Output(number=self._stored(x) if k is None else k)
        order = self.orders.get(x)
        if order is None or self.records:
            return output
        return self._once(x, lambda name: Permute(name=name, of=output, order=inverse(order)))

    def _stored(self, x: Abs) -> int:
        """Add an output of the kernels; return its number."""
        assert isinstance(x.value, Val)
        val, program, order = x.value, self.builder.program, self.orders.get(x)
        name = val.name
        if name in self._output_names or name not in program.defs:
            self.builder.op = self.builder.op or "clone"
            val = self.builder.tensor(val.shape, val.dtype, lambda idx: self.builder.load(val, idx))
            name = val.name
        self._output_names.add(name)
        if order is not None:
            program.defs, name = stored_in(program.defs, name, order)
        self.outputs[name] = x
        return len(self.outputs) - 1

    def _origin(self, x: Abs) -> Made:
        origin = x.origin
        assert isinstance(origin, Origin)
        whole = self._once(origin, lambda name: self._call(name, origin))
        return Made(name=whole.name, item=x.item)

    def _call(self, name: str, origin: Origin) -> Call:
        operands = tuple(self._operand(x) for x in origin.operands)
        return Call(name=name, op=self._function(origin), operands=operands)

    def _function(self, origin: Origin) -> str:
        """Return the op's name, after noting its function under it."""
        op, count = origin.name, 0
        while self.functions.setdefault(function_name(op), origin.fn) != origin.fn:
            count += 1
            op = f"{origin.name}.{count}"
        return op

    def _operand(self, x: Abs) -> Operand:
        """Return an operand of a view. For tensors without memory, only sizes and dtype count."""
        if isinstance(x.value, Val) and not self._exists(x):
            return Sized(dtype=x.value.dtype.torch, shape=tuple(as_index(s) for s in x.value.shape))
        if isinstance(x.value, Seq) and not is_constant(x) and not isinstance(x.origin, Place):
            return self._sequence(x, self._operand)
        return self.of(x)

    def _sequence(self, x: Abs, of: Callable[[Abs], Operand]) -> Operand:
        if isinstance(x.value, Map):
            keys = tuple(map(self._constant, x.value.keys))
            return Entries(keys=keys, elems=tuple(map(of, x.value.elems)))
        assert isinstance(x.value, Seq)
        elems, kind = tuple(map(of, x.value.elems)), x.value.kind
        if kind is list or kind is tuple:
            return Group(kind=kind.__name__, elems=elems)
        make = self._object(getattr(kind, "_make", kind))
        return Group(kind=make.name, elems=elems)

    def _once(self, key: object, statement: Callable[[str], Statement]) -> Made:
        name = self._names.get(id(key))
        if name is None:
            self._alive.append(key)
            name = f"v{len(self._alive)}"
            self.statements.append(statement(name))  # after those that it needs
            self._names[id(key)] = name
        return Made(name=name)

    def _constant(self, value: object) -> Operand:
        if type(value) is list:  # a fresh one in each call
            inner = cast("list[object]", value)
            return Group(kind="list", elems=tuple(map(self._constant, inner)))
        return Literal(value=value) if is_literal(value) else self._object(value)

    def _object(self, value: object) -> Object:
        for name, known in self.objects.items():
            if known is value:
                return Object(name=name)
        name = f"k{len(self.objects)}"
        self.objects[name] = value
        return Object(name=name)


def _live(place: Place) -> Live:
    return Live(position=place.position, path=tuple(place.path))


def _sized(dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.empty((), dtype=dtype, device="cpu").expand(sizes)


# ---- the parameters of the program -------------------------------------------------------------


def _symbols(program: Program) -> frozenset[str]:
    found: set[str] = set()
    for i in program.inputs.values():
        for index in (*i.shape, *i.strides):
            found |= symbols_of(index)
    for d in program.defs.values():
        for extent in d.shape:
            found |= symbols_of(extent)
        for node in ex.walk(d.expr):
            for index in ex.indices(node):
                found |= symbols_of(index)
            if isinstance(node, ex.Reduce):
                for axis in node.axes:
                    found |= symbols_of(axis.extent)
    return frozenset(found)


def _scalars(program: Program) -> set[str]:
    return {
        node.name
        for d in program.defs.values()
        for node in ex.walk(d.expr)
        if isinstance(node, ex.Scalar)
    }
