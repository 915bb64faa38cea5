"""Results as Markdown, and into pages.

In: `ProgramResult`s. Out: tables; `update_page` replaces what stands between two marker comments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import ProgramResult, VariantResult
from benchmarks.variants import COMPILE, EAGER, HOW, JAX, LOWTIDE, PEERS
from lowtide.tables import format_bytes, format_ms, markdown_table
from lowtide.tools.machine import Machine

README = Path(__file__).parent.parent / "README.md"
MEASURED = README.parent / "docs" / "measured.md"  # all rows of whole models
# What stands between `<!-- BLOCK: begin -->` and `<!-- BLOCK: end -->` is written by a command.
PROGRAMS_BLOCK, MODELS_BLOCK = "benchmarks", "models"


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
    headers = ["program", "eager", "torch.compile", "JAX", "PyTorch's own", "Lowtide"]
    headers.append("of the best other")
    rows: list[list[str]] = []
    for result in results:
        peer = result.variant(PEERS[result.name][0]) if result.name in PEERS else None
        ours = result.variant(LOWTIDE)
        rows.append(
            [
                _title(result),
                _cell(result.variant(EAGER)),
                _cell(result.variant(COMPILE)),
                _cell(result.variant(JAX)),
                f"{peer.name} {_cell(peer)}" if peer else "",
                _cell(ours),
                _best_ratio(result),
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


def models_table(reports: list[dict[str, Any]]) -> str:
    """The table of whole models: a row a model and kind, two columns a report.

    Numbers are how many times faster Lowtide is. `reports`: what `benchmarks.models` wrote."""
    names = list(dict.fromkeys(name for report in reports for name in report["rows"]))
    headers, columns = ["model"], list[list[str]]()
    for report in reports:
        cpu, rows = report["machine"]["cpu"], report["rows"]
        headers += [f"{cpu}: of eager", "of Inductor", "peak of eager's"]
        for against, key in (("eager", "ms"), ("inductor", "ms")):
            means = [report["geomeans"].get(f"{kind}, {against}") for kind in ("infer", "train")]
            columns.append(
                [_times(rows.get(name, {}), against, key) for name in names]
                + [f"{mean:.2f}×" if mean else "" for mean in means]
            )
        columns.append(
            [_times(rows.get(name, {}), "eager", "peak_mb") for name in names] + [""] * 2
        )
    labels = [*names, "geometric mean, infer", "geometric mean, train"]
    return markdown_table(headers, [list(row) for row in zip(labels, *columns, strict=True)])


def models_summary(reports: list[dict[str, Any]]) -> str:
    """The README's table of whole models: a row a report and kind, the worst model named."""
    headers = ["whole models", "of eager", "the worst", "the best", "of Inductor"]
    rows: list[list[str]] = []
    for report in reports:
        for kind in ("infer", "train"):
            means = [report["geomeans"].get(f"{kind}, {way}") for way in ("eager", "inductor")]
            found = {
                name.partition(",")[0]: row["eager"]["ms"] / row["compile"]["ms"]
                for name, row in report["rows"].items()
                if name.endswith(kind) and "compile" in row
            }
            if not found:
                continue
            ends = [pick(found, key=lambda name: found[name]) for pick in (min, max)]
            eager, inductor = (f"{mean:.2f}×" if mean else "" for mean in means)
            named = [f"{found[name]:.2f}× ({name})" for name in ends]
            rows.append([f"{report['machine']['cpu']}, {kind}", eager, *named, inductor])
    return markdown_table(headers, rows)


def _times(row: dict[str, dict[str, float]], against: str, key: str) -> str:
    """Theirs in ours for times, ours in theirs for peaks; empty where either is missing."""
    if against not in row or "compile" not in row:
        return ""
    theirs, ours = row[against][key], row["compile"][key]
    return f"{theirs / ours:.2f}×" if key == "ms" else f"{ours / theirs:.2f}"


def block_marks(block: str) -> tuple[str, str]:
    """The comments before and after what is written into a block of a page."""
    return f"<!-- {block}: begin -->", f"<!-- {block}: end -->"


def update_page(text: str, block: str, page: Path = README) -> None:
    """Replaces what is in a block of a page. Raises ValueError if its marks are missing."""
    whole = page.read_text()
    begin, end = block_marks(block)
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page.name} must hold {begin} and {end} once each")
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def _title(result: ProgramResult) -> str:
    return f"{result.title} ({', '.join(f'{name}={size}' for name, size in result.sizes.items())})"


def _cell(found: VariantResult | None) -> str:
    if found is None:
        return ""
    if found.min_ms is None:
        return "failed" if found.error else "-"
    wrong = " WRONG" if found.agrees is False else ""
    return f"{format_ms(found.min_ms)}, {format_bytes(found.extra_bytes)}{wrong}"


def _best_ratio(result: ProgramResult) -> str:
    """How many times faster Lowtide is than the fastest other, and which that is."""
    ours = result.variant(LOWTIDE)
    others = [
        v for v in result.variants if v.name != LOWTIDE and v.min_ms and v.agrees is not False
    ]
    if ours is None or not ours.min_ms or not others:
        return "-"
    best = min(others, key=lambda v: v.min_ms or 0)
    return f"{(best.min_ms or 0) / ours.min_ms:.1f}× of {best.name}"
