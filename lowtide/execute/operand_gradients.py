"""Assembles the gradients of a section's operands from those of its chunks.

In: for each chunk, the gradient of each operand's part. Out: a gradient for each operand.

    x cut along 0, chunks from the last      w whole
    x.grad[2k:3k] = …                        w.grad = …
    x.grad[k:2k] = …                         w.grad += …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from lowtide.execute.cut import Cut, Span
from lowtide.memory.layouts import is_packed
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor


class Gradients:
    """Gradients of operands, accumulated over chunks. `reused`: cotangents, by the operand whose
    gradient is written into their memory after the chunk has read its part. `cotangents`: all of
    them."""

    def __init__(
        self,
        values: Sequence[Any],
        reused: Mapping[int, Tensor],
        cotangents: Sequence[Tensor | None],
    ) -> None:
        self.rows: list[Tensor | None] = [None] * len(values)
        self._values = values
        self._reused = reused
        self._written = {storage_of(x) for x in self._reused.values()}
        self._own: set[int] = set()  # rows with memory of their own, which may be added to
        self._others = set(_storages([*values, *cotangents]))
        self._is_first = True

    def add(
        self,
        found: Sequence[Tensor | None],
        cuts: Sequence[Cut | None],
        span: Span,
        carried: Sequence[Tensor | None] = (),
    ) -> None:
        """Add a chunk's gradient: a part of it, or a term of the whole. `carried`: values that the
        chunk passes to the next one."""
        apart = [
            g.clone() if g is not None and storage_of(g) in self._written else g for g in found
        ]
        uses = Counter(_storages([*apart, *carried]))
        for k, (g, cut) in enumerate(zip(apart, cuts, strict=True)):
            if cut is not None:
                self._add_part(k, g, cut, span, uses)
            elif g is not None:
                self._add_whole(k, g, uses)
        self._is_first = False

    def _add_whole(self, k: int, g: Tensor, uses: Counter[int]) -> None:
        whole = self.rows[k]
        if whole is None:
            self.rows[k] = g
            if self._is_own(g, uses):
                self._own.add(k)
        elif k in self._own:
            whole.add_(g)
        else:
            self.rows[k] = whole + g
            self._own.add(k)

    def _is_own(self, g: Tensor, uses: Counter[int]) -> bool:
        """Return whether the tensor has no other reference, so that it may be added to in place."""
        if g.layout is not torch.strided or not is_packed(g):
            return False
        storage = storage_of(g)
        return uses[storage] == 1 and storage not in self._others

    def _add_part(self, k: int, g: Tensor | None, cut: Cut, span: Span, uses: Counter[int]) -> None:
        whole = self.rows[k]
        if whole is None:
            if g is None:
                return
            if g.shape == self._values[k].shape:
                self._add_whole(k, g, uses)
                return
            whole = self.rows[k] = self._allocated(k, cut, span)
        part = cut.of(whole, span.start, span.size)
        if cut.parts_all(whole, span.extent):
            part.copy_(g) if g is not None else part.zero_()
        elif g is not None:
            part.add_(g)

    def _allocated(self, k: int, cut: Cut, span: Span) -> Tensor:
        """Return memory for a gradient: zeros, or the memory of a cotangent that was read."""
        like, reused = self._values[k], self._reused.get(k)
        if reused is None or not self._is_first or not cut.parts_all(like, span.extent):
            return torch.zeros_like(like)
        return reused.data


def _storages(values: Iterable[Any]) -> list[int]:
    return [storage_of(x) for x in values if isinstance(x, Tensor) and x.layout is torch.strided]
