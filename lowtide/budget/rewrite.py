"""Puts runs of a Function's ops into `section` ops.

In: a Function, candidates, and the number of chunks of each. Out: another Function.

    a = f(x)                   a = section(x) {chunks=4, …}
    b = g(a)           →         block(x'): a' = f(x'); b' = g(a'); yield(b')
    return b.sum()             return b.sum()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from lowtide.execute.candidate import Candidate
from lowtide.execute.cut import Form, Plain
from lowtide.execute.saved_products import saved_product
from lowtide.execute.section import SECTION
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_op, with_block

Counts: TypeAlias = Mapping[Candidate, int]
Values: TypeAlias = tuple[Value, ...]
Sources: TypeAlias = Callable[[Candidate], Sequence[Sequence[int]] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The parts that are not recomputed: a number of chunks of each section, and results of
    products in its other chunks."""

    chunks: Counts = field(default_factory=dict[Candidate, int])
    products: Mapping[Candidate, Values] = field(default_factory=dict[Candidate, Values])


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate with its number of chunks, and what is not recomputed; see `Kept`."""

    run: Candidate
    chunks: int
    kept: int
    products: Values


def of_all(_: object) -> None:
    """Return None: nothing is known, and the graph of any result may lead to any operand."""


def of_no_op(_: Op) -> bool:
    """Return False: nothing is known about an op."""
    return False


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about candidates: the operands that the graphs of their results lead to (`sources`, see
    `chunks`); the `form_of` a value, None if it is not known; whether an op `is_product`."""

    sources: Sources = of_all
    form_of: Callable[[Value], Form | Plain | None] = of_all
    is_product: Callable[[Op], bool] = of_no_op


_KEEPING: Final = frozenset(("kept", "products", "carried"))
NOTHING: Final = Kept()
UNKNOWN: Final = Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """The blocks of a section: the first run; the recomputation; and the recomputation that is
    given saved products. `end`: the last product, whose gradient does not read its result, so that
    a stand-in is given."""

    first: Block
    recomputed: Block
    with_saved: Block | None
    end: Value | None


Made: TypeAlias = dict[tuple[Candidate, Values, tuple[Row, ...], bool, bool], Bodies]


def with_sections(
    function: Function,
    chunks: Counts,
    made: Made,
    kept: Kept = NOTHING,
    known: Known = UNKNOWN,
) -> Function:
    """Return the Function with sections. Values outside of sections are the same objects as before.
    `made`: bodies made earlier, which are reused. Candidates may be nested."""
    rows = [
        Row(c, count, kept.chunks.get(c, 0), kept.products.get(c, ()))
        for c, count in chunks.items()
    ]
    rows.sort(key=lambda row: (row.run.start, -row.run.stop))
    moved = {id(op) for c in chunks for op in c.moved}
    ops = _Rewriter(function, made, known).ops(0, len(function.block.ops), rows)
    left = [op for op in ops if id(op) not in moved]
    return with_block(function, Block(function.block.args, left))


