"""A run of ops done in chunks: the parts of an axis along which its results are independent.

In: an op `section`, the values of its operands, what runs its block. Out: its results, and in the
backward pass the gradients of its operands, chunk by chunk.

    %y = section(%x, %w) {chunks=4, cuts=(Cut(dim=0), None), joins=(0,)}
      block(%a, %b):
        ...                     runs for x[0:k] and w, for x[k:2k] and w, …
        yield(%c)               written side by side, along dim 0, into y

`cuts`: where each operand is cut, None if each chunk needs the whole; `joins`: the dim along which
each result is joined, None for what is the same in all chunks. `sources`: for each result, the
operands that a graph of it may come from, all if it is absent. `kept`: so many chunks, the last
ones, keep what their gradients read, and are not run again. The backward pass takes them first, so
that what they keep is gone when the others are computed again. `products`: so many values, which
the first block yields after the results, are kept of each of the other chunks; the last block takes
them as its last arguments (see `recalled`). `formats`: how the chunks lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lowtide.ir.core import Op
from lowtide.pipeline.budget.formats import Formats, lying_as, order_of, turned_at

Tensor = torch.Tensor
RunBlock = Callable[[list[Any]], list[Any]]  # block arguments → operands of its terminator


@dataclass(frozen=True, slots=True)
class Cut:
    """Element `first + step * k` along `dim` belongs to point k of the axis; step is 1 or -1."""

    dim: int
    first: int = 0
    step: int = 1

    def of(self, x: Tensor, start: int, size: int) -> Tensor:
        """The elements of points [start, start + size), in the order of memory."""
        low = self.first + start if self.step > 0 else self.first - start - size + 1
        return x.narrow(self.dim, low, size)


@dataclass(frozen=True, slots=True)
class Span:
    """Points [start, start + size) of an axis of `extent` points; `is_kept`: see the module;
    `unseen`: chunks like this one that a rehearsal leaves out."""

    start: int
    size: int
    extent: int
    is_kept: bool = False
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A chunk that ran with gradients: where it began, and the ends of its graph by result."""

    starts: list[Any]
    ends: list[GradientEdge | None]


