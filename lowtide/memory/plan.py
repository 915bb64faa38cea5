"""A memory plan: the bytes that a program holds at its peak, known before it runs.

In: `Event`s, the allocations and frees of a run in order. Out: `peak_of(events)`, a RunPeak.

    print(peak_of(events))
    peak 8000000 bytes = 4*N*M
             8000000 output y  boxes.py:7
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.errors import Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAllocation:
    """A live allocation. `kind`: "output", "temporary" or "work memory". `formula`: its bytes in
    the sizes."""

    name: str
    nbytes: int
    kind: str
    loc: Loc
    formula: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeak:
    """`peak_bytes` of one call, with outputs and temporaries, without inputs. `formula` in the
    sizes of the inputs. `buffers`: what is alive at the peak."""

    peak_bytes: int
    formula: str
    buffers: tuple[LiveAllocation, ...]

    def __str__(self) -> str:
        lines = [f"peak {self.peak_bytes} bytes = {self.formula}"]
        lines += [f"  {b.nbytes:>14} {b.kind} {b.name}  {b.loc}" for b in self.buffers]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An allocation or a free. An allocation without a free outlives the run."""

    held: LiveAllocation
    takes: bool


def peak_of(events: Iterable[Event]) -> RunPeak:
    """Return the plan at the moment of the peak."""
    held: dict[str, LiveAllocation] = {}
    total = 0
    best: tuple[int, list[LiveAllocation]] = (0, [])
    for event in events:
        x = event.held
        if event.takes:
            held[x.name] = x
            total += x.nbytes
        else:
            del held[x.name]
            total -= x.nbytes
        if total > best[0]:
            best = (total, [h for h in held.values() if h.nbytes])
    formula = " + ".join(h.formula for h in best[1]) or "0"
    return RunPeak(peak_bytes=best[0], formula=formula, buffers=tuple(best[1]))
