"""Runs a loop in chunks of steps, so that saved values exist for one chunk at a time.

In: an op `section`, the values of its operands (the number of steps, carried values, others), and a
function that runs its block. Out: its results: the last carried values, then the others.

    %h, %ys = section(%n, %h0, %x, %w) {chunks=4, carried=1,
                                        cuts=(None, None, Cut(dim=0), None), joins=(None, 0)}
      block(%first, %size, %h, %x, %w):      steps [first, first + size), with their part of x
        ...
        yield(%h', %ys)

The forward pass of training saves h at the start of each chunk, [chunks, *h], and the state of the
random generator. The backward pass recomputes the chunks from the last to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from lowtide.execute.chunks import Chunks, Tensor, gradients_of
from lowtide.execute.cut import Span
from lowtide.execute.generators import Generators
from lowtide.execute.operand_gradients import Gradients
from lowtide.ir.core import Op
from lowtide.ir.structured import RunBlock


class LoopChunks(Chunks):
    """See the module's text."""

    def __init__(self, op: Op, runs: Sequence[RunBlock], shown: int | None) -> None:
        super().__init__(op, runs, shown)
        count = self.attrs.carried or 0
        self.carried = slice(1, 1 + count)  # operands
        self.last = slice(0, count)  # results
        self._starts: list[Tensor] = []
        self._random: list[Generators] = []  # at the start of each chunk

    def extent(self, values: Sequence[Any]) -> int:
        """Return the number of steps."""
        return cast("int", values[0])

    def forward(self, values: list[Any]) -> list[Any]:
        """Return the results, computed chunk by chunk."""
        results: list[Any] = []
        joins = self.attrs.joins[self.last.stop :]
        carried: list[Any] = values[self.carried]
        for k, span in enumerate(self.spans(values)):
            if self.keeps:
                self._keep(k, carried, span)
                self._random[k] = Generators.of(values)
            found = self.run(self._given(values, carried, span))
            carried = found[self.last]
            self.join(results, found[self.last.stop :], joins, span)
            del found  # free it before the next chunk runs
        return [*carried, *results]

    def saved(self) -> list[Tensor]:
        """Return the values carried into each chunk except the first."""
        saved, self._starts = self._starts, []
        return saved

    def gradients(
        self,
        values: Sequence[Any],
        saved: Sequence[Tensor],
        wanted: Sequence[bool],
        cotangents: Sequence[Tensor | None],
        free: Sequence[int] = (),
        spent: Sequence[int] = (),
    ) -> list[Tensor | None]:
        """Return the gradients of the operands, computed from the last chunk to the first."""
        del free, spent
        found = Gradients(values, {}, cotangents)
        carried = list(cotangents[self.last])
        for k, span in reversed(list(enumerate(self.spans(values)))):
            start = [x[k - 1] for x in saved] if k else values[self.carried]
            needed = list(wanted)
            if k:
                needed[self.carried] = [x.is_floating_point() or x.is_complex() for x in start]
            given = [*carried, *self.cotangents(cotangents, span)[self.last.stop :]]
            self._random[k].set()
            parts = self._given(values, start, span)
            # The block begins with two numbers, the operands with one.
            rows = self.chunk_gradients(parts, [False, *needed], given)[1:]
            carried = rows[self.carried]
            if k:
                rows[self.carried] = [None] * len(carried)
            found.add(rows, self.attrs.cuts, span, carried)
            del rows, given, parts, start  # free them before the next chunk runs
        return found.rows

    def differentiable(
        self, values: Sequence[Any], wanted: Sequence[bool], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run everything as one chunk, see `Chunks`."""
        graph = torch.is_grad_enabled()
        steps = self.extent(values)
        with torch.enable_grad():
            starts = [v.view_as(v) if isinstance(v, Tensor) else v for v in values]
            given = self._given(starts, starts[self.carried], Span(0, steps, steps))
            results = self.run(given)
        return gradients_of(results, starts, wanted, cotangents, create_graph=graph)

    def _given(self, values: Sequence[Any], carried: Sequence[Any], span: Span) -> list[Any]:
        """Return the arguments of the block."""
        parts = self.parts(values, span)
        return [span.start, span.size, *carried, *parts[self.carried.stop :]]

    def _keep(self, k: int, carried: Sequence[Tensor], span: Span) -> None:
        if k == 0:
            count = min(self.attrs.chunks, span.extent)
            self._starts = [x.new_empty((count - 1, *x.shape)) for x in carried if count > 1]
            self._random = [Generators.of(carried) for _ in range(count)]
        for whole, x in zip(self._starts, carried, strict=True) if k else ():
            whole[k - 1].copy_(x)
