"""Results as Markdown, and into the README.

In: `ProgramResult`s. Out: tables; `update_readme` replaces what stands between two marker comments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import ProgramResult, VariantResult
from benchmarks.variants import COMPILE, EAGER, HOW, JAX, LOWTIDE, PEERS
from lowtide.tables import format_bytes, format_ms, markdown_table
from lowtide.tools.machine import Machine

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def full_table(result: ProgramResult) -> str:
    """Every number of one program."""
    headers = [
        "variant", "min", "median", "first call", "peak", "beyond result", "predicted", "result",
    ]  # fmt: skip
    rows = [
        [
            found.name,
            format_ms(found.min_ms),
            format_ms(found.median_ms),
            format_ms(found.first_call_ms),
            format_bytes(found.peak_bytes),
            format_bytes(found.extra_bytes),
            format_bytes(found.predicted_bytes),
            found.error or {None: "-", True: "equal", False: "DIFFERS"}[found.agrees],
        ]
        for found in result.variants
    ]
    return f"**{_title(result)}**\n\n{markdown_table(headers, rows)}"


def summary_table(results: list[ProgramResult]) -> str:
    """The README's table: a row a program, time and memory beyond inputs and outputs a variant."""
    headers = ["program", "eager", "torch.compile", "JAX", "PyTorch's own", "Lowtide", "speed-up"]
    rows: list[list[str]] = []
    for result in results:
        peer = result.variant(PEERS[result.name][0]) if result.name in PEERS else None
        ours, theirs = result.variant(LOWTIDE), result.variant(COMPILE)
        rows.append(
            [
                _title(result),
                _cell(result.variant(EAGER)),
                _cell(theirs),
                _cell(result.variant(JAX)),
                f"{peer.name} {_cell(peer)}" if peer else "",
                _cell(ours),
                _ratio(theirs, ours),
            ]
        )
    return markdown_table(headers, rows)


def overhead_lines(overhead: dict[str, Any], import_ms: float | None) -> str:
    """One line each on launch overhead and import time."""
    calls = ", ".join(
        f"{name} {value:.1f} µs" if isinstance(value, float) else f"{name} {value}"
        for name, value in overhead.items()
    )
    added = "-" if import_ms is None else f"{import_ms:.0f} ms"
    return (
        f"A call on 8 elements: {calls}. "
        f"`import lowtide` and `lowtide.script` add {added} to `import torch`."
    )


def how_lines(machine: Machine) -> str:
    """Machine and methods, for below a table."""
    methods = "; ".join(f"{name}: {how}" for name, how in HOW.items())
    return (
        f"Fastest of several calls, turn by turn in one process; memory is the most that was "
        f"resident beyond inputs and result, in a process of its own. {methods}.\n\n{machine}"
    )


def update_readme(text: str, readme: Path = README) -> None:
    """Replace what is between the markers of the README. Raises ValueError if they are missing."""
    whole = readme.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise ValueError(f"{readme.name} must hold {BEGIN} and {END} once each")
    before, rest = whole.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}")


def _title(result: ProgramResult) -> str:
    return f"{result.title} ({', '.join(f'{name}={size}' for name, size in result.sizes.items())})"


def _cell(found: VariantResult | None) -> str:
    if found is None:
        return ""
    if found.min_ms is None:
        return "failed" if found.error else "-"
    wrong = " WRONG" if found.agrees is False else ""
    return f"{format_ms(found.min_ms)}, {format_bytes(found.extra_bytes)}{wrong}"


def _ratio(theirs: VariantResult | None, ours: VariantResult | None) -> str:
    if theirs is None or ours is None or not theirs.min_ms or not ours.min_ms:
        return "-"
    return f"{theirs.min_ms / ours.min_ms:.1f}×"
