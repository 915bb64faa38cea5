"""Partitions a Program with delays into parts that run one after another: plain ones, and loops.

In:  a Program whose definitions form cycles through delays.
Out: `Part`s in order. A cycle becomes a `Loop`: a Program of one step, in which the loop's index is
     a size symbol and the carried values are inputs. All other definitions are in plain parts,
     before or after loops, and compute all steps at once.

    h'[t, j] = h[t-1, j]                     part 0   p[t, j] = sum[k](x[t, k] * w[k, j])
    p[t, j] = sum[k](x[t, k] * w[k, j])      loop t   h[j] = tanh(p[t, j] + sum[k](h'[k] * u[k, j]))
    h[t, j] = tanh(p[t, j] +           ->    part 2   y[t] = sum[j](h[t, j])
              sum[k](h'[t, k] * u[k, j]))
    y[t] = sum[j](h[t, j])

A value is computed in the last possible part. Pointwise values are recomputed in each part that
reads them, so that only reductions and carried values are stored between parts; cheap values of
pairs are recomputed in each step (`recompute`). With nested loops (`nested_recurrences`), a step is
itself a Program with delays, which is partitioned again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import (
    Apply,
    Cast,
    Def,
    Delay,
    Expr,
    Input,
    Load,
    Program,
    Reduce,
    Rewriter,
    Select,
)
from lowtide.texpr.index import Axis, Index, Size, as_index, deep_atoms
from lowtide.texpr.index_ranges import clamp
from lowtide.texpr.joined_parts import Block, as_block
from lowtide.texpr.nested_recurrences import Cycle, cycles, nested, step_of, steps_of
from lowtide.texpr.recompute import Pairs, is_cheap
from lowtide.texpr.split_ranges import split_ranges

OF_STEP: Final = "_step"  # the ending of a name: the row of one step


@dataclass(slots=True, kw_only=True)
class Part:
    """A Program, whose outputs later parts or the caller read."""

    program: Program


@dataclass(slots=True, kw_only=True)
class Loop:
    """`program` is one step; `step` is its size symbol. Outputs are slots of one step. It has
    delays where loops turn within the step.

    `carried`: an input of the step, and the output that it is one step earlier, or at the first
    step the value named. `stacked`: outputs of which all steps are needed later; of the others only
    the last one. `ends`: an output, and what its value after the last step is called. `blocks`: a
    tensor, and the outputs that it is made of. `until`: an output, a truth; once it is false, no
    step changes anything. "" where that may never be, or where all steps are needed."""

    program: Program
    step: str
    trips: Index
    why: str
    reverse: bool
    carried: Mapping[str, tuple[str, str]]
    stacked: frozenset[str]
    ends: Mapping[str, str]
    blocks: Mapping[str, tuple[str, ...]]
    until: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """In the order in which they run. `same`: results that are a value of a part as it is."""

    parts: tuple[Part | Loop, ...]
    same: Mapping[str, str]


def partition(program: Program, hints: Mapping[str, int], level: int = 0) -> Parts:
    """Return the parts of a Program with delays. The Program itself may be a step of `loops` around
    it. `hints`: likely sizes."""
    program = _forwarded(program)
    looped, apart = steps_of(program), set[str]()
    while True:
        split, even = split_ranges(program, looped, apart)
        made = _Partition(_settled(_forwarded(split)), even, hints, level)
        left = (even.keys() & looped.keys()) - made.in_blocks - apart
        if not left:
            return Parts(tuple(_alike(made.parts(), program.shared_sums)), made.same)
        apart |= left  # its parts are not alike after all


def _loads(program: Program) -> dict[str, set[str]]:
    """Return the names of the tensors that each definition reads."""
    return {n: {x.source for x in ex.loads(d.expr)} for n, d in program.defs.items()}


def _alike(parts: Sequence[Part | Loop], shared_sums: Mapping[str, DType]) -> Sequence[Part | Loop]:
    """Return the parts, each with the sums that others compute, too, or the row of a step of
    those."""
    made = [(n.removesuffix(OF_STEP), d) for p in parts for n, d in p.program.defs.items()]
    count = Counter(name for name, _ in made)
    several = {n: d.tiles_dtype for n, d in reversed(made) if count[n] > 1} | {**shared_sums}
    for p in parts:
        names = {n: n.removesuffix(OF_STEP) for n in p.program.defs}
        sums = {n: several[whole] for n, whole in names.items() if whole in several}
        p.program = replace(p.program, shared_sums=sums)
    return parts


class _Partition:
    def __init__(
        self, program: Program, even: Mapping[str, int], hints: Mapping[str, int], level: int
    ) -> None:
        program, self.cycles = nested(program)
        self.program = program
        self.level = level
        self.defs = dict(program.defs)
        self.roots = [*program.outputs, *program.checks]
        self.added_to = program.added_to()
        self.loads = _loads(program)
        self.cycle_of = {n: c for c in self.cycles for n in c.members}
        self.in_blocks: set[str] = set()
        self.blocks = dict(self._blocks(even))
        simple = {n for n, c in self.cycle_of.items() if not c.inner} - self.in_blocks
        self.pairs = Pairs(program, self.cycle_of.keys(), hints)
        self.after = self.pairs.after & simple
        self._levels: dict[object, int] = {}
        self._placed: dict[str, int] = {}
        self._written: dict[tuple[Load, Index], Expr | None] = {}
        self.users: dict[str, set[str]] = {}
        for user, sources in self.loads.items():
            for source in sources:
                self.users.setdefault(source, set()).add(user)
        for c in self.cycles:
            for init, source in c.inits:
                self.users.setdefault(init, set()).add(source)
        self.demanded: dict[str, None] = dict.fromkeys(self.roots)
        self.ends: dict[str, str] = {}
        self.filled: set[str] = set()  # blocks that are read
        self.whole: set[str] = {r for r in self.roots if r in self.cycle_of}
        self.same = self._escaping_steps() if not level else {}  # of a step each has its own place

    def _blocks(self, even: Mapping[str, int]) -> Iterator[tuple[str, Block]]:
        """Yield values that are read from a tensor of all their parts, which a loop fills."""
        for name, dim in even.items():
            d = self.defs.get(name)
            found = as_block(d, dim) if d is not None and name not in self.cycle_of else None
            if found is None:
                continue
            block, reading = found
            loop = self.cycle_of.get(block.parts[0])
            alike = loop is not None and not loop.inner
            alike = alike and all(self.cycle_of.get(n) is loop for n in block.parts)
            if alike and self.in_blocks.isdisjoint(block.parts):
                self.in_blocks.update((name, *block.parts))
                self.defs[name] = reading
                yield block.name, block

    def parts(self) -> list[Part | Loop]:
        """From the last part to the first, since each says what it needs of those before it."""
        live = ex.needed(self.program, self.roots)
        at: dict[int, list[Cycle | None]] = {}
        for name in self.defs:
            if name in live:
                c = self.cycle_of.get(name)
                where = at.setdefault(self._place(name), [])
                if c not in where:
                    where.append(c)
        made: list[Part | Loop] = []
        for number in sorted(at, reverse=True):
            for c in at[number]:
                part = self._plain(number) if c is None else self._loop(c)
                if part is not None:
                    made.append(part)
        return made[::-1]

    def _escaping_steps(self) -> dict[str, str]:
        """Outputs that are all steps of a loop's value, or the last one: each memory once."""
        found: dict[str, str] = {}
        taken = {self._origin(r)[0] for r in self.roots if r in self.cycle_of}
        for at_end in (False, True):
            for name in self.roots:
                source, is_end = self._origin(name)
                if name == source or source in taken or is_end is not at_end:
                    continue
                if name in self.added_to:  # it is to be another than the loop's value
                    continue
                taken.add(source)
                self.demanded.pop(name)
                self.demanded[source] = None
                if at_end:
                    found[name] = self.ends.setdefault(source, f"{source}_end")
                else:
                    found[name] = source
                    self.whole.add(source)
        return found

    def _origin(self, name: str) -> tuple[str, bool]:
        """Return the value of a loop that a definition copies, and whether it is the last step's.
        For others, return the definition itself."""
        d, at_end = self.defs[name], False
        index = tuple(as_index(a) for a in d.axes)
        source = name
        while source not in self.cycle_of:
            node = at_indices(d.expr, dict(zip(d.axes, index, strict=True)))
            if not isinstance(node, Load) or node.source not in self.defs:
                return name, False
            source, index, d = node.source, node.index, self.defs[node.source]
        c = self.cycle_of[source]
        axes = tuple(as_index(a) for a in self.defs[name].axes)
        shape = self.defs[source].shape
        if len(index) == len(axes) + 1 and index[0] is c.delays[0].last:
            at_end, index, shape = True, index[1:], shape[1:]
        is_whole = index == axes and shape == self.defs[name].shape
        return (source, at_end) if is_whole else (name, False)

    # -- where a definition is computed: plain parts have even numbers, loops odd ones --

    def _level(self, name: str) -> int:
        """Return the first part in which it can be."""
        c = self.cycle_of.get(name)
        key: object = name if c is None else id(c)
        if key not in self._levels:
            if c is None:
                above = [self._level(s) for s in self.loads.get(name, ())]
                self._levels[key] = max((n + n % 2 for n in above), default=0)
            else:
                sources = {s for m in c.members for s in self.loads.get(m, ())} - c.members
                sources |= {init for init, _ in c.inits} - c.members
                above = [self._level(s) for s in sources]
                self._levels[key] = max((n + 1 + n % 2 for n in above), default=1)
        return self._levels[key]

    def _place(self, name: str) -> int:
        """Return the last part in which it can be."""
        if name in self.cycle_of:
            return self._level(name)
        if name not in self._placed:
            below = [self._place(u) for u in self.users.get(name, ())]
            wanted = [self._level(name)] if name in self.roots or not below else []
            self._placed[name] = min(*wanted, *(n - n % 2 for n in below), 1 << 30)
        return self._placed[name]

    # -- plain parts --

    def _plain(self, number: int) -> Part | None:
        roots = [n for n in self.demanded if n in self.defs and n not in self.cycle_of]
        roots = [n for n in roots if self._place(n) == number]
        if not roots:
            return None
        defs: dict[str, Def] = {}
        inputs: dict[str, Input] = {}
        todo = list(roots)
        while todo:
            name = todo.pop()
            if name in defs or name in inputs:
                continue
            d = self.defs.get(name)
            if d is None or not (self._place(name) == number or self._is_recomputed(d)):
                self._need(inputs, name)
                continue
            new = self._with_ends(self._after_loop(d) if name in self.after else d)
            defs[name] = new
            todo += dict.fromkeys(load.source for load in ex.loads(new.expr))
        ordered = {n: defs[n] for n in self.defs if n in defs}
        checks = [n for n in self.program.checks if n in roots]
        outputs = [n for n in roots if n not in checks or n in self.program.outputs]
        return Part(program=Program(inputs=inputs, defs=ordered, outputs=[*outputs, *checks]))

    def _is_recomputed(self, d: Def) -> bool:
        """Return whether each part that reads the definition recomputes it."""
        if d.name in self.cycle_of:
            return d.name in self.after
        if d.name in self.added_to:
            return False
        if is_cheap(d) or d.name in self.pairs.invariant:
            return True
        return self._has_large_rows(d)

    def _has_large_rows(self, d: Def) -> bool:
        """Return whether each row of the definition is a value of pairs, which a step computes by
        itself."""
        return bool(d.axes) and self.pairs.is_short(d.name) and self.pairs.are(d.shape[1:])

    def _need(self, inputs: dict[str, Input], name: str) -> None:
        """Of a part: `name` is made by an earlier one, or the caller's."""
        if name in self.program.inputs:
            inputs[name] = self.program.inputs[name]
            return
        if name in self.blocks:
            block = self.blocks[name]
            inputs[name] = ex.stored(name, block.shape, block.dtype)
            self.demanded |= dict.fromkeys(block.parts)
            self.whole.update(block.parts)
            self.filled.add(name)
            return
        of = next((n for n, end in self.ends.items() if end == name), None)
        d = self.defs[of or name]
        shape = d.shape if of is None else d.shape[1:]
        inputs[name] = ex.stored(name, shape, d.dtype)
        self.demanded[of or name] = None
        if of is None and name in self.cycle_of:
            self.whole.add(name)

    def _after_loop(self, d: Def) -> Def:
        """Rewrite a definition after the loop to read what all steps stored."""

        def visit(node: Expr) -> Expr | None:
            y = self.program.delays.get(node.source) if isinstance(node, Load) else None
            if y is None or not isinstance(node, Load):
                return None
            return _chosen(y, node, ex.load(y.init, node.index[1:], node.dtype))

        return _rewritten(d, visit)

    def _with_ends(self, d: Def) -> Def:
        """Reads of the last step of a loop, as a value of their own."""

        def visit(node: Expr) -> Expr | None:
            c = self.cycle_of.get(node.source) if isinstance(node, Load) else None
            if c is None or not isinstance(node, Load) or node.index[0] is not c.delays[0].last:
                return None
            name = self.ends.setdefault(node.source, f"{node.source}_end")
            return ex.load(name, node.index[1:], node.dtype)

        return _rewritten(d, visit)

    # -- loops --

    def _loop(self, c: Cycle) -> Loop:
        step = Size(f"step{self.level or ''}")
        index = as_index(step)
        delays = {y.name: y for y in c.delays}
        inner = dict(self._inner(c, index))
        inputs: dict[str, Input] = {}
        defs = {
            n: begins for _, begins in inner.values() if begins is not None for n in [begins.name]
        }
        kept = frozenset(n for n in self.demanded if n in c.members and n in self.whole)
        ending = next((y for y in c.delays if y.ends and not kept), None)
        if ending is not None:
            self._join(c, ending.ends)
        for name, d in self.defs.items():
            if name in c.members:
                defs[name] = self._of_a_step(d, {d.axes[0]: index}, c, index)
        defs |= self._pairs_of(defs.values(), c, index)
        read = [load.source for d in defs.values() for load in ex.loads(d.expr)]
        for source in (*read, *(y.init for y, _ in inner.values())):
            y = delays.get(source)
            if y is not None:
                inputs[y.name] = ex.stored(y.name, y.shape[1:], y.dtype)
            elif source not in defs and source not in inner:
                self._need(inputs, source)
        outputs = dict.fromkeys(y.source for y in c.delays)
        outputs |= dict.fromkeys(n for n in self.demanded if n in c.members)
        for y in c.delays:
            if y.init not in self.program.inputs:
                self.demanded[y.init] = None
        return Loop(
            program=Program(
                inputs=inputs,
                delays={n: y for n, (y, _) in inner.items()},
                defs=ex.ordered(defs),
                outputs=list(outputs),
            ),
            step=step.name,
            trips=c.delays[0].shape[0],
            why="; ".join(dict.fromkeys(y.why for y in c.delays if y.why)),
            reverse=c.delays[0].reverse,
            carried={y.name: (y.source, y.init) for y in c.delays if y.name in inputs},
            stacked=frozenset(n for n in outputs if n in self.whole),
            ends={n: end for n, end in self.ends.items() if n in c.members},
            blocks={
                n: self.blocks[n].parts
                for n in sorted(self.filled)
                if self.blocks[n].parts[0] in c.members
            },
            until="" if ending is None else ending.source,
        )

    def _pairs_of(self, members: Iterable[Def], c: Cycle, index: Index) -> dict[str, Def]:
        """Compute values of pairs from before the loop in each step. Loads of values that differ
        between steps read `name_step`."""
        found: dict[str, Def] = {}
        todo = [load.source for d in members for load in ex.loads(d.expr)]
        while todo:
            name = todo.pop()
            source = name.removesuffix(OF_STEP)
            if name in found or source not in self.defs or source in self.cycle_of:
                continue
            d = self.defs[source]
            if name != source:
                found[name] = replace(self._of_a_step(d, {d.axes[0]: index}, c, index), name=name)
            elif name in self.pairs.invariant:
                found[name] = self._of_a_step(d, {}, c, index)
            else:
                continue
            todo += [load.source for load in ex.loads(found[name].expr)]
        return found

    def _is_made_by_step(self, node: Load, index: Index) -> bool:
        """Return whether the load reads the row of this step of a value whose rows are values of
        pairs."""
        d = self.defs.get(node.source)
        if d is None or node.source in self.cycle_of or not self._has_large_rows(d):
            return False
        rest = (a for i in node.index[1:] for a in deep_atoms(i))
        return node.index[0] is index and not any(a in index.atoms() for a in rest)

    def _join(self, c: Cycle, names: Container[str]) -> None:
        """Move definitions into a loop if only its steps read them, each its own row. The loop may
        run few of its steps."""
        for name, d in reversed(self.defs.items()):
            users = self.users.get(name, set())
            if name not in names or name in self.cycle_of or name in self.roots:
                continue
            if users and users <= c.members and all(_reads_own(self.defs[u], d) for u in users):
                c.members.add(name)
                self.cycle_of[name] = c

    def _inner(self, c: Cycle, index: Index) -> Iterator[tuple[str, tuple[Delay, Def | None]]]:
        """Yield the delays within a step, and their initial values from outside of it."""
        for y, at in c.inner:
            if at is None:
                yield y.name, (y, None)
                continue
            axes = tuple(Axis(f"y{k}", size) for k, size in enumerate(y.shape[1:]))
            whole = step_of(tuple(map(as_index, axes)), at, index)
            begin = ex.load(y.init, whole, y.dtype)
            made = Def(
                name=f"{y.name}_0",
                axes=axes,
                expr=self._written_out(begin, index) or begin,
                loc=y.loc,
                op="loop",
            )
            yield y.name, (replace(y, init=made.name), made)

    def _of_a_step(self, d: Def, at: dict[Axis, Index], c: Cycle, index: Index) -> Def:
        """Return the definition of one step. `at`: the index of the step for each axis that is
        one."""
        own = {*c.members, *(y.name for y in c.delays), *(y.name for y, _ in c.inner)}

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Load):
                return None
            if node.source in own:
                if node.index[0] is not index:
                    raise AssertionError(f"{d.name} reads another step: {node}")
                return ex.load(node.source, node.index[1:], node.dtype)
            if self._is_made_by_step(node, index):
                return ex.load(node.source + OF_STEP, node.index[1:], node.dtype)
            return self._written_out(node, index)

        expr = Rewriter(visit)(at_indices(d.expr, at))
        axes = tuple(a for a in d.axes if a not in at)
        return Def(name=d.name, axes=axes, expr=expr, loc=d.loc, op=d.op)

    def _written_out(self, node: Load, index: Index) -> Expr | None:
        """Inline a pointwise value from before the loop, if it differs between steps or is a view.
        A value that several definitions read is defined once per step."""
        key = node, index
        if key not in self._written:
            self._written[key] = self._write_out(node, index)
        return self._written[key]

    def _write_out(self, node: Load, index: Index) -> Expr | None:
        d = self.defs.get(node.source)
        if d is None or node.source in self.cycle_of or not is_cheap(d):
            return None
        varies = any(a in deep_atoms(i) for i in node.index for a in index.atoms())
        computes = (isinstance(n, Apply | Select | Cast | Reduce) for n in ex.walk(d.expr))
        if not varies and any(computes):
            return None
        moved = at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))

        def visit(inner: Expr) -> Expr | None:
            return self._written_out(inner, index) if isinstance(inner, Load) else None

        return Rewriter(visit)(moved)


