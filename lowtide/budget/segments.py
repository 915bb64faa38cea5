"""Finds runs of ops to recompute as a whole in the backward pass, where no axis can be cut.

In: an `Outer`. Out: `Candidate`s of one chunk, with the values that they make, save and return.

    a = relu(norm(conv(x)))       ┐ a segment: returns a, saves x
    b = relu(norm(conv(a)))       ┘
    c = up(pool(b))               ┐ another: saves b
    d = relu(norm(conv(c)))       ┘
    …                               the rest saves what its gradients read, as usual

`cheapest` chooses among them for a number of bytes. Running statistics and counters of batches are
written once, in the forward pass; the recomputed block does not write them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from lowtide.budget.effects import ObservedEffects
from lowtide.budget.independence import is_lowered
from lowtide.budget.outer import Outer
from lowtide.budget.products import is_product
from lowtide.execute.candidate import LEAST_BYTES, Candidate
from lowtide.ir.core import Op, Value, free_values
from lowtide.torch_private.tensors import storage_of


class Cutter:
    """See the module's text."""

    def __init__(self, effects: ObservedEffects) -> None:
        self.outer = outer = effects.outer
        self.effects = effects
        self.states = self._states()
        self.built_bytes = _built_bytes(outer)
        self.made_bytes = self.built_bytes  # less in sections that run in chunks
        self._held_at: dict[int, frozenset[int]] = {}
        self._held_by: dict[tuple[int, int], frozenset[int]] = {}
        self._known_farthest: dict[int, int] = {}
        self._candidates: dict[tuple[int, int], Candidate | None] = {}
        self.ends: list[int] = []  # possible ends of segments
        self.inside: set[int] = set()  # positions inside sections that run in chunks
        self.lasts: set[int] = set()  # the last op of each

    def set_chunked(self, chunks: Mapping[Candidate, int]) -> float:
        """Set the sections that run in chunks: no segment begins or ends inside them. Returns the
        bytes of all values."""
        starts = {pos: c.start for c in chunks for pos in range(c.start + 1, c.stop)}
        self.inside = set(starts)
        self.lasts = {c.stop - 1 for c in chunks}
        self.made_bytes = list(self.built_bytes)
        for c, count in chunks.items():
            made = sum(self.made_bytes[c.start : c.stop])
            inner = min(self.outer.inner_bytes(c), made)  # kernels may allocate less
            self.made_bytes[c.start : c.stop] = [0] * (c.stop - c.start)
            self.made_bytes[c.stop - 1] = made - inner + inner // count
        self.ends = sorted({starts.get(pos, pos) for pos in self._ends})
        return float(sum(self.made_bytes))

    def candidate(self, start: int, stop: int) -> Candidate | None:
        """Return the segment of these ops, None if there is none or it does not pay."""
        if start in self.inside or stop in self.inside or self._farthest(start) < stop:
            return None
        key = start, stop
        if key not in self._candidates:
            made_bytes = sum(self.outer.made_bytes[start:stop])
            self._candidates[key] = self._candidate(start, stop, made_bytes)
        return self._candidates[key]

    def cost(self, segments: Iterable[Candidate]) -> int:
        """Return the cost of recomputation, in bytes of results."""
        return sum(sum(self.built_bytes[c.start : c.stop]) for c in segments)

    def recomputed_bytes(self, start: int, stop: int) -> int:
        """Return the bytes that a recomputation allocates, without the results of a last part in
        chunks, which nothing reads then."""
        made = self.made_bytes[start:stop]
        while made and not made[-1]:
            made.pop()
        return sum(made[:-1]) if start + len(made) - 1 in self.lasts else sum(made)

    @functools.cached_property
    def _ends(self) -> list[int]:
        """Return where segments may end: before a product, whose gradient reads its operands
        anyway, and at the last of neighbouring positions with equal live bytes."""
        last = self.outer.last
        return [
            pos
            for pos in range(1, last + 1)
            if pos == last
            or is_product(self.outer, self.outer.ops[pos])
            or self.left_bytes(pos) != self.left_bytes(pos + 1)
        ]

    def live_bytes_at(self, pos: int) -> frozenset[int]:
        """Return the memory that is live at this position, without the arguments."""
        found = self._held_at.get(pos)
        if found is None:
            alive = {storage_of(x) for v in self.outer.live_at[pos] for x in self.outer.tensors(v)}
            found = self._held_at[pos] = frozenset(alive - self.outer.given)
        return found

    def initial_bytes_of(self, segment: Candidate) -> frozenset[int]:
        """Return the memory that the segment starts from, without the arguments."""
        key = segment.start, segment.stop
        found = self._held_by.get(key)
        if found is None:
            held = {storage_of(x) for v in segment.inputs for x in self.outer.tensors(v)}
            found = self._held_by[key] = frozenset(held - self.outer.given)
        return found

    def size_of(self, held: Iterable[int]) -> int:
        """Return the bytes of that memory."""
        return sum(self.outer.nbytes[s] for s in held)

    def _states(self) -> set[int]:
        """Return the memory of arguments that share it with no other, and have no gradient."""
        held = {storage_of(x) for x, _ in self.outer.pairs if self.effects.carries(x)}
        return self.outer.single - held

    def left_bytes(self, pos: int) -> int:
        """Return the bytes that are live at this position, without the arguments."""
        return self.size_of(self.live_bytes_at(pos))

    def _farthest(self, start: int) -> int:
        found = self._known_farthest.get(start)
        if found is None:
            found = self._known_farthest[start] = self._follow(start)
        return found

    def _follow(self, start: int) -> int:
        """Return how far a segment from here may extend: its ops are repeatable, and what they read
        is unchanged when they run again."""
        updated: set[int] = set()
        touched: set[int] = set()
        for pos in range(start, self.outer.last):
            op, effect = self.outer.ops[pos], self.effects.rows[pos]
            updates = {s for s in effect.writes if self._is_from_before(s, start)}
            reads = {storage_of(x) for v in op.operands for x in self.outer.tensors(v)} - updates
            may_differ = any(
                self._is_from_before(s, start) and self.outer.is_written(s, start) for s in reads
            )
            if not effect.repeats or may_differ or not self._is_update(op, updates):
                return pos
            if updates & (touched | updated) or reads & updated:
                return pos
            updated |= updates
            touched |= reads
        return self.outer.last

    def _is_from_before(self, storage: int, start: int) -> bool:
        return self.outer.made_at.get(storage, -1) < start

    def _is_update(self, op: Op, writes: set[int]) -> bool:
        """Return whether the op writes only what the recomputation can leave out."""
        if op.name == "mutate":
            is_alone = not any(self.outer.tensors(v) for v in op.operands[1:])
        else:
            statistics = self.outer.statistics(op)
            is_alone = writes <= {storage_of(x) for v in statistics for x in self.outer.tensors(v)}
        return not writes or (is_alone and writes <= self.states)

    def _candidate(self, start: int, stop: int, made_bytes: int) -> Candidate | None:
        ends = self.outer.ends(start, stop)
        if ends is None:
            return None
        inputs, outputs = ends
        results = {id(x): x.nbytes for v in outputs for x in self.outer.tensors(v)}
        if made_bytes - sum(results.values()) < LEAST_BYTES:
            return None
        return Candidate(
            start=start,
            stop=stop,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            cuts=(None,) * len(inputs),
            joins=(None,) * len(outputs),
            updated=tuple(v for v in inputs if self._is_state(v, start, stop)),
        )

    def _is_state(self, v: Value, start: int, stop: int) -> bool:
        """Return whether the segment writes the value, so that nothing else in it reads it."""
        held = {storage_of(x) for x in self.outer.tensors(v)}
        return any(held & row.writes for row in self.effects.rows[start:stop])


def _built_bytes(outer: Outer) -> list[int]:
    """Return the bytes that each op allocates, without values that stay inside one kernel."""
    found = list(outer.made_bytes)
    ops = outer.ops[: outer.last]
    lowered = [is_lowered(op, [outer.known.get(v) for v in op.operands]) for op in ops]
    last_use: dict[int, int] = {}
    for pos, op in enumerate(outer.ops):
        used = (*free_values([op]), *op.results)
        last_use |= {storage_of(x): pos for v in used for x in outer.tensors(v)}
    for storage, pos in outer.made_at.items():
        if all(lowered[pos : last_use[storage] + 1]) and last_use[storage] < outer.last:
            found[pos] -= outer.nbytes[storage]
    return found
