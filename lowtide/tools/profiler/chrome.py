"""The profile in Chrome's trace format, for chrome://tracing and ui.perfetto.dev.

In: a timeline. Out: a JSON file: a row of operators for each thread, a counter for each device.
Format: "Trace Event Format", events of kind X (complete), C (counter), M (names), i (steps).
"""

from __future__ import annotations

import json
import os
from os import PathLike
from pathlib import Path
from typing import Any

from lowtide.tools.profiler.timeline import Timeline


def write_trace(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write the trace to `path`. The format's times are microseconds."""
    process = os.getpid()
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
        for thread, name in timeline.threads.items()
    ]
    for operator in timeline.operators:
        args = {
            "source": operator.place.source,
            "module": operator.place.module,
            "allocated_bytes": operator.allocated_bytes,
            "freed_bytes": operator.freed_bytes,
            "step": operator.step,
        }
        events.append(
            {
                "ph": "X",
                "pid": process,
                "tid": operator.thread,
                "name": operator.name,
                "cat": operator.phase,
                "ts": operator.begin_ns / 1e3,
                "dur": (operator.end_ns - operator.begin_ns) / 1e3,
                "args": args,
            }
        )
    for device, curve in timeline.curves.items():
        for time_ns, live_bytes in zip(curve.times_ns, curve.live_bytes, strict=True):
            name = f"live bytes, {device}"
            count = {"ph": "C", "pid": process, "name": name, "ts": time_ns / 1e3}
            events.append({**count, "args": {"bytes": live_bytes}})
    for number, end_ns in enumerate(timeline.step_ends_ns):
        mark = {"ph": "i", "s": "g", "pid": process, "tid": 0, "name": f"end of step {number}"}
        events.append({**mark, "ts": end_ns / 1e3})
    trace = {"traceEvents": events, "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")
