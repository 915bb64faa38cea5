"""Builds the host program that runs the kernels of a Program's parts.

In:  a Program, and its parts in order, each with its planned kernels. A part is a Program, a loop
     over steps, or strips of rows. Out: a HostProgram.

    part0   p[t, j] = sum[k](x[t, k] * w[k, j])     take p; launch part0.k0(x, w, p)
    loop1   h[t] = tanh(p[t] + h[t - 1] @ u)        take h: [2, 8]
                                                    loop step …: launch loop1.k0(p, h[step - 1, …],
                                                                                 h[step, …])
            last = h[T - 1]                         view last = h[(T - 1) % 2]; free p; own last

A tensor is freed after the last statement that reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lowtide.codegen.host.program import (
    Dense,
    Fill,
    Free,
    HostProgram,
    Launch,
    Loop,
    Offset,
    Over,
    Own,
    Place,
    Row,
    Shape,
    Size,
    Statement,
    Take,
    Tensor,
    View,
    Work,
    reads,
)
from lowtide.codegen.host.verify import verify_host
from lowtide.texpr import partition
from lowtide.texpr.expr import Def, Program
from lowtide.texpr.index import Index, as_index, product, row_major
from lowtide.texpr.index import Size as SizeAtom
from lowtide.texpr.index_ranges import clamp, floordiv, mod
from lowtide.tile.ir import Kernel
from lowtide.tile.matmul import Matmul
from lowtide.tile.strips import ROWS, START, Strips

SLOTS = 2  # rows of a stack whose older steps are dead: the step before, and this one


class Signature(Protocol):
    """A kernel's parameters, in order, and its work memory per thread."""

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> list[str]: ...
    @property
    def sizes(self) -> list[str]: ...
    @property
    def numbers(self) -> list[str]: ...
    @property
    def thread_bytes(self) -> Index: ...


class Kernels(Protocol):
    """The kernels of a part, as `codegen/kernels` makes them."""

    program: Program
    normal: Program
    shaped: dict[str, Def]
    plans: list[Kernel]
    products: dict[str, Matmul]
    by_library: dict[str, Matmul]
    placed: dict[str, str]

    @property
    def signatures(self) -> Sequence[Signature]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part and its kernels. A loop whose step contains loops has no kernels; `within` has the
    parts of its step. `head`: prefix of the kernels' names."""

    head: str
    part: partition.Part | partition.Loop | Strips
    kernels: Kernels | None
    within: tuple[Stage, ...] = ()


def build(
    program: Program,
    stages: Sequence[Stage],
    same: Mapping[str, str],
    symbols: Sequence[str],
    scalars: Sequence[str],
) -> HostProgram:
    """Return the host program, verified. `same`: results that are another name of a part's
    value."""
    builder = _Builder(program, same, {n for s in stages for n in s.part.program.outputs})
    for stage in stages:
        builder.stage(stage)
    inputs = {n: Tensor(dtype=i.dtype, shape=i.shape) for n, i in program.inputs.items()}
    body = _with_frees(builder.statements, builder.results, builder.ends)
    made = HostProgram(
        sizes=tuple(symbols),
        numbers=tuple(scalars),
        inputs=inputs,
        body=tuple(body),
        results=tuple(builder.results),
    )
    verify_host(made)
    return made


