"""Chooses products whose results are saved although their run of ops is recomputed.

In: an `Outer`, a `Candidate`. Out: lists of values, the longest first. A list takes first the value
with the most operations per byte: a convolution at a low resolution takes as long as one at a high
resolution, and has a fraction of its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from lowtide.budget.outer import Outer, is_torch
from lowtide.execute.candidate import Candidate
from lowtide.execute.saved_products import Products
from lowtide.ir.core import Op, Value
from lowtide.ir.interpret import run_op
from lowtide.specialise.region_boundaries import static_reason
from lowtide.torch_private.tensors import storage_of

_SHARES: Final = (1.0, 0.5)  # of the operations whose results can be saved


@dataclass(frozen=True, slots=True)
class Choice:
    """Results of products, and their share of all operations of the run's products."""

    values: tuple[Value, ...]
    share: float


def worth_keeping(outer: Outer, run: Candidate) -> list[Choice]:
    """Return the choices, the longest first; none if nothing can be saved."""
    total = 0
    rows: list[tuple[float, int, Value]] = []
    held = {storage_of(x) for v in run.outputs for x in outer.tensors(v)}
    for pos in range(run.start, run.stop):
        op = outer.ops[pos]
        if not _is_left_to_pytorch(outer, op):
            continue
        found = _products(outer, op)
        total += sum(flops for _, flops in found)
        x = _only_product(found, outer.known[op.result])
        if x is None or outer.made_at.get(storage_of(x)) != pos or storage_of(x) in held:
            continue
        if storage_of(x) not in outer.written(outer.ops[pos + 1 : run.stop]):
            rows.append((found[0][1] / max(x.nbytes, 1), found[0][1], op.result))
    rows.sort(key=lambda row: -row[0])
    return _lists(rows, total)


def is_product(outer: Outer, op: Op) -> bool:
    """Return whether the op is exactly one PyTorch product."""
    if not _is_left_to_pytorch(outer, op):
        return False
    return _only_product(_products(outer, op), outer.known[op.result]) is not None


def _lists(rows: list[tuple[float, int, Value]], total: int) -> list[Choice]:
    most = sum(flops for _, flops, _ in rows)
    lists: list[Choice] = []
    for share in _SHARES:
        values: list[Value] = []
        flops = 0
        for _, count, value in rows:
            if flops < share * most:
                values.append(value)
                flops += count
        if values and (not lists or len(values) < len(lists[-1].values)):
            lists.append(Choice(tuple(values), flops / total))
    return lists


def _is_left_to_pytorch(outer: Outer, op: Op) -> bool:
    is_left = op.name == "call_torch" or bool(static_reason(op))  # of little work, too
    is_whole = is_torch(op) and len(op.results) == 1 and not op.blocks and is_left
    # Values that depend on data are not known.
    return is_whole and all(v in outer.known for v in (*op.operands, *op.results))


def _products(outer: Outer, op: Op) -> list[tuple[object, int]]:
    env = {v: outer.known[v] for v in op.operands}
    with torch.no_grad(), Products() as products:
        try:
            run_op(op, env)
        except Exception:  # it reads a number from the data
            return []
    return products.found


def _only_product(found: list[tuple[object, int]], result: object) -> torch.Tensor | None:
    """Return the result of the only product, unless the op's result is a view of it."""
    if len(found) != 1 or not isinstance(result, torch.Tensor):
        return None
    product, _ = found[0]
    is_same = isinstance(product, torch.Tensor) and product.shape == result.shape
    return result if is_same else None
