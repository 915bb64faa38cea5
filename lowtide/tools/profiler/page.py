"""A profile as one HTML page: a template with its style, its script and the data as JSON.

In: a timeline, rows, and what is live at the peak. Out: a text that loads no file. The curve
is thinned to 20,000 points, which keep its minima and maxima.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from lowtide.tools.profiler.records import Allocation, Operator
from lowtide.tools.profiler.rows import Row, as_dicts, shape_text
from lowtide.tools.profiler.timeline import Curve, Timeline, thinned

_MOST_POINTS = 20_000
_MOST_PIECES = 80  # drawn as coloured areas
_MOST_LIVE = 1000  # rows of the table
_REPORT = "lowtide.memory.report"


def page_text(
    timeline: Timeline,
    rows: Sequence[Row],
    holders: dict[int, tuple[str, ...]],
    remarks: Sequence[str],
) -> str:
    """Return the page. `holders`: texts on what holds an allocation, by its `born`."""
    numbers = {(row.op, row.phase, row.source, row.module): i for i, row in enumerate(rows)}
    data = {
        "main_device": timeline.main_device(),
        "end_ns": timeline.end_ns,
        "calls": len(timeline.operators),
        "step_ends_ns": timeline.step_ends_ns,
        "phases": _phases(timeline.operators, timeline.end_ns),
        "rows": as_dicts(rows),
        "devices": {
            name: _device(timeline, name, curve, numbers, holders)
            for name, curve in timeline.curves.items()
        },
        "remarks": list(remarks),
    }
    folder = resources.files(_REPORT)
    # `</script>` in a name must not end the element.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    page = folder.joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "title": "Memory profile",
        "css": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "js": folder.joinpath("page.js").read_text(encoding="utf-8"),
        "data": text,
    }
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    return page


def _device(
    timeline: Timeline,
    name: str,
    curve: Curve,
    numbers: dict[tuple[str, str, str, str], int],
    holders: dict[int, tuple[str, ...]],
) -> dict[str, Any]:
    live = timeline.live_at(curve.peak_order, name)
    largest = sorted(
        (a for a in timeline.allocations if a.device == name), key=lambda a: -a.nbytes
    )[:_MOST_PIECES]
    times_ns, live_bytes = _thin(curve)
    return {
        "times": times_ns,
        "live": live_bytes,
        "rows": _rows_at(timeline, name, times_ns, numbers),
        "peak_bytes": curve.peak_bytes,
        "peak_ns": curve.peak_ns,
        "pieces": [_piece(a, timeline.end_ns) for a in largest],
        "live_at_peak": [
            {**_piece(a, timeline.end_ns), "holders": "; ".join(holders.get(a.born, ()))}
            for a in live[:_MOST_LIVE]
        ],
        "live_note": f"{len(live):,} pieces"
        + (f", the largest {_MOST_LIVE:,} shown" if len(live) > _MOST_LIVE else ""),
    }


def _piece(a: Allocation, end_ns: int) -> dict[str, Any]:
    return {
        "nbytes": a.nbytes,
        "op": a.op,
        "phase": a.phase,
        "source": a.place.source,
        "module": a.place.module,
        "shape": shape_text(a),
        "born_ns": a.born_ns,
        "freed_ns": end_ns if a.freed_ns is None else a.freed_ns,
        "is_freed": a.freed_ns is not None,
    }


def _thin(curve: Curve) -> tuple[list[int], list[int]]:
    kept = thinned(curve.live_bytes, _MOST_POINTS)
    return [curve.times_ns[i] for i in kept], [curve.live_bytes[i] for i in kept]


def _rows_at(
    timeline: Timeline, device: str, times_ns: Sequence[int], numbers: dict[Any, int]
) -> list[int]:
    """Return the row of the latest allocation at each time, -1 before the first."""
    found: list[int] = []
    ours = [a for a in timeline.allocations if a.device == device]
    at = -1
    for time_ns in times_ns:
        while at + 1 < len(ours) and ours[at + 1].born_ns <= time_ns:
            at += 1
        if at < 0:
            found.append(-1)
            continue
        a = ours[at]
        found.append(numbers.get((a.op, a.phase, a.place.source, a.place.module), -1))
    return found


def _phases(operators: Sequence[Operator], end_ns: int) -> list[tuple[int, int, str]]:
    """Return (begin, end, phase) of spans of time in one phase. Gaps of less than a 2000th of the
    run are closed."""
    near_ns = end_ns // 2000
    phases: list[tuple[int, int, str]] = []
    for operator in operators:
        if phases:
            begin_ns, until_ns, phase = phases[-1]
            if phase == operator.phase and operator.begin_ns - until_ns <= near_ns:
                phases[-1] = (begin_ns, max(until_ns, operator.end_ns), phase)
                continue
        phases.append((operator.begin_ns, operator.end_ns, operator.phase))
    return phases
