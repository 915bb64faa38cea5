"""Runs a sequence of ops in chunks of an axis along which its results are independent.

In: an op `section`, the values of its operands, functions that run its blocks. Out: its results,
and in the backward pass the gradients of its operands, chunk by chunk.

    %y = section(%x, %w) {chunks=4, cuts=(Cut(dim=0), None), joins=(0,)}
      block(%a, %b):
        ...                     runs for x[0:k] and w, for x[k:2k] and w, …
        yield(%c)               joined along dim 0 into y

`SectionAttrs` describes the attributes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lowtide.execute.cut import ADDED, Form, SectionAttrs, Span, form_of, order_of
from lowtide.execute.operand_gradients import Gradients
from lowtide.ir.core import Op
from lowtide.ir.structured import RunBlock
from lowtide.torch_private import torch_state

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Recorded:
    """A chunk whose run autograd recorded: the leaves of its graph, and the roots by result."""

    starts: list[Any]
    ends: list[GradientEdge | None]


class Chunks:
    """See the module's text."""

    def __init__(self, op: Op, runs: Sequence[RunBlock], shown: int | None) -> None:
        """`shown`: run only this number of chunks, in a dry run; they stand for all."""
        self.attrs = SectionAttrs(**cast("dict[str, Any]", op.attrs))
        self.run = runs[0]
        self.run_repeatable = runs[1 if self.attrs.recomputes_second else 0]
        self.run_with_saved = runs[-1]
        self.results = len(op.results)
        everything = tuple(range(len(op.operands)))
        self.sources = self.attrs.sources or (everything,) * len(op.results)
        # A block that overwrites tensors that PyTorch saves in it saves copies.
        self.saving = _copies_saved if self.attrs.overwrites else contextlib.nullcontext
        self.shown = shown
        self.keeps = False  # whether there will be a backward pass
        self.carrying: Sequence[bool] = ()  # if so, which operands carry gradients
        self._recorded: dict[int, Recorded] = {}  # by the chunk's start
        self._products: dict[int, list[Tensor]] = {}  # by the chunk's start

    @property
    def is_unread(self) -> bool:
        """Return whether nothing reads the values of the results."""
        return self.attrs.unread is not None and any(self.carrying)

    def stand_ins(self, values: Sequence[Any]) -> list[Any]:
        """Return stand-ins for the results if only their graph is used: tensors without memory, and
        values that are not tensors unchanged."""
        device = next(v.device for v in values if isinstance(v, Tensor))
        return [
            f.stand_in(device) if isinstance(f, Form) else f.value for f in self.attrs.unread or ()
        ]

    def forward(self, values: list[Any]) -> list[Any]:
        """Return the results. `values` is consumed if there is only one chunk."""
        if self.attrs.chunks == 1:
            return self._made(values, Span(0, 1, 1))
        results: list[Any] = []
        for span in self.spans(values):
            parts = self.parts(values, span)
            records = self.keeps and span.is_kept
            made = self._record(parts, span) if records else self._made(parts, span)
            self.join(results, made, self.attrs.joins, span)
            del parts, made  # free them before the next chunk runs
        return results

    def _made(self, parts: list[Any], span: Span) -> list[Any]:
        """Return the results of a chunk that the backward pass recomputes; keeps its saved
        products."""
        made = self.run(parts)
        products = made[self.results :]
        if self.keeps and products:
            unseen = [torch.empty_like(x) for _ in range(span.unseen) for x in products]
            self._products[span.start] = products + unseen
        return made[: self.results]

    def _record(self, parts: Sequence[Any], span: Span) -> list[Any]:
        """Return the results of a chunk that is not recomputed."""
        starts = started(parts, self.carrying)
        with torch.enable_grad():
            results = self.run(list(starts))[: self.results]
        self._recorded[span.start] = Recorded(starts, _ends(results))
        return [r.detach() if isinstance(r, Tensor) else r for r in results]

    def saved(self) -> list[Tensor]:
        """Return what the backward pass needs besides the operands."""
        return []

    def gradients(
        self,
        values: Sequence[Any],
        saved: Sequence[Tensor],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
        free: Sequence[int] = (),
        spent: Sequence[int] = (),
    ) -> list[Tensor | None]:
        """Return the gradients of the operands: joined for an operand that is cut, summed for a
        whole one. `free`, `spent`: cotangents and operands without other uses, whose memory may be
        reused."""
        del saved
        reused = self._reused_memory(values, wanted, cotangents, free, spent)
        found = Gradients(values, reused, cotangents)
        for span in reversed(list(self.spans(values))):
            given = self.cotangents(cotangents, span)
            known = self._recorded.pop(span.start, None)
            if known is not None:
                rows = gradients_of(known.ends, known.starts, wanted, given, create_graph=False)
                del known
            else:
                products = self._products.pop(span.start, [])
                parts = self.parts(values, span)
                rows = self.chunk_gradients(parts, wanted, given, products)
            found.add(rows, self.attrs.cuts, span)
            del rows  # free them before the next chunk runs
        return found.rows

    def _reused_memory(
        self,
        values: Sequence[Any],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
        free: Sequence[int],
        spent: Sequence[int],
    ) -> dict[int, Tensor]:
        """Return by operand the tensor whose memory its gradient may take: a cotangent of the same
        layout, or the operand itself. Only operands that are cut have one, for a chunk reads its
        part of that tensor before it writes there."""
        found: dict[int, Tensor] = {}
        left, extent = list(free) if self.attrs.chunks > 1 else [], self.extent(values)
        for k, (v, cut, is_wanted) in enumerate(zip(values, self.attrs.cuts, wanted, strict=True)):
            if not is_wanted or cut is None or not cut.parts_all(v, extent):
                continue
            for j in left:
                c = cotangents[j]
                if c is not None and self.attrs.joins[j] == cut.dim and _have_equal_layouts(c, v):
                    found[k] = c
                    left.remove(j)
                    break
            else:
                if self.attrs.chunks > 1 and k in spent:
                    found[k] = v
        return found

    def differentiable(
        self, values: Sequence[Any], wanted: Sequence[bool], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run everything as one chunk, so that the gradients are differentiable and function
        transforms work."""
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            starts = [v.view_as(v) if isinstance(v, Tensor) else v for v in values]
            results = self.run_repeatable(list(starts))[: self.results]
        return gradients_of(results, starts, wanted, cotangents, create_graph=graph)

    def chunk_gradients(
        self,
        parts: Sequence[Any],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
        products: list[Tensor] | None = None,
    ) -> list[Tensor | None]:
        """Recompute one chunk and run its backward pass. `products`: saved products of this chunk;
        those that are used are removed."""
        starts = started(parts, wanted)
        given, run = list(starts), self.run_repeatable
        if products:
            given += products[: self.attrs.products]
            del products[: self.attrs.products]
            run = self.run_with_saved
        elif self.attrs.end is not None and (g := cotangents[self.attrs.end]) is not None:
            given.append(form_of(g).stand_in(g.device))
            run = self.run_with_saved
        with torch.enable_grad(), self.saving():
            ends = _ends(run(given)[: self.results])
        return gradients_of(ends, starts, wanted, cotangents, create_graph=False)

    def extent(self, values: Sequence[Any]) -> int:
        """Return the size of the axis."""
        cut = zip(values, self.attrs.cuts, strict=True)
        return next((v.shape[c.dim] for v, c in cut if c is not None and v is not None), 1)

    def spans(self, values: Sequence[Any]) -> Iterator[Span]:
        """Yield the chunks. Sizes differ by one at most and the larger ones come first, so that no
        chunk needs more memory than the first two, by which the peak is predicted."""
        extent = self.extent(values)
        count = min(self.attrs.chunks, extent)
        kept = count - min(self.attrs.kept, count - 1)
        shown = kept if self.shown is None else min(self.shown, kept)
        size, larger = divmod(extent, count)
        for k in (*range(shown), *range(kept, count)):
            start = k * size + min(k, larger)
            # A dry run counts the chunks that it leaves out at the first: its backward runs last.
            unseen = 0 if k else kept - shown
            yield Span(start, size + (k < larger), extent, k >= kept, unseen)

    def parts(self, values: Sequence[Any], span: Span) -> list[Any]:
        """Return each operand's part for a chunk; None for an updated one in the backward pass."""
        return [
            v if c is None or v is None else c.of(v, span.start, span.size)
            for v, c in zip(values, self.attrs.cuts, strict=True)
        ]

    def cotangents(self, whole: Sequence[Tensor | None], span: Span) -> list[Tensor | None]:
        """Return a chunk's part of each cotangent."""
        return [
            None if c is None else _given(c, d, span)
            for c, d in zip(whole, self.attrs.joins, strict=True)
        ]

    def join(
        self, results: list[Any], part: Sequence[Any], joins: Sequence[int | None], span: Span
    ) -> None:
        """Write a chunk's results into the joined ones. `results` is empty at the first chunk."""
        if not results:
            rows = zip(part, joins, self._orders(part, joins), strict=True)
            results += [_allocated(r, d, span, order) for r, d, order in rows]
        for k, (whole, r, d) in enumerate(zip(results, part, joins, strict=True)):
            if d == ADDED and span.start:
                results[k] = _sum(whole, r)
            elif d is not None and d != ADDED:
                _joined(whole, d, span).copy_(r)

    def _orders(
        self, part: Sequence[Any], joins: Sequence[int | None]
    ) -> Sequence[Sequence[int] | None]:
        """Return the order of dims of each result; None if the first chunk shows it."""
        orders = self.attrs.orders or [
            range(r.dim()) if isinstance(r, Tensor) else None for r in part
        ]
        rows = zip(part, joins, orders, strict=True)
        return [
            order
            if order is not None and d not in (None, ADDED) and _fits_any_order(r, d, order)
            else None
            for r, d, order in rows
        ]


def _copies_saved() -> contextlib.AbstractContextManager[None]:
    """Return a context in which saved tensors are copies."""
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x)


