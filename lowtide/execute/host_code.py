"""The Python text around one Executable: what happens before and after the kernels of a call.

In: a Trace and the values that outlive its region. Out: a `Program` cut to what is needed, and two
functions, written as source since each call runs them:

    def prepare(a, z):                          # once per new set of sizes: derived ints
        z.append(k0(z[0], a[1]))

    def run(a, z, sizes):                       # each call
        o = exe([a[0], a[1]], sizes, [a[2]])
        if not o[1]: raise CheckFailed
        v0 = k1(a[0], 0)                        # a view, by PyTorch's own op
        return (o[0], v0)

`a` are the live-ins, `z` the ints, `o` the kernels' outputs. A view of a live-in or of another
value that outlives the region is made by PyTorch from the real tensor, so that it aliases as it
does in eager mode. An output that lies in memory in another order than that of its dims is a view
of what the kernels give (`texpr/orders`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

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
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.build import symbols as symbols_of
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Atom, Clamp, FloorDiv, Index, Mod, as_index, nonnegative, product
from lowtide.texpr.orders import Order, inverse, stored_in

_LIVE_IN: Final = re.compile(r"\ba\[(\d+)\]")
_ONLY_TURNS: Final = re.compile(r" *v\d+ = o\[\d+\]\.permute\([\d, ]+\)")
NO_ORDERS: Final[Mapping[Abs, Order]] = {}


# Parts that are less than one of so many elements are handed out without the rest, and so without
# gaps; but for parts of what is small.
_LEAST_PART: Final = 4
_SMALL: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Results of whose parts it shows where they lie. `leaving`: the caller's, who may look at
    strides, or at what shares memory; `asked`: operands of an op that tells."""

    leaving: Sequence[Abs] = ()
    asked: Sequence[Abs] = ()


NO_LAYOUTS: Final = Layouts()


class CheckFailed(Exception):
    """A data-dependent index was out of bounds, or a size did not fit; or that cannot be known, as
    a CUDA graph is being captured."""


class HostFault(Exception):
    """A number or a view could not be made; its cause is Python's or PyTorch's own exception."""


