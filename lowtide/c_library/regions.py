"""Prints a region of kernels in a C function: its code for each answer about sizes.

In: a region, the values of its live-ins in the C function (see `values`). Out: a `Call`: an arm of
C for each `Leaf` (`execute/standing`), with the condition under which it is the right one.

    live-ins x: f32[v0, 3], n: int r2        symbols of the region: w0 = v0, i1 = r2
    guards   w0 - i1 >= 0                    if (z_v0 - z_r2 >= 0) { … the kernels … }

A dim that is a constant here is a constant of the region, any other one a symbol. Ops may need a
constant: then a size of the call becomes one (`Again`); an int that the run computes cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch

from lowtide.c_library.numbers import Numbers
from lowtide.c_library.sizes import limit
from lowtide.c_library.values import (
    MISSING,
    Again,
    Frame,
    Real,
    Refused,
    Tensor,
    Thing,
    Truth,
    c_int,
    c_real,
)
from lowtide.codegen.c.c_names import c_index
from lowtide.codegen.executable import Executable, compile_program
from lowtide.codegen.host import region as host
from lowtide.codegen.host.c_driver import CDriver, NotPrinted, Piece, c_name
from lowtide.execute.region import Region
from lowtide.execute.standing import Decide, Leaf, leaves
from lowtide.ir.core import Value, free_values
from lowtide.ir.python_ops.numbers import UNBOUND
from lowtide.specialise.abstract import Abs, Place
from lowtide.specialise.abstract import Place as _Place
from lowtide.specialise.signature import (
    ANY,
    CONSTANT,
    FREE,
    LARGE,
    VARIES,
    Binding,
    Ineligible,
    Spot,
)
from lowtide.texpr.build import lone_size, symbols
from lowtide.texpr.index import Index, Size, as_index
from lowtide.texpr.index_ranges import nonnegative, rebuild

MOST_THREADS: Final = 8


class KernelTexts:
    """The kernels of a library, each once: their names by their texts."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def name_of(self, text: str) -> str:
        """Return the suffix of a kernel's names in C."""
        return self.names.setdefault(text, f"k{len(self.names)}")


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """The surroundings of a region that is printed. `sizes`: the example's sizes of the call.
    `free`: ints of the call that no op has compared with sizes."""

    frame: Frame
    numbers: Numbers
    kernels: KernelTexts
    sizes: Mapping[str, int]
    free: frozenset[str]
    returns: Mapping[str, str]  # by status: the C statement that returns it


@dataclass(slots=True, kw_only=True)
class Arm:
    """One way to run the region. `condition`: C; `emit` prints it and returns its results.
    `facts`: indices that are >= 0 there."""

    condition: str
    results: Sequence[Value]
    emit: Callable[[], dict[Value, object]]
    facts: Sequence[Index] = ()


@dataclass(slots=True, kw_only=True)
class Call:
    """`stop`: the op after the region. `reason`: why it ends there, if it does not end the
    block."""

    arms: list[Arm]
    stop: int
    reason: str
    finished: bool


def prepared(
    around: Surroundings,
    region: Region,
    live: Sequence[object],
    outputs: Callable[[Sequence[host.Operand]], Mapping[int, str]],
) -> Call:
    """Return how a region is run. `outputs`: gives, for what a region returns that ends the
    function, the C expressions of outputs that are written to the caller's memory. Raises Refused
    and Again."""
    bools = {v for v, x in zip(region.ops.live_ins, live, strict=True) if isinstance(x, Truth)}
    ops = region.ops.until(region.ops.end)
    first = next((k for k, op in enumerate(ops) if bools.intersection(free_values([op]))), None)
    if first is None or first:
        if first:
            region = _parted(region, region.ops.start + first)
        return _of_sizes(around, region, live, outputs)
    if not ops[0].name.startswith("torch."):
        return Call(arms=[], stop=region.ops.start, reason="", finished=False)
    used = bools.intersection(ops[0].operands)
    where = next(k for k, v in enumerate(region.ops.live_ins) if v in used)
    region = _parted(region, region.ops.start + 1)
    known = [[*live[:where], answer, *live[where + 1 :]] for answer in (True, False)]
    yes, no = (prepared(around, region, x, outputs) for x in known)
    text = cast("Truth", live[where]).text
    arms = [
        replace(a, condition=" && ".join(filter(None, (c, a.condition))))
        for c, call in ((text, yes), (f"!({text})", no))
        for a in call.arms
    ]
    return Call(arms=arms, stop=yes.stop, reason=yes.reason, finished=yes.finished)


