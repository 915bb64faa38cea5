"""The predicted peak of a call: kernels, PyTorch's ops, values between them, the backward pass.

In: a `DryRun`, whose ledger has the allocations. Out: a `MemoryPlan`. Outputs, temporaries, saved
values, cotangents and gradients count; inputs and parameters do not. Kernels are exact; what
PyTorch's ops use as scratch memory is an upper bound, see `memory/bounds`.

    x: [1000, 64], y: [500, 64]        4*s0*s1 + 2*(4*s1 + 512)        s0 = x.shape[0], s1 = …
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowtide import html
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep, TorchStep
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory.ledger import Entry, Ledger
from lowtide.memory.plan import LiveAllocation
from lowtide.tables import format_bytes

_NUMBERS = re.compile(r"(?<!\w)\(([-+*/% \d]+)\)")  # a bracket without symbols
_LEAST_SIZE = 33  # smaller ones are constants of a signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor or scratch space that is alive at the peak, and the line that makes it."""

    name: str
    nbytes: int
    kind: str
    loc: Loc = UNKNOWN_LOC

    def __str__(self) -> str:
        place = f"   {self.loc.shown()}" if self.loc.line else ""
        return f"{self.nbytes:>14,}  {self.kind:<9}  {self.name}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The predicted memory of one call, in bytes; prints.

    `peak_bytes`: results, temporaries and saved values, without inputs. `formula`: the same in the
    input sizes; `sizes`: the user's expressions for its symbols. `buffers`: what is alive at the
    peak, each with its source line. `notes`: upper bounds and unknown parts, with which the peak
    may be higher. `fails`: why and where such a call raises, "" if it does not; then the plan
    counts up to there.
    """

    peak_bytes: int
    formula: str
    buffers: tuple[Buffer, ...]
    sizes: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    fails: str = ""

    def __str__(self) -> str:
        lines = [f"such a call fails: {self.fails}"] if self.fails else []
        lines += [f"peak {self.peak_bytes:,} bytes = {self.formula}"]
        lines += [f"{symbol:>16} = {name}" for symbol, name in self.sizes.items()]
        lines += [str(b) for b in self.buffers]
        lines += [f"note: {n}" for n in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.page(*self.html_parts())

    def html_parts(self) -> list[str]:
        """Return the plan as HTML, without the style: the peak, and a bar of what is alive then,
        by source line."""
        places = self._by_place()
        bars = [(place, sum(b.nbytes for b in held)) for place, held in places.items()]
        rows = [
            [
                html.key(k) + html.code(place),
                html.size(nbytes),
                html.text(", ".join(dict.fromkeys(f"{b.kind} {b.name}" for b in places[place]))),
            ]
            for k, (place, nbytes) in enumerate(bars)
        ]
        sizes = ", ".join(f"{symbol} = {name}" for symbol, name in self.sizes.items())
        return [
            html.heading(f"peak {format_bytes(self.peak_bytes)} ({self.peak_bytes:,} bytes)"),
            html.line(f"{self.formula}{f', with {sizes}' if sizes else ''}", "faint"),
            *([html.line(f"Such a call fails: {self.fails}", "bad")] if self.fails else []),
            *([html.bar(bars)] if bars else []),
            *([html.table(("line", "alive at the peak", "values"), rows, {1})] if rows else []),
            *(html.line(f"note: {note}", "faint") for note in self.notes),
        ]

    def _by_place(self) -> dict[str, list[Buffer]]:
        """Return the buffers of each source line, the line with the most bytes first."""
        found: dict[str, list[Buffer]] = {}
        for b in self.buffers:
            place = b.loc.shown() if b.loc.line else "no source line"
            found.setdefault(place, []).append(b)
        return dict(sorted(found.items(), key=lambda row: -sum(b.nbytes for b in row[1])))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as for JSON."""
        return {
            "peak_bytes": self.peak_bytes,
            "formula": self.formula,
            "sizes": dict(self.sizes),
            "buffers": [
                {"name": b.name, "nbytes": b.nbytes, "kind": b.kind, "loc": b.loc.shown()}
                for b in self.buffers
            ],
            "notes": list(self.notes),
            "fails": self.fails,
        }


def plan_memory(dry_run: DryRun, plain: str = "") -> MemoryPlan:
    """Return the plan of a call. `plain`: why it would run as plain Python, "" if it is
    compiled."""
    notes = list(dry_run.notes)
    if plain:
        notes.insert(
            0,
            f"{plain}: PyTorch runs such a call; this is the peak of the compiled program",
        )
    return plan_of(dry_run.ledger, [dry_run], notes)