class Chunks:
    """See the module's text."""

    def __init__(self, op: Op, runs: Sequence[RunBlock], at_most: int | None) -> None:
        self.run = runs[0]
        self.run_again = runs[1 if "updated" in op.attrs else 0]
        self.run_recalled = runs[-1]
        self.results = len(op.results)
        self.products = cast("int", op.attrs.get("products", 0))
        self.chunks = cast("int", op.attrs["chunks"])
        self.kept_chunks = cast("int", op.attrs.get("kept", 0))
        self.cuts = cast("Sequence[Cut | None]", op.attrs["cuts"])
        self.joins = cast("Sequence[int | None]", op.attrs["joins"])
        everything = tuple(range(len(op.operands)))
        self.sources = cast(
            "Sequence[Sequence[int]]", op.attrs.get("sources", (everything,) * len(op.results))
        )
        self.updated = cast("Sequence[int]", op.attrs.get("updated", ()))
        self.formats = cast("Formats | None", op.attrs.get("formats"))
        self.at_most = at_most
        self.keeps = False  # whether there will be a backward pass
        self.carrying: Sequence[bool] = ()  # if so, which operands carry gradients
        self._recorded: dict[int, Recorded] = {}  # by the chunk's start
        self._products: dict[int, list[Tensor]] = {}  # the same

    def forward(self, values: list[Any]) -> list[Any]:
        """The results; `values` is used up where there is only one chunk."""
        if self.chunks == 1:
            return self._made(values, Span(0, 1, 1))
        results: list[Any] = []
        for span in self.spans(values):
            parts = self.parts(values, span)
            records = self.keeps and span.is_kept
            made = self._record(parts, span) if records else self._made(parts, span)
            self.join(results, made, self.joins, span)
        return results

    def _made(self, parts: list[Any], span: Span) -> list[Any]:
        """The results of a chunk that is run again, if at all; keeps those of products."""
        made = self.run(parts)
        products = made[self.results :]
        if self.keeps and products:
            unseen = [torch.empty_like(x) for _ in range(span.unseen) for x in products]
            self._products[span.start] = products + unseen
        return made[: self.results]

    def _record(self, parts: Sequence[Any], span: Span) -> list[Any]:
        """The results of a chunk that is not run again."""
        starts = started(parts, self.carrying)
        with torch.enable_grad():
            results = self.run(list(starts))[: self.results]
        self._recorded[span.start] = Recorded(starts, _ends(results))
        return [r.detach() if isinstance(r, Tensor) else r for r in results]

    def kept(self) -> list[Tensor]:
        """What the backward pass needs besides the operands."""
        return []

    def gradients(
        self,
        values: Sequence[Any],
        kept: Sequence[Tensor],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Gradients of the operands: of one that is cut part by part, of a whole one as a sum."""
        del kept
        found = Gradients(values, () if self.formats is None else self.formats.operands)
        for span in reversed(list(self.spans(values))):
            given = self.cotangents(cotangents, span)
            known = self._recorded.pop(span.start, None)
            if known is not None:
                rows = gradients_of(known.ends, known.starts, wanted, given, again=False)
                del known
            else:
                products = self._products.pop(span.start, [])
                rows = self.chunk_gradients(self.parts(values, span), wanted, given, products)
            found.add(rows, self.cuts, span)
        return found.rows

    def differentiable(
        self, values: Sequence[Any], wanted: Sequence[bool], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """As one chunk, so that the gradients can be differentiated, or taken under a transform."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            starts = [v.view_as(v) if isinstance(v, Tensor) else v for v in values]
            results = self.run_again(list(starts))[: self.results]
        return gradients_of(results, starts, wanted, cotangents, again=again)

    def chunk_gradients(
        self,
        parts: Sequence[Any],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
        products: list[Tensor] | None = None,
    ) -> list[Tensor | None]:
        """Runs one chunk again, and back. `products`: what was kept of it, if anything was; what is
        used of them is taken out."""
        starts = started(parts, wanted)
        given, run = list(starts), self.run_again
        if products:
            given += products[: self.products]
            del products[: self.products]
            run = self.run_recalled
        with torch.enable_grad():
            ends = _ends(run(given)[: self.results])  # the results may go
        return gradients_of(ends, starts, wanted, cotangents, again=False)

    def extent(self, values: Sequence[Any]) -> int:
        """How many points the axis has."""
        cut = zip(values, self.cuts, strict=True)
        return next((v.shape[c.dim] for v, c in cut if c is not None), 1)

    def spans(self, values: Sequence[Any]) -> Iterator[Span]:
        """Each chunk; sizes differ by one at most, and the first is as large as any."""
        extent = self.extent(values)
        count = min(self.chunks, extent)
        kept = count - min(self.kept_chunks, count - 1)
        shown = kept if self.at_most is None else min(self.at_most, kept)
        for k in (*range(shown), *range(kept, count)):
            start, stop = -(-k * extent // count), -(-(k + 1) * extent // count)
            unseen = kept - shown if k == shown - 1 else 0
            yield Span(start, stop - start, extent, k >= kept, unseen)

    def parts(self, values: Sequence[Any], span: Span) -> list[Any]:
        """What a chunk sees of each operand."""
        found = [
            v if c is None else c.of(v, span.start, span.size)
            for v, c in zip(values, self.cuts, strict=True)
        ]
        return found if self.formats is None else turned_at(self.formats.operands, found)

    def cotangents(self, whole: Sequence[Tensor | None], span: Span) -> list[Tensor | None]:
        """What a chunk gets of the cotangents of the results."""
        found = [
            None if c is None else _given(c, d, span)
            for c, d in zip(whole, self.joins, strict=True)
        ]
        return found if self.formats is None else turned_at(self.formats.results, found)

    def join(
        self, results: list[Any], part: Sequence[Any], joins: Sequence[int | None], span: Span
    ) -> None:
        """Writes the results of a chunk into those of all; `results` is empty at the first."""
        if not results:
            orders = (None,) * len(part) if self.formats is None else self.formats.orders
            rows = zip(part, joins, orders, strict=True)
            results += [_room(r, d, span, order) for r, d, order in rows]
        for whole, r, d in zip(results, part, joins, strict=True):
            if d is not None:
                _joined(whole, d, span).copy_(r)


class Gradients:
    """Gradients of operands, as sums over chunks. `turned`: operands whose parts lie in another
    format than these gradients."""

    def __init__(self, values: Sequence[Any], turned: Container[int] = ()) -> None:
        self.rows: list[Tensor | None] = [None] * len(values)
        self._turned = turned
        self._values = values
        self._own: set[int] = set()  # others may be a cotangent itself, or that of two operands

    def add(self, found: Sequence[Tensor | None], cuts: Sequence[Cut | None], span: Span) -> None:
        """What a chunk gives: a part of a gradient, or something for all of it."""
        for k, (g, cut) in enumerate(zip(found, cuts, strict=True)):
            if g is None:
                continue
            whole = self.rows[k]
            if whole is None and g.shape == self._values[k].shape:
                self.rows[k] = lying_as(g, self._values[k]) if k in self._turned else g
                continue
            if whole is None:
                whole = torch.zeros_like(self._values[k])
                self._own.add(k)
            if cut is not None:
                cut.of(whole, span.start, span.size).add_(g)
                self.rows[k] = whole
            else:
                self.rows[k] = whole.add_(g) if k in self._own else whole + g
                self._own.add(k)


def started(parts: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """The operands of a chunk as the beginnings of a graph of its own."""
    return [
        p.detach().requires_grad_(w) if isinstance(p, Tensor) else p
        for p, w in zip(parts, wanted, strict=True)
    ]


def _ends(results: Sequence[Any]) -> list[GradientEdge | None]:
    return [get_gradient_edge(r) if carries_gradient(r) else None for r in results]


def carries_gradient(value: Any) -> bool:
    """Is it a tensor with a graph behind it?"""
    return isinstance(value, Tensor) and value.requires_grad


def gradients_of(
    results: Sequence[Any],
    starts: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    *,
    again: bool,
) -> list[Tensor | None]:
    """The gradient of each operand that is wanted; `again`: with a graph of their own. `results`:
    tensors, or the ends of their graph."""
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
    found = iter(torch.autograd.grad(outputs, chosen, given, allow_unused=True, create_graph=again))
    return [next(found) if w else None for w in wanted]


def _given(cotangent: Tensor, dim: int | None, span: Span) -> Tensor | None:
    """What a chunk gets of it; of a result that is the same in all chunks, the first gets it."""
    if dim is None:
        return None if span.start else cotangent
    return _joined(cotangent, dim, span)


def _joined(whole: Tensor, dim: int, span: Span) -> Tensor:
    """The part of a result that a chunk makes: `cat` of two rows a point has twice its size."""
    times = whole.shape[dim] // span.extent
    return whole.narrow(dim, span.start * times, span.size * times)


def _room(part: Any, dim: int | None, span: Span, order: Sequence[int] | None) -> Any:
    """Memory for all chunks of a result, its dims in this order, or as the first one has them."""
    if dim is None:
        return part
    order = order or order_of(part)
    extent = span.extent * (part.shape[dim] // span.size)
    shape = [extent if d == dim else part.shape[d] for d in order]
    whole = torch.empty(shape, dtype=part.dtype, device=part.device)
    return whole.permute([order.index(d) for d in range(part.dim())])
