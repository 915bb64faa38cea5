"""Plots a timeline by matplotlib: live bytes over time, the peak, steps, the largest allocations.

In: a timeline. Out: a file, whose suffix gives the format: `.png`, `.svg`, `.pdf`.
"""

from __future__ import annotations

import importlib.util
import os
from os import PathLike
from typing import Any

from lowtide.errors import LowtideError
from lowtide.tables import format_bytes
from lowtide.tools.profiler.records import Allocation
from lowtide.tools.profiler.timeline import Curve, Timeline, thinned

_MOST_POINTS = 8_000  # the picture is about 1,500 pixels wide
_NAMED = 5  # places in colour, with an entry in the legend
_MIB = 1 << 20
_ENDINGS = (".png", ".svg", ".pdf")


def check_picture(path: str | PathLike[str]) -> None:
    """Raise LowtideError if `path` has another suffix, or matplotlib is missing."""
    if os.path.splitext(path)[1].lower() not in _ENDINGS:
        endings = ", ".join(_ENDINGS)
        raise LowtideError(f"{os.fspath(path)!r} must end in {endings}: the suffix is the format")
    if importlib.util.find_spec("matplotlib") is None:
        raise LowtideError("this needs matplotlib: pip install 'lowtide[profile]'")


def plot_timeline(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Draw the device with the highest peak. Needs matplotlib; opens no window."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.add_subplot()
    device = timeline.main_device()
    curve = timeline.curves.get(device, Curve(times_ns=[0], live_bytes=[0]))
    kept = thinned(curve.live_bytes, _MOST_POINTS)
    seconds = [*(curve.times_ns[i] / 1e9 for i in kept), timeline.end_ns / 1e9]
    mebibytes = [curve.live_bytes[i] / _MIB for i in (*kept, -1)]
    axes.fill_between(seconds, mebibytes, step="post", color="#c9ced6", linewidth=0)
    axes.step(seconds, mebibytes, where="post", color="#39424e", linewidth=1)
    _draw_places(axes, timeline, device, curve)
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


def _draw_places(axes: Any, timeline: Timeline, device: str, curve: Curve) -> None:
    """Draw the live bytes of the places with the most bytes at the peak, stacked."""
    at_peak: dict[str, int] = {}
    for a in timeline.live_at(curve.peak_order, device):
        at_peak[_place(a)] = at_peak.get(_place(a), 0) + a.nbytes
    places = sorted(at_peak, key=lambda place: -at_peak[place])[:_NAMED]
    changes: list[tuple[int, int, int]] = []  # time, place, bytes
    for a in timeline.allocations:
        if a.device == device and _place(a) in places:
            changes.append((a.born_ns, places.index(_place(a)), a.nbytes))
            if a.freed_ns is not None:
                changes.append((a.freed_ns, places.index(_place(a)), -a.nbytes))
    changes.sort()
    live = [0] * len(places)
    moments: list[tuple[int, list[int]]] = []
    for time_ns, place, change_bytes in changes:
        live[place] += change_bytes
        moments.append((time_ns, list(live)))
    kept = thinned([sum(counts) for _, counts in moments], _MOST_POINTS)
    seconds, levels = [0.0], [[0.0] * len(places)]
    for time_ns, counts in [moments[i] for i in kept]:
        seconds.append(time_ns / 1e9)
        levels.append([count / _MIB for count in counts])
    seconds.append(timeline.end_ns / 1e9)
    levels.append(levels[-1])
    bottom = [0.0] * len(seconds)
    for index, place in enumerate(places):
        top = [below + level[index] for below, level in zip(bottom, levels, strict=True)]
        label = f"{format_bytes(at_peak[place])}  {place}"
        colour = f"C{index}"
        axes.fill_between(
            seconds, bottom, top, step="post", color=colour, alpha=0.6, linewidth=0, label=label
        )
        bottom = top
    if places:
        figure = axes.figure
        figure.legend(
            title="live at the peak",
            loc="outside right upper",
            fontsize=8,
            title_fontsize=8,
            alignment="left",
            frameon=False,
        )


def _place(a: Allocation) -> str:
    return f"{a.op}  {os.path.basename(a.place.file) or '?'}:{a.place.line}"