def plan_of(ledger: Ledger, dry_runs: Sequence[DryRun], notes: Sequence[str]) -> MemoryPlan:
    """Return the plan of a call that consists of these dry runs, which share one ledger."""
    notes = list(dict.fromkeys(notes))
    labels = [s.label for dry_run in dry_runs for s in dry_run.steps if isinstance(s, TorchStep)]
    theirs = dict.fromkeys(labels)
    if theirs:
        names = ", ".join(theirs)
        theirs_too = "" if ledger.of_host else "; that of NVIDIA's libraries is not counted"
        notes.append(f"the scratch memory of {names} is an upper bound{theirs_too}")
    steps = (s for dry_run in dry_runs for s in dry_run.steps if isinstance(s, KernelStep))
    refused = [
        f"{s.loc}: {why}; what it allocates is not counted" for s in steps for why in s.refusals()
    ]
    notes += dict.fromkeys(refused)
    alive = ledger.at_peak()
    names = dict(dry_runs[0].sizes()) if dry_runs else {}
    symbols: dict[int, str] = {}
    for _, size in names.items():
        if size >= _LEAST_SIZE:
            symbols.setdefault(size, f"s{len(symbols)}")
    formula = _formula(alive, symbols)
    words = set(re.findall(r"\w+", formula))
    places = {symbol: _place_of(size, names) for size, symbol in symbols.items()}
    return MemoryPlan(
        peak_bytes=ledger.peak_bytes,
        formula=formula,
        buffers=tuple(map(_buffer, alive)),
        sizes={symbol: name for symbol, name in places.items() if symbol in words},
        notes=tuple(notes),
        fails=next((dry_run.fails for dry_run in dry_runs if dry_run.fails), ""),
    )


def _buffer(x: Entry | LiveAllocation) -> Buffer:
    name, loc = x.describe() if isinstance(x, Entry) else (x.name, x.loc)
    return Buffer(name=name, nbytes=x.nbytes, kind=x.kind, loc=loc.of_user())


def _place_of(size: int, names: Mapping[str, int]) -> str:
    return next(name for name, found in names.items() if found == size)


def _formula(alive: Sequence[Entry | LiveAllocation], symbols: Mapping[int, str]) -> str:
    """Return the sum of what is alive as text, equal terms once."""
    terms: dict[str, int] = {}
    for x in alive:
        text, count = _term(x, symbols) if isinstance(x, Entry) else ("", x.nbytes)
        terms[text] = terms.get(text, 0) + count
    constant = terms.pop("", 0)
    texts = [text if count == 1 else f"{count}*{text}" for text, count in terms.items()]
    return " + ".join([*texts, *([str(constant)] if constant or not texts else [])])


def _term(x: Entry, symbols: Mapping[int, str]) -> tuple[str, int]:
    if x.formula:
        return _kernel_term(x.formula, symbols)
    if not x.shape:
        return "", x.nbytes
    sizes = [_size(s, symbols) for s in x.shape]
    text = "*".join(name for name, _ in sizes if name)
    return text, math.prod(factor for _, factor in sizes) * x.itemsize


def _size(size: int, symbols: Mapping[int, str]) -> tuple[str, int]:
    """Return a dim as (symbols, factor): an input's size, a product of two, a multiple, or a
    number."""
    if size in symbols:
        return symbols[size], 1
    for other, name in symbols.items():
        if size % other == 0 and size // other in symbols:
            return f"{name}*{symbols[size // other]}", 1
    for other, name in symbols.items():
        if size % other == 0 and size // other < _LEAST_SIZE:
            return name, size // other
    return "", size


def _kernel_term(formula: str, symbols: Mapping[int, str]) -> tuple[str, int]:
    """Return the text of a kernel's formula, in which sizes are written `<1000>`."""
    text = _folded(re.sub(r"<(\d+)>", lambda m: symbols.get(int(m[1]), m[1]), formula))
    factors = text.split("*")
    if not all(re.fullmatch(r"\w+", f) for f in factors):
        return f"({text})" if " " in text and not text.endswith(")") else text, 1
    names = [f for f in factors if not f.isdigit()]
    return "*".join(names), math.prod(int(f) for f in factors if f.isdigit())


def _folded(text: str) -> str:
    """Return the formula with each constant bracket evaluated: `((64 + 15) // (16))` is 4."""
    while (found := _NUMBERS.search(text)) is not None:
        value = str(eval(found[1]))  # digits and operators only
        text = f"{text[: found.start()]}{value}{text[found.end() :]}"
    return text