class _Builder:
    def __init__(
        self, program: Program, same: Mapping[str, str], made: Container[str] = ()
    ) -> None:
        """`made`: outputs of the parts. If a part's output is a loop's initial value and a result
        is a copy of it, the result takes the name."""
        self.program = program
        self.called = {of: n for n, of in same.items() if of not in program.inputs}
        self.called |= {n: f"{n}.copy" for n in same if n in made}
        found = (*program.results, *program.checks)
        self.results = [self.value(same.get(n, n)) for n in found]
        self.statements: list[Statement] = []
        self.ends: dict[str, Own] = {}  # last values of loops, and their copies to own memory

    def value(self, name: str) -> str:
        """Return the name in the host program of a value that a part reads or writes."""
        return self.called.get(name, name)

    def emit(self, *statements: Statement) -> None:
        self.statements += statements

    def take(self, name: str, d: Def, shape: Shape | None = None) -> str:
        """Emit the allocation of a value. `shape`: if the tensor holds several steps or strips."""
        self.emit(Take(name=name, tensor=_tensor(d, shape), kind=self.kind(name), loc=d.loc))
        return name

    def kind(self, name: str) -> str:
        return "output" if name in self.results else "temporary"

    def stage(self, stage: Stage) -> None:
        match stage.part:
            case partition.Part():
                self.plain(stage)
            case partition.Loop():
                self.loop(stage, stage.part)
            case Strips():
                self.strips(stage, stage.part)

    # -- a Program --

    def plain(self, stage: Stage) -> None:
        """Emit the kernels in order, each after the allocation of its outputs."""
        k, head = stage.kernels, stage.head
        assert k is not None
        common = {*k.program.inputs, *k.program.outputs, *k.program.checks}

        def name_of(name: str) -> str:
            return self.value(name) if name in common else head + name

        for plan, signature in zip(k.plans, k.signatures, strict=True):
            for output in plan.outputs:
                self.output(output, k, name_of)
            if (by := k.by_library.get(signature.name)) is not None:
                self.emit(by.renamed(name_of))
                continue
            work = f"{head}{signature.name}.work" if signature.thread_bytes.const != 0 else ""
            if work:
                self.emit(Work(name=work, thread_bytes=(signature.thread_bytes,)))
            launch = _launch(head, signature, name_of, work)
            if (m := k.products.get(signature.name)) is not None:
                launch = dataclasses.replace(launch, instead=m.renamed(name_of))
            self.emit(launch)

    def output(self, output: str, k: Kernels, name_of: Callable[[str], str]) -> None:
        """Emit the allocation of a kernel's output, or reuse an operand's memory."""
        name, d = name_of(output), k.shaped[output]
        if output not in k.placed:
            self.take(name, d)
            return
        kind, of = self.kind(name), name_of(k.placed[output])
        self.emit(Over(name=name, tensor=_tensor(d), kind=kind, of=of, loc=d.loc))

    # -- loops --

    def loop(self, stage: Stage, loop: partition.Loop) -> None:
        """Emit the stacks (one row for each step that is kept), the loop, and views of the last
        rows."""
        defs, program = loop.program.defs, loop.program
        parts = {n: block for block, names in loop.blocks.items() for n in names}
        for block, names in loop.blocks.items():
            d = defs[names[0]]
            rows = (slots(loop, names[0]), *d.shape)
            self.take(self.value(block), d, (as_index(len(names)), *rows))
            for k, name in enumerate(names):
                tensor = _tensor(defs[name], rows)
                view = View(
                    name=self.value(name), tensor=tensor, of=self.value(block), index=as_index(k)
                )
                self.emit(view)
        stacks: dict[str, str] = {}
        for name in program.outputs:
            is_read_later = name in loop.stacked or name in parts
            stacks[name] = self.value(name) if is_read_later else stage.head + name
            if name not in parts:
                self.take(stacks[name], defs[name], (slots(loop, name), *defs[name].shape))
        inits = (init for _, init in loop.carried.values())
        places: dict[str, Place] = {n: self.value(n) for n in (*program.inputs, *inits)}
        whole = {n: (place, slots(loop, n)) for n, place in stacks.items()}
        nest = self.nest(stage, loop, places, whole)
        if loop.until and loop.ends:
            nest = dataclasses.replace(nest, ran=f"ran_{stage.head.rstrip('.')}")
        self.emit(nest)
        last = as_index(SizeAtom(nest.ran)) - 1 if nest.ran else _last(loop)
        for name, end in loop.ends.items():
            d, index = defs[name], _row_number(last, slots(loop, name), loop)
            ended = self.value(end)
            self.emit(View(name=ended, tensor=_tensor(d), of=stacks[name], index=index, loc=d.loc))
            self.ends[ended] = Own(name=ended, tensor=_tensor(d), kind=self.kind(ended), loc=d.loc)

    def dense(self, stage: Stage, place: Place) -> Place:
        """Return the loop's initial value in contiguous memory, as the steps carry it on. Kernels
        read any other input by its strides."""
        given = self.program.inputs.get(place) if isinstance(place, str) else None
        if given is None or given.strides == row_major(given.shape):
            return place
        dense = f"{stage.head}{place}"
        if not any(isinstance(s, Dense) and s.name == dense for s in self.statements):
            self.emit(Dense(name=dense, of=given.name))
        return dense

    def nest(
        self,
        stage: Stage,
        loop: partition.Loop,
        places: Mapping[str, Place],
        stacks: Mapping[str, tuple[Place, Index]],
    ) -> Loop:
        """Return a loop. `places`: location of each value that it reads. `stacks`: location and
        number of rows of each output."""
        self.emit(Size(name=loop.step, index=_first(loop)))
        defs, here = loop.program.defs, dict(places)
        for name in loop.program.outputs:
            here[name] = _row(loop, defs[name], stacks[name], 0, None)
        for name, (source, init) in loop.carried.items():
            shift = 1 if loop.reverse else -1
            first = self.dense(stage, here[init])
            here[name] = _row(loop, defs[source], stacks[source], shift, first)
        body: list[Launch | Loop] = []
        if stage.kernels is not None:
            body += self.launches(stage, here)
        for inner in stage.within:
            if not isinstance(inner.part, partition.Loop):
                body += self.launches(inner, here)
                continue
            body.append(self.inner_loop(inner, inner.part, here, stacks))
        until = here[loop.until] if loop.until else ""
        return Loop(
            step=loop.step, begin=as_index(0), by=1, trips=loop.trips, body=tuple(body),
            reverse=loop.reverse, until=until,
        )  # fmt: skip

    def inner_loop(
        self,
        stage: Stage,
        loop: partition.Loop,
        here: dict[str, Place],
        around: Mapping[str, object],
    ) -> Loop:
        """Return a loop that runs in each step of another one. `around`: outputs of the outer loop.
        Adds the inner loop's outputs to `here`."""
        assert not loop.blocks, "blocks within a step"
        assert not (loop.until and loop.ends), "a data-dependent last step, within a step"
        stacks: dict[str, tuple[Place, Index]] = {}
        for name in loop.program.outputs:
            if name in around:
                stacks[name] = here[name], loop.trips
                continue
            d, rows = loop.program.defs[name], slots(loop, name)
            stacks[name] = self.take(stage.head + name, d, (rows, *d.shape)), rows
        nest = self.nest(stage, loop, here, stacks)
        here.update({n: stacks[n][0] for n in loop.stacked})
        for name, end in loop.ends.items():
            of, rows = stacks[name]
            row = _row_number(_last(loop), rows, loop)
            here[end] = Offset(of=of, nbytes=_bytes(loop.program.defs[name]) * row)
        return nest

    def launches(self, stage: Stage, here: dict[str, Place]) -> Iterator[Launch]:
        """Yield the launches of a step. Kernels share work memory, except those with a prologue:
        the first step leaves data there for the later ones."""
        k, head = stage.kernels, stage.head
        assert k is not None
        for name in (n for plan in k.plans for n in plan.outputs):
            if name not in here:
                here[name] = self.take(head + name, k.shaped[name])
        shared: list[Index] = []
        work = dict.fromkeys((s.name for s in k.signatures), "")
        for plan, signature in zip(k.plans, k.signatures, strict=True):
            found = signature.thread_bytes
            if found.const == 0:
                continue
            work[signature.name] = f"{head}{signature.name if plan.prologue else 'steps'}.work"
            if plan.prologue:
                self.emit(Work(name=work[signature.name], thread_bytes=(found,)))
            else:
                shared.append(found)
        if shared:
            found = tuple(dict.fromkeys(shared))
            self.emit(Work(name=f"{head}steps.work", thread_bytes=found))
        for signature in k.signatures:
            yield _launch(head, signature, here.__getitem__, work[signature.name])

    # -- strips --

    def strips(self, stage: Stage, strips: Strips) -> None:
        """Emit a loop over strips of rows, and one strip for the remaining rows."""
        k, program = stage.kernels, strips.program
        assert k is not None
        here: dict[str, Place] = {n: self.value(n) for n in program.inputs}
        for before, name in strips.totals.items():
            whole = self.take(self.value(name), program.defs[name], strips.shape(name))
            self.emit(Fill(name=whole, value=strips.identities[before]))
            here[before] = here[name] = whole
        extent, count = strips.extent, strips.count
        trips, left = floordiv(extent, as_index(count)), mod(extent, as_index(count))
        for name in program.results:
            if name in here:
                continue
            d = program.defs[name]
            whole = self.take(self.value(name), d, strips.shape(name))
            row_bytes = product(d.shape[1:]) * d.dtype.itemsize
            here[name] = Row(of=whole, step=START, shift=0, rows=trips + 1, row_bytes=row_bytes)
        self.emit(Size(name=START, index=as_index(0)))
        self.emit(Size(name=ROWS, index=clamp(extent, as_index(count + 1))))
        body = tuple(self.launches(stage, here))
        self.emit(Loop(step=START, begin=as_index(0), by=count, trips=trips, body=body))
        if left.const != 0:  # a smaller strip: the temporaries of the strips before suffice
            self.emit(Size(name=ROWS, index=left))
            once = clamp(left, as_index(2))
            self.emit(Loop(step=START, begin=extent - left, by=count, trips=once, body=body))