@dataclass(slots=True, kw_only=True)
class HostCode:
    """`symbols` and `scalars` are what the program needs, in order; `pick` their places in `z`.

    `names` are all of `z`, `outputs` what the kernels' outputs stand for, `orders` in which order
    their dims lie. `bind(exe)` gives the `run` function.

    `only_turns`: whether no view is made of what the kernels give, but for such an order.
    `reads_after`: live-ins that are looked at, or handed out, when the kernels are done;
    `may_fail_after`: whether what is done then might raise, so that PyTorch does it all again.
    """

    program: Program
    names: tuple[str, ...]
    symbols: tuple[str, ...]
    scalars: tuple[str, ...]
    pick: tuple[int, ...]
    prepare: Callable[[Sequence[Any], list[int]], None] | None
    bind: Callable[[Any], Callable[..., tuple[Any, ...]]]
    text: str
    outputs: tuple[Abs, ...] = ()
    orders: tuple[Order | None, ...] = ()
    only_turns: bool = True
    reads_after: frozenset[int] = frozenset()
    may_fail_after: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for a kernel to do."""
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
) -> HostCode:
    """The host code of a trace whose `results` outlive it. `writes`: live-ins, and what is written
    there when nothing can fail any more. `mutates`: the function changes tensors in place
    somewhere, so that two views of one tensor must share memory. `records`: the kernels are handed
    all live-ins too, for a backward pass, and what comes of them is turned. `orders`: of outputs,
    see `HostCode`. `seen`: results of which it shows where their parts lie."""
    ints = [n for n, x in derived.items() if isinstance(x.value, Index)]
    order = {name: k for k, name in enumerate([*numbers, *ints])}
    kept = _kept([*results, *(new for _, new in writes)], mutates, seen)
    writer = _Writer(builder, order, kept, orders, records)
    prepare = writer.preparation([derived[n] for n in ints])
    texts = writer.results(results)
    written = [f"    write({writer.of(x)}, {writer.of(new)})" for x, new in writes]
    added = builder.program.additions(writer.outputs)
    program = ex.pruned(builder.program, [*writer.outputs, *added])
    symbols = tuple(n for n in order if n in _symbols(program))
    scalars = tuple(sorted(_scalars(program)))
    known = {n: Abs(None, place) for n, place in floats.items()} | dict(derived)
    only_turns = all(map(_ONLY_TURNS.fullmatch, writer.lines))
    more, written_early = ", a" * records, list[str]()
    if records and written:  # see `Recorder`
        written_early = ["    def written(o):", *(f"    {line}" for line in written)]
        more += ", written"
    head = writer.call(program, tensors, [known[n] for n in scalars], more)
    after = [*writer.lines, *written, texts]
    lines = [
        "def run(a, z, sizes):",
        *written_early,
        *head,
        *writer.guarded(writer.lines),
        *written,
    ]
    text = "\n".join([*lines, f"    return {texts}"])

    def bind(exe: Any) -> Callable[..., tuple[Any, ...]]:
        return _compiled(text, "run", {**writer.constants, "exe": exe})

    return HostCode(
        program=program,
        names=tuple(order),
        symbols=symbols,
        scalars=scalars,
        pick=tuple(order[n] for n in symbols),
        prepare=_compiled(prepare, "prepare", writer.constants) if prepare else None,
        bind=bind,
        text=f"{prepare}\n\n{text}" if prepare else text,
        outputs=tuple(writer.outputs.values()),
        orders=tuple(map(orders.get, writer.outputs.values())),
        reads_after=frozenset(int(k) for x in after for k in _LIVE_IN.findall(x)),
        only_turns=only_turns,
        may_fail_after=bool(program.checks) or not only_turns,
    )


def _compiled(text: str, name: str, constants: Mapping[str, Any]) -> Any:
    space: dict[str, Any] = {**constants, "CheckFailed": CheckFailed, "HostFault": HostFault}
    space["write"] = _write
    space["capturing"] = _is_capturing
    exec(compile(text, f"<lowtide {name}>", "exec"), space)
    return space.pop(name)  # left there, it would be a cycle that holds what `exe` holds


def _is_capturing() -> bool:
    """Into a CUDA graph: never where nothing has asked for a GPU, as in a plan for one that is not
    there, of which PyTorch could not tell."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _write(x: torch.Tensor, new: torch.Tensor) -> None:
    """As a norm of PyTorch's writes its running statistics: autograd is not told."""
    x.data.copy_(new)


# ---- which values are stored ------------------------------------------------------------------


def _kept(results: Sequence[Abs], mutates: bool, seen: Layouts) -> set[int]:
    """Tensors (by id) that exist for real, so that views of them are views: those that leave, and
    those whose views overlap for certain, being larger together; where the function changes
    tensors, all with several views; and those of whose views the layout shows."""
    leaves = {id(x): x for r in results for x in tensors_in(r)}
    views: dict[Abs, list[Abs]] = {}
    for leaf in leaves.values():
        views.setdefault(_root(leaf), []).append(leaf)
    several = {root: found for root, found in views.items() if len(found) > 1}
    kept = set(leaves) | {id(x) for x, found in several.items() if mutates or _overlap(x, found)}
    kept |= {id(_root(x)) for r in seen.asked for x in tensors_in(r)}
    leaving = {id(x) for r in seen.leaving for x in tensors_in(r)}
    for root, found in views.items():
        parts = [x for x in found if id(x) in leaving]
        if parts and _cover(root, parts):
            kept.add(id(root))
    return kept


def _root(x: Abs) -> Abs:
    while x.base is not None:
        x = x.base
    return x


def _overlap(base: Abs, views: Sequence[Abs]) -> bool:
    """Whether the views have more elements than what they are views of; asks for no new split."""
    excess = -_count(base)
    for view in views:
        excess += _count(view)
    return nonnegative(excess - 1)