def started(parts: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return the operands of a chunk as leaves of a new graph."""
    starts = [
        p.detach().requires_grad_(w) if isinstance(p, Tensor) else p
        for p, w in zip(parts, wanted, strict=True)
    ]
    if not torch_state.autocast_on():
        return starts
    with torch.enable_grad():  # autocast caches the casts of leaves, here of all chunks
        return [s.view_as(s) if carries_gradient(s) else s for s in starts]


def _ends(results: Sequence[Any]) -> list[GradientEdge | None]:
    return [get_gradient_edge(r) if carries_gradient(r) else None for r in results]


def carries_gradient(value: Any) -> bool:
    """Return whether it is a tensor with a graph."""
    return isinstance(value, Tensor) and value.requires_grad


def gradients_of(
    results: Sequence[Any],
    starts: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """Return the gradient of each wanted operand. `create_graph`: make them differentiable.
    `results`: tensors, or the roots of their graph."""
    rows = [
        (r, c)
        for r, c in zip(results, cotangents, strict=True)
        if c is not None and (isinstance(r, GradientEdge) or carries_gradient(r))
    ]
    chosen = [s for s, w in zip(starts, wanted, strict=True) if w]
    if not rows or not chosen:
        return [None] * len(starts)
    outputs, given = [r for r, _ in rows], [c for _, c in rows]
    del results
    found = iter(
        torch.autograd.grad(outputs, chosen, given, allow_unused=True, create_graph=create_graph)
    )
    return [next(found) if w else None for w in wanted]


def _have_equal_layouts(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _fits_any_order(part: Tensor, dim: int, order: Sequence[int]) -> bool:
    """Return whether the tensor has one element along `dim`, and otherwise this order of dims."""
    known = [d for d in order_of(part) if part.shape[d] > 1]
    return part.shape[dim] == 1 and known == [d for d in order if part.shape[d] > 1]


def _given(cotangent: Tensor, dim: int | None, span: Span) -> Tensor | None:
    """Return a chunk's part of a cotangent. If all chunks share the result, only the first gets
    it."""
    if dim == ADDED:
        return cotangent
    if dim is None:
        return None if span.start else cotangent
    return _joined(cotangent, dim, span)


def _joined(whole: Tensor, dim: int, span: Span) -> Tensor:
    """Return the part of a joined result that a chunk writes. It is a multiple of the chunk's size:
    twice that, if the section is a `cat` that makes two rows of each."""
    times = whole.shape[dim] // span.extent
    return whole.narrow(dim, span.start * times, span.size * times)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two results, which may differ in length, as those of `bincount` do: the
    shorter one counts as padded with zeros. Overwrites the longer one."""
    long, short = (a, b) if a.shape[0] >= b.shape[0] else (b, a)
    long[: short.shape[0]] += short
    return long


def _allocated(part: Any, dim: int | None, span: Span, order: Sequence[int] | None) -> Any:
    """Allocate a joined result, with this order of dims or that of the first chunk."""
    if dim is None or dim == ADDED:
        return part
    order = order or order_of(part)
    extent = span.extent * (part.shape[dim] // span.size)
    shape = [extent if d == dim else part.shape[d] for d in order]
    whole = torch.empty(shape, dtype=part.dtype, device=part.device)
    return whole.permute([order.index(d) for d in range(part.dim())])
