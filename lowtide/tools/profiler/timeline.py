"""Live bytes over time: turns memory events into allocations, a curve for each device, and the
peak.

In: attributions, one after another. Out: `Timeline`: allocations with begin and end, and the bytes
live after each event.

    timeline.live_at(curve.peak_order, "cpu")      allocations, which add up to the peak

Invariant: memory that was allocated before the profile is not counted, nor is its free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lowtide.tools.profiler.attribute import Attribution
from lowtide.tools.profiler.records import NOWHERE, Allocation, Operator


@dataclass(slots=True)
class Curve:
    """Bytes live on one device after each of its events. `peak_order`: the event of the peak."""

    times_ns: list[int] = field(default_factory=list[int])
    live_bytes: list[int] = field(default_factory=list[int])
    peak_bytes: int = 0
    peak_ns: int = 0
    peak_order: int = -1


class Timeline:
    """The allocations of all attributions; times count from the begin of the first."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.allocations: list[Allocation] = []
        self.curves: dict[str, Curve] = {}
        self.step_ends_ns: list[int] = []
        self.threads: dict[int, str] = {}
        self.end_ns = 0
        self._origin_ns: int | None = None  # of the first recording, on PyTorch's clock
        self._live: dict[tuple[str, int], Allocation] = {}
        self._order = 0

    def add(self, found: Attribution) -> None:
        """Add the next attribution."""
        origin_ns = found.begin_ns if self._origin_ns is None else self._origin_ns
        self._origin_ns = origin_ns
        self.threads.update(found.threads)
        self.step_ends_ns += [time_ns - origin_ns for time_ns in found.steps_ns]
        self.end_ns = max(self.end_ns, found.end_ns - origin_ns)
        for operator in found.operators:
            operator.begin_ns -= origin_ns
            operator.end_ns -= origin_ns
            operator.step = bisect_left(self.step_ends_ns, operator.begin_ns)
        self.operators += found.operators
        first_new = len(self.allocations)
        for time_ns, address, nbytes, device, operator in found.memory:
            self._book(time_ns - origin_ns, address, nbytes, device, operator)
        made = (one for notes in found.notes.values() for one in notes.made)
        self._add_shapes(first_new, ((t - origin_ns, *rest) for t, *rest in made))  # type: ignore[misc]

    def live_at(self, order: int, device: str) -> list[Allocation]:
        """Return what is live on `device` after event `order`, the largest first."""
        live = [
            a
            for a in self.allocations
            if a.device == device and a.born <= order and (a.freed is None or a.freed > order)
        ]
        return sorted(live, key=lambda a: -a.nbytes)

    def alive(self) -> list[Allocation]:
        """Return what is live at the end, in order of allocation."""
        return [a for a in self.allocations if a.freed is None]

    def main_device(self) -> str:
        """Return the device with the highest peak."""
        return max(self.curves, key=lambda device: self.curves[device].peak_bytes, default="cpu")

    def _book(
        self, time_ns: int, address: int, nbytes: int, device: str, operator: Operator | None
    ) -> None:
        if nbytes == 0:
            return
        self._order += 1
        key = (device, address)
        before = self._live.pop(key, None)
        if before is not None:  # an unseen free may have come before
            before.freed, before.freed_ns = self._order, time_ns
            self._draw(device, time_ns, -before.nbytes)
        if nbytes > 0:
            allocation = self._live[key] = Allocation(
                nbytes=nbytes,
                address=address,
                device=device,
                born_ns=time_ns,
                born=self._order,
                step=bisect_left(self.step_ends_ns, time_ns),
                op=operator.name if operator is not None else "",
                phase=operator.phase if operator is not None else "forward",
                place=operator.place if operator is not None else NOWHERE,
            )
            self.allocations.append(allocation)
            self._draw(device, time_ns, nbytes)

    def _draw(self, device: str, time_ns: int, change_bytes: int) -> None:
        curve = self.curves.get(device)
        if curve is None:
            curve = self.curves[device] = Curve()
        live_bytes = (curve.live_bytes[-1] if curve.live_bytes else 0) + change_bytes
        curve.times_ns.append(time_ns)
        curve.live_bytes.append(live_bytes)
        if live_bytes > curve.peak_bytes:
            curve.peak_bytes, curve.peak_ns, curve.peak_order = live_bytes, time_ns, self._order

    def _add_shapes(
        self, first: int, made: Iterable[tuple[int, int, tuple[int, ...], str]]
    ) -> None:
        by_address: dict[int, list[Allocation]] = {}
        for allocation in self.allocations[first:]:
            by_address.setdefault(allocation.address, []).append(allocation)
        for time_ns, address, shape, dtype in made:
            for allocation in reversed(by_address.get(address, ())):
                if allocation.born_ns <= time_ns:
                    if allocation.shape is None:
                        allocation.shape, allocation.dtype = shape, dtype
                    break


def thinned(values: Sequence[int], most: int) -> Sequence[int]:
    """Return indices of at most `most` values: the first, least, largest and last of each part."""
    count = len(values)
    if count <= most:
        return range(count)
    stretch = -(-count // (most // 4))
    kept: list[int] = []
    for first in range(0, count, stretch):
        inside = range(first, min(first + stretch, count))
        least, largest = min(inside, key=values.__getitem__), max(inside, key=values.__getitem__)
        kept += sorted({inside[0], least, largest, inside[-1]})
    return kept
