"""A profile as text: the cells of its table.

In: rows. Out: strings. The command `lowtide profile` makes its tables of them, too.

    table_text(rows, 10, peak_bytes, remarks)
    peak 3.81 GiB (4,096,000,000 bytes)
    op         phase    calls  self time  self bytes   at peak  module     source
    aten::sub  forward      1    4.60 ms    3.81 GiB  3.81 GiB  Net.pairs  train.py:12
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lowtide.errors import cell_of
from lowtide.tables import format_bytes, format_ms, plain_table
from lowtide.tools.profiler.rows import Row, first_rows

HEADERS = ("op", "phase", "calls", "self time", "self bytes", "at peak", "module", "source")


def table_text(rows: Sequence[Row], row_limit: int, peak_bytes: int, remarks: Sequence[str]) -> str:
    """Return the first `row_limit` rows, -1 for all, below a line with the peak."""
    shown = first_rows(rows, row_limit)
    lines = [f"peak {format_bytes(peak_bytes)} ({peak_bytes:,} bytes)"]
    lines.append(plain_table(HEADERS, [cells(row) for row in shown], left_columns=2))
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more rows")
    lines += [f"note: {remark}" for remark in remarks]
    return "\n".join(lines)


def cells(row: Row) -> list[str]:
    """Return the cells of a row, in the order of `HEADERS`."""
    return [
        row.op,
        row.phase,
        str(row.calls),
        format_ms(row.self_time_ns / 1e6),
        format_bytes(row.self_bytes),
        format_bytes(row.peak_bytes),
        row.module or "-",
        short_source(row.file, row.line),
    ]


def short_source(file: str, line: int) -> str:
    """Return `train.py:12`, as a relative path if the file is near; "-" if it is unknown."""
    if not file:
        return "-"
    if cell := cell_of(file):
        return f"{cell}:{line}"
    path = os.path.relpath(file) if os.path.isabs(file) else file
    shown = file if path.startswith(os.pardir + os.sep + os.pardir) else path
    return f"{shown}:{line}"
