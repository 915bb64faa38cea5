"""A Function with runs of its ops as sections.

In: a Function, candidates, and in how many chunks each is done. Out: another Function.

    a = f(x)                   a = section(x) {chunks=4, …}
    b = g(a)           →         block(x'): a' = f(x'); b' = g(a'); yield(b')
    return b.sum()             return b.sum()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.ir.core import Block, Function, Op, Value, clone_op, with_block
from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.section import SECTION


def with_sections(
    function: Function,
    chunks: Mapping[Candidate, int],
    blocks: dict[Candidate, Block],
    kept: Mapping[Candidate, int] | None = None,
) -> Function:
    """See the module's text. The values outside of sections are the same objects as before;
    `blocks`: those of sections that were made earlier, and are taken again; `kept`: how many chunks
    are not run again in the backward pass."""
    moved = {id(op) for candidate in chunks for op in candidate.moved}
    ops: list[Op] = []
    pos = 0
    for candidate, count in sorted(chunks.items(), key=lambda row: row[0].start):
        ops += function.block.ops[pos : candidate.start]
        if candidate not in blocks:
            inside = function.block.ops[candidate.start : candidate.stop]
            blocks[candidate] = candidate.block or _block(inside, candidate)
        ops.append(_section(blocks[candidate], candidate, count, (kept or {}).get(candidate, 0)))
        pos = candidate.stop
    ops += function.block.ops[pos:]
    left = [op for op in ops if id(op) not in moved]
    return with_block(function, Block(function.block.args, left))


def _block(ops: list[Op], candidate: Candidate) -> Block:
    inner = {v: Value(v.name, v.type) for v in candidate.inputs}
    args = list(inner.values())
    body = [clone_op(op, inner) for op in ops]
    body.append(Op(name="yield", operands=[inner[v] for v in candidate.outputs]))
    return Block(args, body)


def _section(block: Block, candidate: Candidate, chunks: int, kept: int) -> Op:
    how: dict[str, Any] = {"chunks": chunks, "cuts": candidate.cuts, "joins": candidate.joins}
    if kept:
        how["kept"] = kept
    if candidate.carried is not None:
        how["carried"] = candidate.carried
    return Op(
        name=SECTION,
        operands=list(candidate.inputs),
        attrs=how,
        results=list(candidate.outputs),
        blocks=[block],
        loc=block.ops[0].loc,
    )