def _parted(region: Region, end: int) -> Region:
    """Return the region, ended before the op at `end`."""
    return replace(region, ops=replace(region.ops, end=end, is_parted=True))


def _of_sizes(
    around: Surroundings,
    region: Region,
    live: Sequence[object],
    outputs: Callable[[Sequence[host.Operand]], Mapping[int, str]],
) -> Call:
    spots = dict(_spots(live))
    found, missing = _leaves(around, region, live, spots)
    first = found[0]
    if first.host is not None and any(
        isinstance(x, Leaf) and x.host is not None and x.stop > first.stop for x in missing
    ):
        region = _parted(region, first.stop)  # so that all leaves stop at the same op
        found, missing = _leaves(around, region, live, spots)
        first = found[0]
    if first.host is not None:
        outer = _outer(spots, first)
        guards = [x.guards if isinstance(x, Leaf) else x for x in missing]
        rows = [{_in(index, outer): holds for index, holds in row.items()} for row in guards]
        limit(around.frame, around.sizes, rows)
    if first.host is None:
        if first.stop > region.ops.start and first.reason:
            raise Refused(first.reason, first.loc)
        return Call(arms=[], stop=region.ops.start, reason=first.reason, finished=False)
    if first.host.scalars and region.keys.floats:
        raise Refused("needs a float that is known when it is exported")
    known = _constants(around, spots, first)
    arms: list[Arm] = []
    for leaf in found:
        outer = _outer(spots, leaf)
        tests = [
            f"{'' if holds else '!'}({c_index(_in(index, outer))} >= 0)"
            for index, holds in leaf.guards.items()
            if not around.frame.is_sure(_in(index, outer) if holds else -_in(index, outer) - 1)
        ]
        facts = [
            index if holds else -index - 1
            for index, holds in ((_in(index, outer), holds) for index, holds in leaf.guards.items())
        ]
        emit = _Leaf(around, region, leaf, live, outer, outputs if len(found) == 1 else None, known)
        arms.append(Arm(
            condition=" && ".join(tests), results=leaf.results, emit=emit.emitted, facts=facts
        ))  # fmt: skip
    finished = first.stop == len(region.ops.block.ops)
    return Call(arms=arms, stop=first.stop, reason=first.reason, finished=finished)


def _leaves(
    around: Surroundings, region: Region, live: Sequence[object], spots: Mapping[Spot, Index]
) -> tuple[list[Leaf], list[Leaf | Mapping[Index, bool]]]:
    """Return what `leaves` gives. An int that the run computes has no
    value in the example: another one is tried, if the region does not fit the first."""
    examples = around.frame.examples
    names = {n for x in spots.values() for n in symbols(x)} & around.frame.runtime
    kept = dict(examples)
    try:
        for guess in (None, 0, 1, 2):
            if guess is not None:
                examples.update(dict.fromkeys(names, guess))
            made = replace(region.signatures, classes={}, small={})
            made.levels = {spot: _level(around, spot, n) for spot, n in spots.items()}
            made.alike = _alike(spots)
            region = replace(region, signatures=made)
            try:
                values = [concrete(around, x) for x in live]
                found, missing = leaves(region, values, _decider(around, spots))
            except Ineligible as why:
                raise Refused(f"is given {why}") from None
            if found[0].host is not None or found[0].stop == region.ops.start or not names:
                break
        return found, missing
    finally:
        examples.update(kept)


def _alike(spots: Mapping[Spot, Index]) -> dict[Spot, int]:
    """Return groups of spots that have the same size, so that they have one symbol."""
    groups: dict[Index, list[Spot]] = {}
    for spot, n in spots.items():
        if n.const is None:
            groups.setdefault(n, []).append(spot)
    several = [found for found in groups.values() if len(found) > 1]
    return {spot: k for k, found in enumerate(several) for spot in found}


def _decider(around: Surroundings, spots: Mapping[Spot, Index]) -> Decide:
    """Return what answers questions that the bounds of C variables answer."""

    def decide(index: Index, binding: Binding, known: Mapping[Index, bool]) -> bool | None:
        outer = {name: spots[found[0]] for name, found in binding.spots.items() if found}
        value = _in(index, outer)
        for other, holds in known.items():
            apart = value - _in(other, outer)
            if holds and around.frame.is_sure(apart):
                return True
            if not holds and around.frame.is_sure(-apart):
                return False
        if around.frame.is_sure(value):
            return True
        return False if around.frame.is_sure(-value - 1) else None

    return decide


# ---- the signature -----------------------------------------------------------------------------


