"""A memory plan: how many bytes a program holds at its peak, known before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A value that takes memory: `kind` is "output", "temporary" or "work memory"; `formula`: its
    bytes in the sizes."""

    name: str
    nbytes: int
    kind: str
    loc: Loc
    formula: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`peak_bytes` of one call, outputs and temporaries counted, inputs not; `formula` in the sizes
    of the inputs; `buffers`: what is held at the peak."""

    peak_bytes: int
    formula: str
    buffers: tuple[Held, ...]

    def __str__(self) -> str:
        lines = [f"peak {self.peak_bytes} bytes = {self.formula}"]
        lines += [f"  {b.nbytes:>14} {b.kind} {b.name}  {b.loc}" for b in self.buffers]
        return "\n".join(lines)