def _reads_own(user: Def, d: Def) -> bool:
    """Return whether each step of the user reads the row of the same step."""
    reads = [x.index[0] for x in ex.loads(user.expr) if x.source == d.name and x.index]
    return bool(reads) and all(i is as_index(user.axes[0]) for i in reads)


def _forwarded(program: Program) -> Program:
    """Reads of a definition that only repeats another one are reads of that."""
    known: dict[str, str] = {}
    for n, d in program.defs.items():
        node, own = d.expr, tuple(as_index(a) for a in d.axes)
        if not isinstance(node, Load) or node.index != own or n in program.outputs:
            continue
        made = program.defs.get(node.source)
        if made is not None and made.shape == d.shape:  # not the first part of a larger one
            known[n] = known.get(node.source, node.source)

    return replace(
        program,
        delays={
            n: replace(y, source=known.get(y.source, y.source), init=known.get(y.init, y.init))
            for n, y in program.delays.items()
        },
        defs={
            n: replace(d, expr=ex.reading(d.expr, known))
            for n, d in program.defs.items()
            if n not in known
        },
    )


def _rewritten(d: Def, visit: Callable[[Expr], Expr | None]) -> Def:
    return replace(d, expr=Rewriter(visit)(d.expr))


def _settled(program: Program) -> Program:
    """Replace loads of delays from outside of their cycle by a choice between `init` and the step
    before."""
    members = {y.name: c.members for c in cycles(program) for y in c.delays}

    def settled(d: Def) -> Def:
        def visit(node: Expr) -> Expr | None:
            y = program.delays.get(node.source) if isinstance(node, Load) else None
            if y is None or not isinstance(node, Load) or d.name in members[y.name]:
                return None
            begin = ex.load(y.init, node.index[1:], node.dtype)
            return _chosen(y, node, visit(begin) or begin)

        return _rewritten(d, visit)

    return replace(
        program,
        delays={n: y for n, y in program.delays.items() if members[n]},
        defs=ex.ordered({n: settled(d) for n, d in program.defs.items()}),
    )


def _chosen(y: Delay, node: Load, begin: Expr) -> Expr:
    step, rest = node.index[0], node.index[1:]
    same = (ex.at(step, dtypes.i64), ex.at(y.first, dtypes.i64))
    at_first = ex.apply("eq", same, dtypes.boolean)
    before = clamp(step + y.behind, y.shape[0])
    return ex.select(at_first, begin, ex.load(y.source, (before, *rest), node.dtype))