def _spots(live: Sequence[object]) -> Iterator[tuple[Spot, Index]]:
    for k, x in enumerate(live):
        yield from _spots_in(x, _Place(k))


def _spots_in(x: object, place: Place) -> Iterator[tuple[Spot, Index]]:
    if isinstance(x, Tensor):
        yield from ((Spot(place, d, len(x.shape)), n) for d, n in enumerate(x.shape))
    elif isinstance(x, Index) or type(x) is int:
        yield Spot(place), as_index(x)
    elif isinstance(x, tuple | list):
        for k, e in enumerate(cast("Sequence[object]", x)):
            yield from _spots_in(e, place.of(k))
    elif isinstance(x, dict):
        for key, e in cast("Mapping[Any, object]", x).items():
            yield from _spots_in(e, place.of(key))


def _level(around: Surroundings, spot: Spot, n: Index) -> int:
    if n.const is not None:
        return CONSTANT
    if not spot.is_int:
        return VARIES if nonnegative(n - 2) else ANY
    if symbols(n) <= around.free:
        return FREE
    return VARIES if nonnegative(n) else ANY


def concrete(around: Surroundings, x: object) -> Any:
    """Return a value of the example that stands for `x`; a tensor has no memory."""
    match x:
        case Tensor():
            shape = [around.frame.example(n, around.sizes) for n in x.shape]
            return torch.empty(shape, dtype=x.dtype.torch, device="meta")
        case Index():
            return around.frame.example(x, around.sizes)
        case Real():
            return 0.625
        case Truth():
            return False  # no op of the region reads it
        case Thing():
            return x.value
        case _ if x is MISSING:
            return UNBOUND
        case tuple():
            return tuple(concrete(around, e) for e in cast("tuple[object, ...]", x))
        case list():
            return [concrete(around, e) for e in cast("list[object]", x)]
        case dict():
            return {k: concrete(around, e) for k, e in cast("dict[Any, object]", x).items()}
        case _:
            return x


def _outer(spots: Mapping[Spot, Index], leaf: Leaf) -> dict[str, Index]:
    """Return what the symbols of the signature are in the C function."""
    return {name: spots[found[0]] for name, found in leaf.binding.spots.items() if found}


def _constants(around: Surroundings, spots: Mapping[Spot, Index], leaf: Leaf) -> list[str]:
    """Return the C tests of sizes that must be equal. Raises Again and Refused for sizes of which
    the ops need a constant."""
    runtime = around.frame.runtime
    by_symbol = {spot: name for name, found in leaf.binding.spots.items() for spot in found}
    needed = [n for spot, n in spots.items() if n.const is None and spot not in by_symbol]
    names = sorted({name for n in needed for name in symbols(n)})
    if any(name in runtime for name in names):
        raise Refused("needs an int that is known when it is exported")
    if names:
        raise Again(constant=names)
    tests: list[str] = []
    same: list[tuple[str, str]] = []
    computed = _computed_with(leaf)
    for name, found in leaf.binding.spots.items():
        first, *others = dict.fromkeys(spots[s] for s in found)
        for other in others:
            a, b = lone_size(first), lone_size(other)
            if a and b and a.name not in runtime and b.name not in runtime:
                same.append((a.name, b.name))
            else:
                tests.append(f"{c_index(first)} != {c_index(other)}")
        if name in computed and not around.frame.is_small(first):
            tests.append(f"{c_index(first)} >= {LARGE}LL || {c_index(first)} <= -{LARGE}LL")
    if same:
        raise Again(same=same)
    return tests


def _computed_with(leaf: Leaf) -> set[str]:
    """Return the symbols that the region computes with, rather than only return."""
    code = leaf.host
    assert code is not None
    found = {*code.symbols, *(n for index in leaf.guards for n in symbols(index))}
    for x in code.around.results:
        if isinstance(x, host.Number) and lone_size(x.index) is None:
            found |= symbols(x.index)
    if code.around.sizes or code.around.before:
        found.update(leaf.binding.spots)
    return found


def _in(index: Index, outer: Mapping[str, Index]) -> Index:
    """Return an index of the region in the C function's ints."""
    return rebuild(index, lambda a: outer.get(a.name) if isinstance(a, Size) else None)


# ---- the code ----------------------------------------------------------------------------------


