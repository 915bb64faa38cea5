"""Runs the op `section`: a part of a program in chunks of an axis, or of a loop's steps.

In: the op, the values of its operands, and functions that run its blocks. Out: its results.

    y = section(x) {chunks=2}        y = cat([block(x[: n // 2]), block(x[n // 2 :])])

If gradients are recorded, only the operands are saved. The backward pass recomputes each chunk,
with the same random numbers, and then its gradient (as in Chen et al., "Training Deep Nets with
Sublinear Memory Cost"). Chunks whose values fit into the budget are not recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final, cast

import torch

from lowtide.execute.autocast import Autocast
from lowtide.execute.chunks import Chunks, Tensor, carries_gradient
from lowtide.execute.generators import Generators
from lowtide.execute.loop_chunks import LoopChunks
from lowtide.ir.core import Op
from lowtide.ir.structured import RunBlock
from lowtide.memory import watching
from lowtide.memory.ledger import WATCHED
from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.runtime import ownership
from lowtide.torch_private import torch_state
from lowtide.torch_private.autograd import keeps_graph
from lowtide.torch_private.tensors import is_view, storage_of

SECTION: Final = "section"
_CUT_SHORT: Final = (
    "lowtide: a backward pass that was interrupted has overwritten tensors that this one needs; "
    "call the function again, or pass retain_graph=True to the first backward()"
)


def run_section(
    op: Op, values: list[Any], runs: Sequence[RunBlock], shown: int | None = None
) -> list[Any]:
    """Return the results of the op; see the module's text. `runs`: functions that run its blocks.
    `shown`: number of chunks that a dry run runs."""
    records = torch.is_grad_enabled() and any(map(carries_gradient, values))
    section = (LoopChunks if "carried" in op.attrs else Chunks)(op, runs, shown)
    if records:
        ownership.prepare()
        return list(_Recomputed.apply(section, *values))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return section.forward(values)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, section: Chunks, *values: Any) -> tuple[Any, ...]:
        ctx.section = section
        attrs = section.attrs
        counters = set(attrs.counters)  # written later, which PyTorch forbids for saved tensors
        ctx.others = [
            v if k in counters or not isinstance(v, Tensor) else None for k, v in enumerate(values)
        ]
        ctx.random = Generators.of(values)
        ctx.autocast = Autocast.now()
        ctx.rules = ownership.rules()
        ctx.set_materialize_grads(False)
        ctx.is_spent = False  # whether a backward pass has begun to overwrite saved tensors
        section.keeps = True
        section.carrying = [carries_gradient(v) for v in values]
        given = {storage_of(v) for v in values if isinstance(v, Tensor)}
        with torch.no_grad():
            if section.is_unread:
                results = section.stand_ins(values)
            else:
                results = section.forward([_detached(v) for v in values])
                results = [_result(r, given) for r in results]
        updated = set(attrs.updated)
        tensors = [
            v if isinstance(v, Tensor) and k not in counters and k not in updated else None
            for k, v in enumerate(values)
        ]
        ctx.save_for_backward(*tensors, *section.saved())
        rows = zip(results, section.sources, strict=True)
        fixed = [r for r, s in rows if not any(section.carrying[k] for k in s)]
        fixed += [r for r in results if isinstance(r, Tensor) and not _may_have_gradient(r)]
        ctx.mark_non_differentiable(*(r for r in fixed if isinstance(r, Tensor)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.is_spent:
            raise RuntimeError(_CUT_SHORT)
        is_watched = ctx.rules.is_rehearsal and WATCHED in ctx.metadata
        free = ownership.all_alone_in_backward(cotangents, ctx.rules, is_watched)
        saved = cast("Sequence[Any]", ctx.saved_tensors)
        spent = () if keeps_graph() else ownership.all_alone_as_saved(saved, ctx.rules)
        section, others = cast("Chunks", ctx.section), cast("list[Any]", ctx.others)
        count = len(others)
        values = [x if x is not None else o for x, o in zip(saved[:count], others, strict=True)]
        wanted = [bool(n) for n in ctx.needs_input_grad[1:]]
        random, casts = ctx.random.restored(values), ctx.autocast.restored()
        with (
            random,
            casts,
            watching.aside(),
            ownership.under(ctx.rules),  # of the forward pass, such as a dry run's
        ):
            if torch.is_grad_enabled() or torch_state.in_transform(cotangents):
                return None, *section.differentiable(values, wanted, cotangents)
            ctx.is_spent = bool(spent)
            found = section.gradients(values, saved[count:], wanted, cotangents, free, spent)
            return None, *found


hide_with_callees(_Recomputed.backward)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _result(value: Any, given: Set[int]) -> Any:
    """Return a result. A view of the section's own memory becomes a plain tensor, which may be
    changed in place; a view of an operand stays one, which PyTorch refuses to change."""
    if not isinstance(value, Tensor):
        return value
    if storage_of(value) in given:
        return value.view_as(value)
    return value.detach() if is_view(value) else value


def _may_have_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