def _cover(base: Abs, views: Sequence[Abs]) -> bool:
    """Whether the views have, or may have, a good part of the elements of what they are views of,
    or that has few. Asks for no new split."""
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
    def __init__(
        self,
        builder: Builder,
        order: Mapping[str, int],
        kept: set[int],
        orders: Mapping[Abs, Order],
        records: bool,
    ) -> None:
        self.builder = builder
        self.order = order
        self.kept = kept
        self.orders = orders
        self.records = records
        self.constants: dict[str, Any] = {}
        self.lines: list[str] = []
        self.outputs: dict[str, Abs] = {}  # in order; a name stands once
        self._given_out: set[str] = set()  # values, by the names that they have unturned
        self._names: dict[int, str] = {}  # by id of an Abs or Origin
        self._alive: list[object] = []  # so that ids stay unique

    # -- the parts of the text --

    def preparation(self, ints: Sequence[Abs]) -> str:
        """Source of `prepare`, "" where no int is derived."""
        for x in ints:
            assert isinstance(x.origin, Origin)
            self.lines.append(f"    z.append({self._call_text(x.origin)})")
        body, self.lines = self.lines, []
        self._names.clear()  # `run` has its own locals
        return "\n".join(["def prepare(a, z):", *body]) if body else ""

    def results(self, results: Sequence[Abs]) -> str:
        """The tuple of results, after lines that make them."""
        texts = [self.of(r) for r in results]
        return f"({', '.join(texts)},)" if texts else "()"

    def call(
        self, program: Program, tensors: Mapping[str, Place], scalars: Sequence[Abs], more: str
    ) -> list[str]:
        """The lines that call the kernels; `more` are operands after the numbers."""
        if not program.outputs and not program.checks:
            return []
        rest, names = self.lines, self._names
        self.lines, self._names = [], {}  # lines of before the call know no locals of after it
        numbers = ", ".join(self.of(x) for x in scalars)
        before, self.lines, self._names = self.lines, rest, names
        inputs = ", ".join(_place(tensors[name]) for name in program.inputs)
        lines = self.guarded(before)
        if program.checks and self.builder.device.type == "cuda":
            lines.append("    if capturing(): raise CheckFailed")
        lines.append(f"    o = exe([{inputs}], sizes, [{numbers}]{more})")
        for k in range(len(program.results), len(program.results) + len(program.checks)):
            lines.append(f"    if not o[{k}]: raise CheckFailed")
        return lines

    def guarded(self, lines: Sequence[str]) -> list[str]:
        """Lines of Python's or PyTorch's own functions, which may raise."""
        if not lines:
            return []
        inner = [f"    {line}" for line in lines]
        return [
            "    try:",
            *inner,
            "    except Exception as error:",
            "        raise HostFault from error",
        ]

    # -- values --

    def of(self, x: Abs) -> str:
        """The text of a value; whatever must be made only once gets a line of its own."""
        if isinstance(x.value, Val):
            return self._tensor(x)
        is_object = holds_list(x) or (isinstance(x.value, Seq | Map) and not is_constant(x))
        if isinstance(x.origin, Place) and (is_object or not is_constant(x)):
            return _place(x.origin)
        if is_object:  # a list that stands in several places is one list
            return self._once(x, lambda: self._sequence(x, self.of))
        if isinstance(x.value, Index):
            return self.index(x.value)
        if isinstance(x.origin, Origin):
            return self._origin(x)
        if isinstance(x.origin, Place):
            return _place(x.origin)
        return self._constant(concrete_value(x))

    def _tensor(self, x: Abs) -> str:
        if isinstance(x.origin, Place):
            return _place(x.origin)
        if x.base is not None and self._exists(x.base):
            return self._origin(x)
        return self._output(x)

    def _exists(self, x: Abs) -> bool:
        """Whether the tensor is real without being asked for by a view of it."""
        if isinstance(x.origin, Place) or id(x) in self.kept:
            return True
        return x.base is not None and self._exists(x.base)

    def _output(self, x: Abs) -> str:
        k = next((k for k, made in enumerate(self.outputs.values()) if made is x), None)
        k = self._stored(x) if k is None else k
        order = self.orders.get(x)
        if order is None or self.records:
            return f"o[{k}]"
        return self._once(x, lambda: f"o[{k}].permute{inverse(order)}")

    def _stored(self, x: Abs) -> int:
        """A new output; gives its number."""
        assert isinstance(x.value, Val)
        val, program, order = x.value, self.builder.program, self.orders.get(x)
        name = val.name
        if name in self._given_out or name not in program.defs:
            self.builder.op = self.builder.op or "clone"
            val = self.builder.tensor(val.shape, val.dtype, lambda idx: self.builder.load(val, idx))
            name = val.name
        self._given_out.add(name)
        if order is not None:
            program.defs, name = stored_in(program.defs, name, order)
        self.outputs[name] = x
        return len(self.outputs) - 1

    def _origin(self, x: Abs) -> str:
        origin = x.origin
        assert isinstance(origin, Origin)
        whole = self._once(origin, lambda: self._call_text(origin))
        return whole if x.item is None else f"{whole}[{x.item}]"

    def _call_text(self, origin: Origin) -> str:
        args = ", ".join(self._operand(x) for x in origin.operands)
        return f"{self._constant(origin.fn)}({args})"

    def _operand(self, x: Abs) -> str:
        """An operand of a view: of tensors that are not real, only sizes and dtype count."""
        if isinstance(x.value, Val) and not self._exists(x):
            sizes = ", ".join(self.index(as_index(s)) for s in x.value.shape)
            dtype = self._constant(x.value.dtype.torch)
            return f"{self._constant(_shape_only)}({dtype}, ({sizes}{',' if sizes else ''}))"
        if isinstance(x.value, Seq) and not is_constant(x) and not isinstance(x.origin, Place):
            return self._sequence(x, self._operand)
        return self.of(x)

    def _sequence(self, x: Abs, of: Callable[[Abs], str]) -> str:
        if isinstance(x.value, Map):
            pairs = [f"{self._constant(k)}: {of(v)}" for k, v in x.value.entries().items()]
            return f"{{{', '.join(pairs)}}}"
        assert isinstance(x.value, Seq)
        inner = ", ".join(of(e) for e in x.value.elems)
        if x.value.kind is list:
            return f"[{inner}]"
        if x.value.kind is tuple:
            return f"({inner},)"
        make: Any = getattr(x.value.kind, "_make", x.value.kind)
        return f"{self._constant(make)}(({inner},))"

    def _once(self, key: object, text: Callable[[], str]) -> str:
        name = self._names.get(id(key))
        if name is None:
            line = text()
            name = f"v{len(self._alive)}"
            self._alive.append(key)
            self.lines.append(f"    {name} = {line}")
            self._names[id(key)] = name
        return name

    def _constant(self, value: object) -> str:
        if value is None or value is True or value is False or type(value) in (int, str):
            return repr(value)
        for name, known in self.constants.items():
            if known is value:
                return name
        if type(value) is list:
            inner = cast("list[object]", value)
            return f"[{', '.join(map(self._constant, inner))}]"  # a fresh list in each call
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # -- sizes --

    def index(self, index: Index) -> str:
        """The Python text of a size polynomial."""
        parts = [
            "*".join([str(factor), *(self._atom(a) for a in monomial)]).removeprefix("1*")
            for monomial, factor in index.terms
        ]
        return " + ".join(parts) or "0"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, FloorDiv):
            return f"(({self.index(atom.num)}) // ({self.index(atom.den)}))"
        if isinstance(atom, Mod):
            return f"(({self.index(atom.num)}) % ({self.index(atom.den)}))"
        if isinstance(atom, Clamp):
            return f"min(max({self.index(atom.num)}, 0), ({self.index(atom.extent)}) - 1)"
        return f"z[{self.order[repr(atom)]}]"


def _place(place: Place) -> str:
    return f"a[{place.position}]" + "".join(f"[{i!r}]" for i in place.path)


def _shape_only(dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.empty((), dtype=dtype, device="cpu").expand(sizes)


# ---- what of the program is needed -------------------------------------------------------------


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