class _Leaf:
    """Prints the code of a leaf."""

    def __init__(
        self,
        around: Surroundings,
        region: Region,
        leaf: Leaf,
        live: Sequence[object],
        outer: dict[str, Index],
        outputs: Callable[[Sequence[host.Operand]], Mapping[int, str]] | None,
        tests: Sequence[str],
    ) -> None:
        self.around, self.region, self.leaf, self.live = around, region, leaf, live
        self.outer = outer
        self.outputs = outputs
        self.tests = tests
        self.made: dict[str, object] = {}
        self.tensors: list[Tensor] = []

    @property
    def _lines(self) -> list[str]:
        return self.around.numbers.lines

    def emitted(self) -> dict[Value, object]:
        """Print the code; return what it makes. Raises Refused."""
        code = self.leaf.host
        assert code is not None
        program = code.around
        for test in self.tests:
            self._lines.append(f"if ({test}) {self.around.returns['BAD_SIZE']}")
        for s in program.sizes:
            self._statement(s)
        for a, b, _ in code.program.equalities:
            left, right = _in(a, self.outer), _in(b, self.outer)
            if left is not right:
                bad = self.around.returns["BAD_SIZE"]
                self._lines.append(f"if ({c_index(left)} != {c_index(right)}) {bad}")
        for s in program.before:
            self._statement(s)
        if program.kernels is not None:
            self._kernels(program.kernels, program.results)
        for s in program.after:
            self._statement(s)
        for w in program.writes:
            self._write(w)
        undefined = {op.result for op in self.region.ops.block.ops if op.name == "undef"}
        rows = zip(self.leaf.results, program.results, strict=True)
        return {v: MISSING if v in undefined else self.value(x) for v, x in rows}

    def _statement(self, s: host.Statement) -> None:
        match s:
            case host.Size(name=name, op=op, operands=operands):
                found = self.around.numbers.op(op, [self.value(x) for x in operands])
                self.outer[name] = as_index(cast("Index | int", found))
                self.made[name] = found
            case host.Call(name=name, op=op, operands=operands):
                self.made[name] = self.around.numbers.op(op, [self.value(x) for x in operands])
            case host.Let(name=name, value=value):
                self.made[name] = self.value(value)
            case host.Permute():
                raise Refused("returns a permuted tensor")

    def _resolved(self, x: host.Operand) -> host.Operand:
        """Return an operand with containers in place of their names."""
        code = self.leaf.host
        assert code is not None
        lets = {s.name: s.value for s in code.around.after if isinstance(s, host.Let)}
        if isinstance(x, host.Made) and x.item is None and x.name in lets:
            return self._resolved(lets[x.name])
        if isinstance(x, host.Group):
            return replace(x, elems=tuple(self._resolved(e) for e in x.elems))
        return x

    def _write(self, w: host.Write) -> None:
        to, value = self.value(w.to), self.value(w.value)
        assert isinstance(to, Tensor)
        assert isinstance(value, Tensor)
        if not to.writable:
            raise_unwritable(to)
        self._lines.append(f"memcpy({to.at}, {value.at}, {c_int(nbytes(value))});")

    # -- operands --

    def value(self, x: host.Operand) -> Any:
        """Return an operand as a value of the C function."""
        match x:
            case host.Live(position=position, path=path):
                found: Any = self.live[position]
                for key in path:
                    found = found[key]
                return found
            case host.Output(number=number):
                return self.tensors[number]
            case host.Made(name=name, item=item):
                whole: Any = self.made[name]
                return whole if item is None else whole[item]
            case host.Number(index=index):
                found = _in(index, self.outer)
                return found if found.const is None else found.const
            case host.Literal(value=value):
                return value
            case host.Group(kind=kind, elems=elems):
                inner = [self.value(e) for e in elems]
                return inner if kind == "list" else tuple(inner)
            case host.Entries(keys=keys, elems=elems):
                pairs = zip(keys, elems, strict=True)
                return {self.value(k): self.value(v) for k, v in pairs}
            case _:
                raise Refused("uses an object that is no number")

    # -- kernels --

    def _kernels(self, kernels: host.Kernels, results: Sequence[host.Operand]) -> None:
        code, frame = self.leaf.host, self.around.frame
        assert code is not None
        executable = self._compiled()
        program = executable.host
        count = kernels.outputs
        given = [self.value(x) for x in kernels.inputs]
        numbers = [c_real(self.value(x)) for x in kernels.numbers]
        is_end = self.leaf.stop == len(self.region.ops.block.ops)
        direct: Mapping[int, str] = {}
        if is_end and self.outputs is not None:
            direct = self.outputs([self._resolved(x) for x in results])
        frame.tick += 1
        frame.touch(given)
        for k, of in enumerate(program.results[:count]):
            self.tensors.append(self._output(executable, k, of, direct.get(k, "")))
        names = dict(zip(program.results, (x.at for x in self.tensors), strict=False))
        driver = CDriver(program, names, self._names(executable), MOST_THREADS, len(frame.pieces))
        try:
            self._pieces(driver)
            body = self._body(driver, given, numbers, count)
        except NotPrinted as why:
            raise Refused(f"needs {why}") from None
        self._lines.extend(body)
        frame.tick += len(program.body) + 1
        frame.touch(given, self.tensors)

    def _compiled(self) -> Executable:
        code, around = self.leaf.host, self.around
        assert code is not None
        hints = {
            n: around.frame.example(self.outer[n], around.sizes) for n in code.symbols
        }  # as likely sizes
        return compile_program(
            code.program, symbols=code.symbols, scalars=code.scalars, hints=hints
        )

    def _names(self, executable: Executable) -> dict[str, str]:
        found: dict[str, str] = {}
        for head, kernels in executable.kernels_by_head.items():
            texts = kernels.to_compile()
            for plan, text in zip(kernels.compiled, texts, strict=True):
                found[f"{head}{plan.name}"] = f"kernel_{self.around.kernels.name_of(text)}"
        return found

    def _output(self, executable: Executable, k: int, of: str, direct: str) -> Tensor:
        code, frame = self.leaf.host, self.around.frame
        assert code is not None
        d = executable.program.defs[of]
        shape = tuple(_in(n, self.outer) for n in map(as_index, d.shape))
        name = frame.fresh("p_")
        root = _root(code.outputs[k])
        family: object = root
        if isinstance(root.origin, Place):
            family = self.value(host.Live(position=root.origin.position, path=root.origin.path))
            family = cast("Tensor", family).family
        piece = None
        if not direct or any(symbols(n) & frame.runtime for n in shape):
            piece = frame.take(_product(shape) * d.dtype.itemsize)
            direct = f"workspace + offsets[{piece}]"
        self._lines.append(f"char *{name} = (char *)({direct}); (void){name};")
        return Tensor(
            at=name, dtype=d.dtype, shape=shape, piece=piece, family=family, writable=True
        )

    def _pieces(self, driver: CDriver) -> None:
        """Add the temporaries of the region to those of the function."""
        frame, inner = self.around.frame, dict(self.outer)
        for s in driver.sizes():
            inner[s.name] = _in(s.index, inner)
        for p in driver.pieces():
            sizes = tuple(frame.most(_in(n, inner)) for n in p.nbytes)
            frame.pieces.append(Piece(sizes, frame.tick + p.begin, frame.tick + p.end, p.factor))

    def _body(
        self, driver: CDriver, given: Sequence[Tensor], numbers: Sequence[str], outputs: int
    ) -> Iterator[str]:
        program, names = driver.program, driver.program.sizes
        symbol_of = list(enumerate(names))
        yield "{"
        yield from (f"const int64_t a_{k} = {c_int(self.outer[n])};" for k, n in symbol_of)
        yield "{"
        yield from (f"const int64_t z_{n} = a_{k}; (void)z_{n};" for k, n in symbol_of)
        for s in driver.sizes():
            yield f"int64_t z_{s.name} = {c_index(s.index)}; (void)z_{s.name};"
        for name, x in zip(program.inputs, given, strict=True):
            yield f"char *{c_name(name)} = (char *)(uintptr_t)({x.at});"
        for name, text in zip(program.numbers, numbers, strict=True):
            yield f"const double {name} = {text};"
        yield from driver.body()
        yield f"if (fault) {self.around.returns['RAISED']}"
        for name in program.results[outputs:]:
            yield f"if (!*{c_name(name)}) {self.around.returns['BAD_INDEX']}"
        yield "}"
        yield "}"


def raise_unwritable(x: Tensor) -> None:
    """Raise Again if the tensor is the module's, Refused if it is the caller's, or the copy of an
    attribute that the program assigns."""
    if isinstance(x.family, str):
        raise Again(state=[x.family])
    if x.piece is not None:
        raise Refused("changes an attribute that is assigned, in place; write `a = a + b` for +=")
    raise Refused("writes into a tensor that it is given; return the new value")


def nbytes(x: Tensor) -> Index:
    """Return the bytes of a tensor."""
    return _product(x.shape) * x.dtype.itemsize


def _product(shape: Sequence[Index]) -> Index:
    found = as_index(1)
    for n in shape:
        found = found * n
    return found


def _root(x: Abs) -> Abs:
    while x.base is not None:
        x = x.base
    return x
