"""Operators summed up: one row for each operator, line, module and phase.

In: a `Timeline`. Out: `Row`s, and the order in which a table shows them.

    op         calls  self      bytes     at peak   source       module
    aten::sub      1  4.6 ms  3.81 GiB  3.81 GiB  train.py:12  Net.pairs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.errors import LowtideError
from lowtide.tools.profiler.attribute import OUTSIDE
from lowtide.tools.profiler.records import Allocation, Place
from lowtide.tools.profiler.timeline import Timeline


@dataclass(slots=True, kw_only=True)
class Row:
    """The calls of one operator at one line, in one module and phase.

    `self_bytes`: allocated by it and the operators inside it. `freed_bytes`: freed while it ran.
    `peak_bytes`: of its allocations, those live at the peak.
    """

    op: str
    calls: int = 0
    self_time_ns: int = 0
    self_bytes: int = 0
    freed_bytes: int = 0
    peak_bytes: int = 0
    file: str = ""
    line: int = 0
    source: str = ""
    module: str = ""
    phase: str = ""


SORTS = ("self_bytes", "self_time", "calls", "peak_bytes", "freed_bytes", "op", "source", "module")
_FIELDS = {"self_time": "self_time_ns"}
COLUMNS = tuple(Row.__slots__)


def make_rows(timeline: Timeline) -> list[Row]:
    """Return all rows, in the order of the operators' first calls."""
    rows: dict[tuple[str, str, Place], Row] = {}
    for operator in timeline.operators:
        row = _row(rows, operator.name, operator.phase, operator.place)
        row.calls += 1
        row.self_time_ns += operator.self_ns
        row.self_bytes += operator.allocated_bytes
        row.freed_bytes += operator.freed_bytes
    device = timeline.main_device()
    curve = timeline.curves.get(device)
    if curve is not None:
        for a in timeline.live_at(curve.peak_order, device):
            _row(rows, a.op or OUTSIDE, a.phase, a.place).peak_bytes += a.nbytes
    return list(rows.values())


def _row(rows: dict[tuple[str, str, Place], Row], op: str, phase: str, place: Place) -> Row:
    key = (op, phase, place)
    row = rows.get(key)
    if row is None:
        row = rows[key] = Row(
            op=op,
            phase=phase,
            file=place.file,
            line=place.line,
            source=place.source,
            module=place.module,
        )
    return row


def sort_rows(rows: Iterable[Row], sort_by: str) -> list[Row]:
    """Return the rows sorted by a column: numbers from the largest down, names from A to Z. Raises
    LowtideError for an unknown column."""
    if sort_by not in SORTS:
        raise LowtideError(f"sort_by={sort_by!r} is not a column; allowed are {', '.join(SORTS)}")
    if sort_by in ("op", "module"):
        return sorted(rows, key=lambda row: getattr(row, sort_by))
    if sort_by == "source":
        return sorted(rows, key=lambda row: (row.file, row.line))
    name = _FIELDS.get(sort_by, sort_by)
    return sorted(rows, key=lambda row: -getattr(row, name))


def first_rows(rows: Sequence[Row], row_limit: int) -> Sequence[Row]:
    """Return the first `row_limit` rows, -1 for all. Raises LowtideError for other negative numbers
    and other types."""
    if type(row_limit) is not int or row_limit < -1:  # not True, which is 1
        raise LowtideError(
            f"row_limit={row_limit!r} is not a number of rows; write 10, or -1 for all"
        )
    return rows if row_limit < 0 else rows[:row_limit]


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each row as `{"op": …, "calls": …, …}`."""
    return [{name: getattr(row, name) for name in COLUMNS} for row in rows]


def shape_text(allocation: Allocation) -> str:
    """Return a text such as `float32[256, 2000]`, "" if no tensor was seen in the allocation."""
    if allocation.shape is None:
        return ""
    return f"{allocation.dtype}[{', '.join(map(str, allocation.shape))}]"
