"""A Function with runs of its ops as sections.

In: a Function, candidates, and in how many chunks each is done. Out: another Function.

    a = f(x)                   a = section(x) {chunks=4, …}
    b = g(a)           →         block(x'): a' = f(x'); b' = g(a'); yield(b')
    return b.sum()             return b.sum()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_op, with_block
from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.section import SECTION

Counts: TypeAlias = Mapping[Candidate, int]
Row: TypeAlias = tuple[Candidate, int, int]  # how many chunks, how many of them are kept
Sources: TypeAlias = Callable[[Candidate], Sequence[Sequence[int]] | None]
Blocks: TypeAlias = dict[tuple[Candidate, tuple[Row, ...]], list[Block]]


def of_all(_: Candidate) -> None:
    """A graph of any result may come from any operand."""


def with_sections(
    function: Function,
    chunks: Counts,
    blocks: Blocks,
    kept: Counts | None = None,
    sources: Sources = of_all,
) -> Function:
    """See the module's text. The values outside of sections are the same objects as before;
    `blocks`: those of sections that were made earlier, and are taken again; `kept`: how many chunks
    are not run again in the backward pass; `sources`: see `chunks`. A
    candidate may lie within another."""
    rows = [(c, count, (kept or {}).get(c, 0)) for c, count in chunks.items()]
    rows.sort(key=lambda row: (row[0].start, -row[0].stop))
    moved = {id(op) for c in chunks for op in c.moved}
    made = _Rewriter(function, blocks, sources).ops(0, len(function.block.ops), rows)
    left = [op for op in made if id(op) not in moved]
    return with_block(function, Block(function.block.args, left))


class _Rewriter:
    def __init__(self, function: Function, blocks: Blocks, sources: Sources) -> None:
        self.function = function
        self.blocks = blocks
        self.sources = sources

    def ops(self, start: int, stop: int, rows: Sequence[Row]) -> list[Op]:
        """Ops [start, stop) with sections for these candidates in them, which are in order."""
        found: list[Op] = []
        pos = start
        for candidate, count, kept in rows:
            if candidate.start < pos:
                continue  # it lies within the one before
            found += self.function.block.ops[pos : candidate.start]
            blocks = self._blocks_of(candidate, _within(candidate, rows))
            sources = self.sources(candidate)
            found.append(_section(blocks, candidate, count, kept, sources))
            pos = candidate.stop
        return found + self.function.block.ops[pos:stop]

    def _blocks_of(self, candidate: Candidate, inner: tuple[Row, ...]) -> list[Block]:
        """What a section runs, and what it runs again where that is something else."""
        key = candidate, inner
        if key not in self.blocks:
            ops = self.ops(candidate.start, candidate.stop, inner)
            forms = [ops, _without_updates(ops, candidate)] if candidate.updated else [ops]
            given = candidate.block
            self.blocks[key] = [given] if given else [_block(form, candidate) for form in forms]
        return self.blocks[key]


def _within(outer: Candidate, rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(
        row
        for row in rows
        if outer.start <= row[0].start and row[0].stop <= outer.stop and row[0] is not outer
    )


def _without_updates(ops: list[Op], candidate: Candidate) -> list[Op]:
    """The ops without those that change a counter; norms without their running statistics."""
    none = Value("none", t.NONE)
    left = [Op(name="const", attrs={"value": None}, results=[none])]
    for op in ops:
        if op.name != "mutate" or op.operands[0] not in candidate.updated:
            left.append(op)
    absent = dict.fromkeys(candidate.updated, none)
    return [replace(op, operands=[absent.get(v, v) for v in op.operands]) for op in left]


def _block(ops: list[Op], candidate: Candidate) -> Block:
    inner = {v: Value(v.name, v.type) for v in candidate.inputs}
    args = list(inner.values())
    body = [clone_op(op, inner) for op in ops]
    body.append(Op(name="yield", operands=[inner[v] for v in candidate.outputs]))
    return Block(args, body)


def _section(
    blocks: list[Block],
    candidate: Candidate,
    chunks: int,
    kept: int,
    sources: Sequence[Sequence[int]] | None,
) -> Op:
    how: dict[str, Any] = {"chunks": chunks, "cuts": candidate.cuts, "joins": candidate.joins}
    if sources is not None:
        how["sources"] = sources
    if kept:
        how["kept"] = kept
    if candidate.carried is not None:
        how["carried"] = candidate.carried
    if candidate.updated:
        how["updated"] = tuple(candidate.inputs.index(v) for v in candidate.updated)
    return Op(
        name=SECTION,
        operands=list(candidate.inputs),
        attrs=how,
        results=list(candidate.outputs),
        blocks=blocks,
        loc=blocks[0].ops[0].loc,
    )
