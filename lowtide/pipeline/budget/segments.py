"""Which runs of ops are worth being run again in the backward pass, though no axis cuts them.

In: an `Outer`. Out: lists of `Candidate`s of one chunk, from those that do little again to those
that do nearly all.

    a = relu(norm(conv(x)))       ┐ a segment: gives a, keeps x
    b = relu(norm(conv(a)))       ┘
    c = up(pool(b))               ┐ another, keeps b
    d = relu(norm(conv(c)))       ┘
    …                               the rest keeps what its gradients read, as ever

A list is made for a number of bytes, which the backward pass shall not hold at once: what the
segments so far keep, and what one of them makes inside. It ends where all of the rest may be kept,
too. So the first segments are long, later ones shorter. Running statistics, counters of batches and
the like are written once, in the forward pass: the block that runs again goes without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lowtide.ir.core import Op, Value
from lowtide.pipeline.budget.candidate import LEAST_BYTES, Candidate, storage_of
from lowtide.pipeline.budget.effects import Effects

_FINER: Final = 0.9  # times as many bytes for the next list
_MOST_LISTS: Final = 32
_LEAST_FILLED: Final = 0.5  # of the room; beyond, the end with the fewest bytes is taken


class Cutter:
    """See the module's text."""

    def __init__(self, effects: Effects) -> None:
        self.outer = outer = effects.outer
        self.effects = effects
        self.states = self._states()
        self.made_bytes = outer.made_bytes  # less what is done in chunks
        self.inside: set[int] = set()  # positions within what is done in chunks

    def lists(self, chunks: Mapping[Candidate, int]) -> Iterator[list[Candidate]]:
        """See the module's text. `chunks`: parts that are done in chunks, which no segment cuts."""
        self.inside = {pos for c in chunks for pos in range(c.start + 1, c.stop)}
        self.made_bytes = list(self.outer.made_bytes)
        for c, count in chunks.items():
            made, inner = sum(self.made_bytes[c.start : c.stop]), self.outer.inner_bytes(c)
            self.made_bytes[c.start : c.stop] = [0] * (c.stop - c.start)
            self.made_bytes[c.stop - 1] = made - inner + inner // count
        most_bytes = float(sum(self.made_bytes))
        before: list[Candidate] = []
        for _ in range(_MOST_LISTS):
            most_bytes *= _FINER
            segments = list(self._segments(most_bytes))
            if segments != before:
                yield segments
            before = segments

    def halves(self, whole: Candidate) -> list[Candidate]:
        """The two parts that leave the smallest larger one, if it can be parted."""
        found: list[tuple[int, list[Candidate]]] = []
        for pos in range(whole.start + 1, whole.stop):
            if pos in self.inside:
                continue
            halves = [self.candidate(whole.start, pos), self.candidate(pos, whole.stop)]
            first, second = (self._again_bytes(c.start, c.stop) if c else 0 for c in halves)
            if halves[0] is not None and halves[1] is not None:
                largest = max(first + self._left_bytes(pos), second + self._left_bytes(whole.stop))
                found.append((largest, [h for h in halves if h]))
        return min(found, key=lambda row: row[0])[1] if found else []

    def more(self, start: int) -> Candidate | None:
        """A segment of half of what is kept from here on."""
        return self._segment(start, sum(self.made_bytes[start:]) / 2)

    def candidate(self, start: int, stop: int) -> Candidate | None:
        """The segment of these ops, if it is one, and worth it."""
        if start in self.inside or stop in self.inside or self._end(start) < stop:
            return None
        return self._candidate(start, stop, sum(self.made_bytes[start:stop]))

    def cost(self, segments: Iterable[Candidate]) -> int:
        """How much is computed again, in bytes of results."""
        return sum(sum(self.outer.made_bytes[c.start : c.stop]) for c in segments)

    def kept_bytes(self, segments: Iterable[Candidate]) -> int:
        """What these hold of what is not the caller's."""
        held = {storage_of(x) for c in segments for v in c.inputs for x in self.outer.tensors(v)}
        return sum(self.outer.nbytes[s] for s in held - self.outer.given)

    def _again_bytes(self, start: int, stop: int) -> int:
        """What is made when a segment runs again: not the results of a part in chunks at its end,
        which nobody reads then."""
        made = self.made_bytes[start:stop]
        while made and not made[-1]:
            made.pop()
        return sum(made[:-1]) if start + len(made) - 1 in self.inside else sum(made)

    def _states(self) -> set[int]:
        """Memory of the caller's that one argument has for itself, without a gradient."""
        held = {storage_of(x) for x, _ in self.outer.pairs if self.effects.carries(x)}
        return self.outer.single - held

    def _segments(self, most_bytes: float) -> Iterator[Candidate]:
        """From the first op on, until the rest may be kept."""
        pos = 0
        kept: set[int] = set()
        while pos < self.outer.last:
            room = most_bytes - sum(self.outer.nbytes[s] for s in kept)
            if sum(self.made_bytes[pos:]) <= room:
                return
            best = self._segment(pos, room)
            if best is not None:
                yield best
                held = best.inputs
                pos = best.stop
            else:
                pos = next(
                    stop for stop in range(pos + 1, self.outer.last + 1) if stop not in self.inside
                )
                held = self.outer.live_at[pos]
            kept |= {storage_of(x) for v in held for x in self.outer.tensors(v)} - self.outer.given

    def _segment(self, start: int, most_bytes: float) -> Candidate | None:
        """The one that leaves the fewest bytes behind, of the longer ones that begin here."""
        best: Candidate | None = None
        made = least = 0
        for stop in range(start + 1, self._end(start) + 1):
            made += self.made_bytes[stop - 1]
            if best is not None and made > most_bytes:
                break
            if stop in self.inside:
                continue
            left = self._left_bytes(stop)  # its gradients come when all of the segment is there
            is_long = made + least >= _LEAST_FILLED * most_bytes
            if best is not None and (made + left > most_bytes or (left > least and is_long)):
                continue
            found = self._candidate(start, stop, made)
            if found is not None:
                best, least = found, left
        return best

    def _left_bytes(self, pos: int) -> int:
        """What is alive there, but for the arguments."""
        alive = {storage_of(x) for v in self.outer.live_at[pos] for x in self.outer.tensors(v)}
        return sum(self.outer.nbytes[s] for s in alive - self.outer.given)

    def _end(self, start: int) -> int:
        """How far a segment from here may go: each op gives the same again, and what it reads is
        still the same then."""
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
        """Does it write, if at all, what can be left out when the op runs again?"""
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
        """Is it written here, and so read by nothing else?"""
        held = {storage_of(x) for x in self.outer.tensors(v)}
        return any(held & row.writes for row in self.effects.rows[start:stop])
