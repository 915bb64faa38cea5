"""A call of PyTorch's of which the data decide what it takes inside, done in pieces.

In: the op, the values of its operands, and a block of the op alone. Out: a `section` of so many
chunks that what one takes inside is little beside the result, whatever the data are; or None where
the call is small, or no axis is free.

    y = torch.cumprod(x, 1)    →    y = section(x, 1) {chunks=40, cuts=(Cut(0), None), joins=(0,)}
      x: [2000, 5000]                 block(x, dim): yield(torch.cumprod(x, dim))

Which axes are free is known by `torch_rules`. A gradient of a gradient is PyTorch's, as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.ir.core import Block, Op, Value
from lowtide.pipeline.budget.cut import Cut
from lowtide.pipeline.budget.section import SECTION
from lowtide.pipeline.budget.torch_rules import Dependent, by_rule, name_of, rule_of

_MOST: Final = 128  # pieces; of large operands they are larger, for many threads to share
# Bytes of the first operand in a piece, beside that, without gradients and with them; None: all.
# PyTorch looks for zeros in what was multiplied, and for how large each matrix of a batch is, whose
# gradient is the exponential of a matrix of four times the bytes.
_PIECES: Final[Mapping[str, tuple[int | None, int]]] = {
    "cumprod": (None, 1 << 20),
    "matrix_exp": (1 << 19, 1 << 17),
}


def may_be_cut(op: Op) -> bool:
    """Is it such a call?"""
    return op.name == "call_torch" and name_of(op) in _PIECES


def as_section(op: Op, env: Mapping[Value, Any], block: Block) -> Op | None:
    """See the module's text."""
    values = [env[v] for v in op.operands]
    x = values[0]
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_cuda:
        return None
    most_bytes = _PIECES[name_of(op)][torch.is_grad_enabled() and x.requires_grad]
    if most_bytes is None:
        return None
    most_bytes += x.nbytes // _MOST
    if x.nbytes <= most_bytes:
        return None
    count = -(-x.nbytes // most_bytes)
    free = _free_axes(op, values)
    lead = _leading(x, free)
    extents = {d: x.shape[d] for d in free} | ({0: x.shape[:lead].numel()} if lead else {})
    dim = max(extents, key=lambda d: min(extents[d], count), default=0)  # the outermost of these
    if extents.get(dim, 1) < 2:
        return None
    how: dict[str, Any] = {
        "chunks": min(count, extents[dim]),
        "cuts": (Cut(dim), *(None for _ in values[1:])),
        "joins": (free[dim],),
    }
    if lead > 1 and dim == 0:
        how["flat"] = lead
    return Op(
        name=SECTION,
        operands=op.operands,
        attrs=how,
        results=op.results,
        blocks=[block],
        loc=op.loc,
    )


def _free_axes(op: Op, values: Sequence[Any]) -> dict[int, int]:
    """Dims of the first operand, and where they are in the result."""
    rule, x = rule_of(op, values), values[0]
    found: dict[int, int] = {}
    for dim in range(x.dim()):
        with contextlib.suppress(Dependent):
            assert rule is not None
            found[dim] = by_rule(rule, op, values, [x], {id(x): dim})[id(x)]
    return found


def _leading(x: torch.Tensor, free: Container[int]) -> int:
    """How many of its first dims are free, and one in memory: matrices of a part of such a batch
    PyTorch takes only where they lie side by side."""
    lead = 0
    while lead in free:
        if lead and x.stride(lead - 1) != x.stride(lead) * x.shape[lead]:
            break
        lead += 1
    return lead
