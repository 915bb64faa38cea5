"""Plain text and Markdown tables, and how numbers with units are written in them.

In: a header row and rows of strings. Out: one string. No dependency, so that it works where
output is piped, logged or written into a README.

    plain_table(["name", "ms"], [["eager", "3.96"], ["lowtide", "0.05"]])  →  name       ms
                                                                              -------  ----
                                                                              eager    3.96
                                                                              lowtide  0.05
"""

from __future__ import annotations

from collections.abc import Sequence


def format_bytes(count: int | None) -> str:
    """Return bytes in the unit that leaves one to three digits: `"463 MiB"`; None is `"-"`."""
    if count is None:
        return "-"
    size = float(abs(count))
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 1000, not 1024: "0.98 GiB" reads better than "1003 MiB".
        if size < 1000:
            break
        size /= 1024
        unit = larger
    digits = 0 if unit == "B" or size >= 100 else 1 if size >= 10 else 2
    return f"{'-' if count < 0 else ''}{size:.{digits}f} {unit}"


def format_ms(time_ms: float | None) -> str:
    """Return milliseconds with three significant digits: `"0.0512 ms"`; None is `"-"`."""
    if time_ms is None:
        return "-"
    digits = 0 if time_ms >= 100 else 1 if time_ms >= 10 else 2 if time_ms >= 1 else 3
    if 0 < time_ms < 0.1:
        digits = 4
    return f"{time_ms:.{digits}f} ms"


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left_columns: int = 1
) -> str:
    """Return columns padded with spaces; the first `left_columns` and the last are left-aligned."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    last = len(headers) - 1

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i < left_columns or i == last else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *(line(row) for row in rows)])


def markdown_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left_columns: int = 1
) -> str:
    """The same as a GitHub table; a `|` inside a cell is escaped."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    rule = ["---" if i < left_columns else "---:" for i in range(len(headers))]
    return "\n".join([line(headers), line(rule), *(line(row) for row in rows)])
