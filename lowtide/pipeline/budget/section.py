"""A section: a run of ops that is done in chunks, and in training again in the backward pass.

In: an op `section`, the values of its operands, and what runs its block. Out: its results.

    %y = section(%x, %w) {chunks=4, cuts=(0, None), joins=(0,)}
      block(%a, %b):
        ...                     runs for x[0:k] and w, for x[k:2k] and w, …
        yield(%c)               written side by side, along dim 0, into y

`cuts`: the dim along which each operand is cut, None if each chunk needs the whole; `joins`: the
dim along which each result is joined, None for what is the same in all chunks.

Where gradients are recorded only the operands are kept: the backward pass runs a chunk again, with
the random numbers that it had, and then its gradient (recomputation as in Chen et al., "Training
Deep Nets with Sublinear Memory Cost").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import torch

from lowtide.ir.core import Op

Tensor = torch.Tensor
RunBlock = Callable[[list[Any]], list[Any]]  # block arguments → operands of its terminator
Dims = tuple[int | None, ...]
SECTION: Final = "section"


def run_section(op: Op, values: list[Any], run: RunBlock, at_most: int | None = None) -> list[Any]:
    """See the module's text. `at_most`: chunks that are really run, in a rehearsal."""
    section = _Section(op, run, at_most)
    if torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values):
        return list(_Recomputed.apply(section, *values))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return section.forward(values)


class _Section:
    def __init__(self, op: Op, run: RunBlock, at_most: int | None) -> None:
        self.run = run
        self.chunks = cast("int", op.attrs["chunks"])
        self.cuts = cast("Dims", op.attrs["cuts"])
        self.joins = cast("Dims", op.attrs["joins"])
        self.at_most = at_most

    def forward(self, values: list[Any]) -> list[Any]:
        """The results, chunk by chunk; `values` is used up where there is only one."""
        if self.chunks == 1:
            return self.run(values)
        results: list[Any] = []
        for start, size, extent in self.spans(values):
            part = self.run([narrowed(v, d, start, size) for v, d in self.each(values)])
            if not results:
                results = [_room(r, d, extent) for r, d in zip(part, self.joins, strict=True)]
            for whole, r, d in zip(results, part, self.joins, strict=True):
                if d is not None:
                    whole.narrow(d, start, size).copy_(r)
        return results

    def spans(self, values: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
        """(start, size, extent) of each chunk along its axis; sizes differ by one at most."""
        extent = next((v.shape[d] for v, d in self.each(values) if d is not None), 1)
        count = min(self.chunks, extent)
        for k in range(count if self.at_most is None else min(count, self.at_most)):
            start = k * extent // count
            yield start, (k + 1) * extent // count - start, extent

    def each(self, values: Sequence[Any]) -> Iterator[tuple[Any, int | None]]:
        """Each operand with its dim."""
        return zip(values, self.cuts, strict=True)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, section: _Section, *values: Any) -> tuple[Any, ...]:
        ctx.section = section
        ctx.others = [None if isinstance(v, Tensor) else v for v in values]
        ctx.save_for_backward(*(v if isinstance(v, Tensor) else None for v in values))
        ctx.random = torch.get_rng_state()
        ctx.set_materialize_grads(False)
        with torch.no_grad():
            results = section.forward([_detached(v) for v in values])
        fixed = [r for r in results if isinstance(r, Tensor) and not r.is_floating_point()]
        ctx.mark_non_differentiable(*fixed)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        kept = cast("Sequence[Tensor | None]", ctx.saved_tensors)
        values = [x if x is not None else o for x, o in zip(kept, ctx.others, strict=True)]
        wanted = [bool(n) for n in ctx.needs_input_grad[1:]]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random)
        try:
            if torch.is_grad_enabled():
                return None, *_differentiable(ctx.section, values, wanted, cotangents)
            return None, *_in_chunks(ctx.section, values, wanted, cotangents)
        finally:
            torch.set_rng_state(now)


def _in_chunks(
    section: _Section,
    values: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of the operands: of one that is cut part by part, of a whole one as a sum."""
    gradients: list[Tensor | None] = [None] * len(values)
    for start, size, _ in section.spans(values):
        parts = [narrowed(v, d, start, size) for v, d in section.each(values)]
        given = [
            None if c is None else narrowed(c, d, start, size)
            for c, d in zip(cotangents, section.joins, strict=True)
        ]
        for k, g in enumerate(_chunk_gradients(section, parts, wanted, given)):
            if g is None:
                continue
            dim = section.cuts[k]
            if dim is None or section.chunks == 1:
                gradients[k] = g if gradients[k] is None else gradients[k].add_(g)  # pyright: ignore[reportOptionalMemberAccess]
                continue
            if gradients[k] is None:
                gradients[k] = torch.zeros_like(values[k])
            cast("Tensor", gradients[k]).narrow(dim, start, size).copy_(g)
    return gradients


def _chunk_gradients(
    section: _Section,
    parts: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    starts = [
        p.detach().requires_grad_(w) if isinstance(p, Tensor) else p
        for p, w in zip(parts, wanted, strict=True)
    ]
    with torch.enable_grad():
        results = section.run(list(starts))
    return _gradients(results, starts, wanted, cotangents, False)


def _differentiable(
    section: _Section,
    values: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """As one chunk, so that the gradients can be differentiated."""
    starts = [v.view_as(v) if isinstance(v, Tensor) else v for v in values]
    results = section.run(list(starts))
    return _gradients(results, starts, wanted, cotangents, True)


def _gradients(
    results: Sequence[Any],
    starts: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    again: bool,
) -> list[Tensor | None]:
    rows = [
        (r, c)
        for r, c in zip(results, cotangents, strict=True)
        if c is not None and isinstance(r, Tensor) and r.requires_grad
    ]
    chosen = [s for s, w in zip(starts, wanted, strict=True) if w]
    if not rows or not chosen:
        return [None] * len(starts)
    outputs, given = [r for r, _ in rows], [c for _, c in rows]
    del results
    found = iter(torch.autograd.grad(outputs, chosen, given, allow_unused=True, create_graph=again))
    return [next(found) if w else None for w in wanted]


def narrowed(value: Any, dim: int | None, start: int, size: int) -> Any:
    """The part of a value that a chunk sees."""
    return value if dim is None else value.narrow(dim, start, size)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _room(part: Any, dim: int | None, extent: int) -> Any:
    """Memory for all chunks of a result, its dims in the order in which the first one has them."""
    if dim is None:
        return part
    order = sorted(range(part.dim()), key=lambda d: (-part.stride(d), d))
    shape = [extent if d == dim else part.shape[d] for d in order]
    whole = torch.empty(shape, dtype=part.dtype, device=part.device)
    return whole.permute([order.index(d) for d in range(part.dim())])
