"""The predicted peak of a call: kernels, PyTorch's ops, and what lives across them.

In: a `Walk`. Out: a `MemoryPlan`. Outputs and temporaries count, inputs do not; what PyTorch's own
ops allocate inside themselves is not known and not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.pipeline.walk import KernelStep, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor or scratch space that is alive at the peak, and the line that makes it."""

    name: str
    nbytes: int
    kind: str
    loc: Loc = UNKNOWN_LOC

    def __str__(self) -> str:
        place = f"   {self.loc}" if self.loc.line else ""
        return f"{self.nbytes:>14,}  {self.kind:<9}  {self.name}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`peak_bytes` of one call, its `formula` in the input sizes, the `buffers` alive at the peak.

    `sizes` says what the formula's symbols are. `notes` say what could not be known; with notes,
    the peak may be higher."""

    peak_bytes: int
    formula: str
    buffers: tuple[Buffer, ...]
    sizes: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"peak {self.peak_bytes:,} bytes = {self.formula}"]
        lines += [f"{symbol:>16} = {name}" for symbol, name in self.sizes.items()]
        lines += [str(b) for b in self.buffers]
        lines += [f"note: {n}" for n in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        return {
            "peak_bytes": self.peak_bytes,
            "formula": self.formula,
            "sizes": dict(self.sizes),
            "buffers": [
                {"name": b.name, "nbytes": b.nbytes, "kind": b.kind, "loc": str(b.loc)}
                for b in self.buffers
            ],
            "notes": list(self.notes),
        }


def plan_memory(walk: Walk, plain: str = "") -> MemoryPlan:
    """The plan of a call. `plain`: why it would run as plain Python, "" if it is compiled."""
    peak, formula, buffers = 0, "0", list[Buffer]()
    notes = list(dict.fromkeys(walk.notes))
    symbols: dict[str, str] = {}
    if plain:
        notes.insert(
            0, f"{plain}: such a call runs as plain PyTorch; this is the compiled one's peak"
        )
    uncounted: list[str] = []
    for step in walk.steps:
        if isinstance(step, KernelStep):
            found = step.executable().memory(step.numbers)
            total, text = step.held_bytes + found.peak_bytes, str(found.formula)
            parts = [
                Buffer(name=b.name, nbytes=b.nbytes, kind=b.kind, loc=b.loc) for b in found.buffers
            ]
        else:
            total, text, parts = step.held_bytes, "", list[Buffer]()
            if step.new_bytes:
                uncounted.append(step.label)
                name = step.op.results[0].name or step.label
                parts = [Buffer(name=name, nbytes=step.new_bytes, kind="PyTorch", loc=step.loc)]
        if total > peak:
            rest = total - sum(b.nbytes for b in parts)
            held = step.held_bytes if isinstance(step, KernelStep) else rest
            if held > 0:
                parts.append(Buffer(name="made before", nbytes=held, kind="held"))
            peak, buffers = total, parts
            symbols = step.entry.spec.size_names if isinstance(step, KernelStep) else {}
            formula = " + ".join(filter(None, [text, str(held) if held > 0 else ""])) or str(total)
            if not text:
                formula = str(total)
    if uncounted:
        names = ", ".join(dict.fromkeys(uncounted))
        notes.append(f"what PyTorch allocates inside {names} is not counted")
    words = set(re.findall(r"\w+", formula))
    return MemoryPlan(
        peak_bytes=peak,
        formula=formula,
        buffers=tuple(buffers),
        sizes={s: name for s, name in symbols.items() if s in words},
        notes=tuple(notes),
    )