def slots(loop: partition.Loop, name: str) -> Index:
    """Return the number of rows of a value's stack: all steps, or the last `SLOTS` only."""
    return loop.trips if name in loop.stacked else as_index(SLOTS)


def _tensor(d: Def, shape: Shape | None = None) -> Tensor:
    return Tensor(dtype=d.dtype, shape=d.shape if shape is None else shape)


def _bytes(d: Def) -> Index:
    return product(d.shape) * d.dtype.itemsize


def _first(loop: partition.Loop) -> Index:
    return loop.trips - 1 if loop.reverse else as_index(0)


def _last(loop: partition.Loop) -> Index:
    return as_index(0) if loop.reverse else loop.trips - 1


def _row_number(step: Index, rows: Index, loop: partition.Loop) -> Index:
    """Return the row of a stack that holds the value of a step."""
    return step if rows is loop.trips else mod(step, rows)


def _row(
    loop: partition.Loop, d: Def, stack: tuple[Place, Index], shift: int, first: Place | None
) -> Row:
    of, rows = stack
    return Row(of=of, step=loop.step, shift=shift, rows=rows, row_bytes=_bytes(d), first=first)


def _launch(head: str, signature: Signature, place_of: Callable[[str], Place], work: str) -> Launch:
    return Launch(
        kernel=head + signature.name,
        tensors=tuple(map(place_of, signature.tensors)),
        sizes=tuple(signature.sizes),
        numbers=tuple(signature.numbers),
        work=work,
    )


