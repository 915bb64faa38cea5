"""The timeline as a picture, by matplotlib: live bytes over time, the peak, steps, largest pieces.

In: a timeline. Out: a file whose ending says the format: `.png`, `.svg`, `.pdf`.
"""

from __future__ import annotations

import importlib
import os
from os import PathLike
from typing import Any

from lowtide.memory.profiler.records import Allocation
from lowtide.memory.profiler.timeline import Curve, Timeline
from lowtide.tables import format_bytes

_NAMED = 5  # places that are drawn in colour, with a line in the legend
_MIB = 1 << 20


def plot_timeline(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Draws the device with the highest peak. Needs matplotlib; opens no window."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.add_subplot()
    device = timeline.main_device()
    curve = timeline.curves.get(device, Curve(times_ns=[0], live_bytes=[0]))
    seconds = [*(t / 1e9 for t in curve.times_ns), timeline.end_ns / 1e9]
    mebibytes = [count / _MIB for count in [*curve.live_bytes, curve.live_bytes[-1]]]
    axes.fill_between(seconds, mebibytes, step="post", color="#c9ced6", linewidth=0)
    axes.step(seconds, mebibytes, where="post", color="#39424e", linewidth=1)
    live = timeline.live_at(curve.peak_order, device)
    _draw_places(axes, live, timeline.end_ns)
    for end_ns in timeline.step_ends_ns:
        axes.axvline(end_ns / 1e9, color="#8a939f", linewidth=0.8, linestyle=":")
    axes.plot(curve.peak_ns / 1e9, curve.peak_bytes / _MIB, "o", color="#0f62c4", markersize=5)
    axes.set_title(f"{device}: peak {format_bytes(curve.peak_bytes)}", loc="left", fontsize=11)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB live")
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e4e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(os.fspath(path), dpi=140)


def _draw_places(axes: Any, live: list[Allocation], end_ns: int) -> None:
    """The places with the most bytes at the peak, stacked, over the time that these are live."""
    groups: dict[str, list[Allocation]] = {}
    for a in live:
        source = f"{os.path.basename(a.place.file)}:{a.place.line}" if a.place.file else "?"
        groups.setdefault(f"{a.op}  {source}", []).append(a)
    largest = sorted(groups.items(), key=lambda item: -sum(a.nbytes for a in item[1]))[:_NAMED]
    bottom = 0
    for index, (name, group) in enumerate(largest):
        total = sum(a.nbytes for a in group)
        begin = min(a.born_ns for a in group) / 1e9
        end = max(end_ns if a.freed_ns is None else a.freed_ns for a in group) / 1e9
        axes.fill_between(
            [begin, end],
            [bottom / _MIB] * 2,
            [(bottom + total) / _MIB] * 2,
            color=f"C{index}",
            alpha=0.55,
            linewidth=0,
            label=f"{format_bytes(total)}  {name}",
        )
        bottom += total
    if largest:
        axes.legend(title="live at the peak", fontsize=8, title_fontsize=8, alignment="left")