class _Rewriter:
    def __init__(self, function: Function, made: Made, known: Known) -> None:
        self.function = function
        self.bodies = made
        self.known = known

    def ops(self, start: int, stop: int, rows: Sequence[Row], updates: bool = True) -> list[Op]:
        """Return ops [start, stop) with sections for these candidates, which are in order.
        `updates`: whether sections write operands that are only updated."""
        found: list[Op] = []
        pos = start
        for row in rows:
            if row.run.start < pos:
                continue  # nested in the last one
            found += self.function.block.ops[pos : row.run.start]
            inner = _within(row.run, rows)
            row = replace(row, products=()) if inner else row
            found.append(_section(self._bodies(row, inner, updates), row, self.known))
            pos = row.run.stop
        return found + self.function.block.ops[pos:stop]

    def _bodies(self, row: Row, inner: tuple[Row, ...], updates: bool) -> Bodies:
        run, products = row.run, row.products
        key = run, products, inner, row.chunks == 1, updates or not run.updated
        if key not in self.bodies:
            ops = self.ops(run.start, run.stop, inner)
            recomputed = ops
            if run.updated:
                recomputed = _without_updates(self.ops(run.start, run.stop, inner, False), run)
                ops = ops if updates else recomputed
            if row.chunks == 1:
                recomputed = self._with_unread_end(recomputed)
            first = run.block or _block(ops, run, gives=products)
            end = None if products else self._product_at_end(recomputed, run)
            self.bodies[key] = Bodies(
                first=first,
                recomputed=first if recomputed is ops else _block(recomputed, run),
                with_saved=_with_saved(recomputed, run, products if end is None else (end,)),
                end=end,
            )
        return self.bodies[key]

    def _product_at_end(self, recomputed: list[Op], run: Candidate) -> Value | None:
        """Return the result of a last op that is a product whose gradient reads its operands
        only."""
        last = next(op for op in reversed(recomputed) if op.name != "const")
        is_end = run.block is None and _only(last) in run.outputs and self.known.is_product(last)
        return last.result if is_end else None

    def _with_unread_end(self, ops: list[Op]) -> list[Op]:
        """Return the ops for a recomputation whose results are unread: a last section that saves
        nothing builds its graph without running."""
        pos = max((k for k, op in enumerate(ops) if op.name != "const"), default=-1)
        last = ops[pos]
        forms = tuple(map(self.known.form_of, last.results))
        if last.name != SECTION or None in forms or not _KEEPING.isdisjoint(last.attrs):
            return ops
        unread = replace(last, attrs={**last.attrs, "unread": forms})
        return [*ops[:pos], unread, *ops[pos + 1 :]]


def _within(outer: Candidate, rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(
        row
        for row in rows
        if outer.start <= row.run.start and row.run.stop <= outer.stop and row.run is not outer
    )


def _without_updates(ops: list[Op], candidate: Candidate) -> list[Op]:
    """Return the ops without counter updates, with norms that write no running statistics."""
    none = Value("none", t.NONE)
    left = [Op(name="const", attrs={"value": None}, results=[none])]
    for op in ops:
        if op.name != "mutate" or op.operands[0] not in candidate.updated:
            left.append(op)
    absent = dict.fromkeys(candidate.updated, none)
    return [replace(op, operands=[absent.get(v, v) for v in op.operands]) for op in left]


def _only(op: Op) -> Value | None:
    return op.results[0] if len(op.results) == 1 else None


def _block(ops: list[Op], run: Candidate, gives: Values = (), takes: Values = ()) -> Block:
    """Return a block. `gives`, `takes`: results and arguments in addition to those of the run."""
    inner = {v: Value(v.name, v.type) for v in (*run.inputs, *takes)}
    args = list(inner.values())
    body = [clone_op(op, inner) for op in ops]
    body.append(Op(name="yield", operands=[inner[v] for v in (*run.outputs, *gives)]))
    return Block(args, body)


def _with_saved(ops: list[Op], run: Candidate, products: Values) -> Block | None:
    """Return the block that takes the results of products as arguments."""
    if not products:
        return None
    saved = {v: Value(v.name, v.type) for v in products}
    recomputed = [saved_product(op, saved[v]) if (v := _only(op)) in saved else op for op in ops]
    return _block(recomputed, run, takes=tuple(saved.values()))


def _section(bodies: Bodies, row: Row, known: Known) -> Op:
    run = row.run
    blocks = [bodies.first]
    sources = known.sources(run)
    how: dict[str, Any] = {"chunks": row.chunks}
    how |= {"cuts": run.cuts, "joins": run.joins}
    if sources is not None:
        how["sources"] = sources
    if row.chunks > 1 and any(o is not None and sorted(o) != list(o) for o in run.orders):
        how["orders"] = run.orders
    if row.kept:
        how["kept"] = row.kept
    if row.products:
        how["products"] = len(row.products)
    if run.carried is not None:
        how["carried"] = run.carried
    if bodies.recomputed is not bodies.first:
        how["recomputes_second"] = True
        blocks.append(bodies.recomputed)
    if bodies.end is not None:
        how["end"] = run.outputs.index(bodies.end)
    if bodies.with_saved is not None:
        blocks.append(bodies.with_saved)
    if run.updated:
        how["updated"] = tuple(run.inputs.index(v) for v in run.updated)
    return Op(
        name=SECTION,
        operands=list(run.inputs),
        attrs=how,
        results=list(run.outputs),
        blocks=blocks,
        loc=blocks[0].ops[0].loc,
    )