# ---- when memory is freed ----------------------------------------------------------------------


def _with_frees(
    statements: Sequence[Statement], results: Iterable[str], ends: Mapping[str, Own]
) -> Iterator[Statement]:
    """Yield the statements with a `Free` after the last use of each tensor. A last value that
    outlives its stack is copied to memory of its own (`Own`)."""
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    root: dict[str, str] = {}
    for k, statement in enumerate(statements):
        if isinstance(statement, Take | Over | Work | Dense | View):
            made[statement.name] = last[statement.name] = k
        if isinstance(statement, View):
            root[statement.name] = root.get(statement.of, statement.of)
        last.update(dict.fromkeys(reads(statement), k))
    last.update(dict.fromkeys(results, len(statements)))
    stacks = {n: last[n] for n in made}
    for view, whole in root.items():
        if view not in ends and whole in stacks:
            stacks[whole] = max(stacks[whole], last[view])
    after: dict[int, list[Own]] = {}
    for view, own in ends.items():
        whole = root[view]
        if last[view] > stacks[whole]:
            after.setdefault(max(stacks[whole], made[view]), []).append(own)
    gone: dict[int, list[str]] = {}
    for name in sorted(made, key=lambda n: isinstance(statements[made[n]], Work)):
        gone.setdefault(max(stacks[name], last[name]), []).append(name)
    for k, statement in enumerate(statements):
        yield statement
        yield from after.get(k, ())
        if k in gone:
            yield Free(names=tuple(gone[k]))
