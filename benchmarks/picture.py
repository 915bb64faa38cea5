"""The README's picture: memory over time of the boxes, eager PyTorch against Lowtide.

In: the sizes of the program `boxes`. Out: two SVGs, for light and for dark pages. The curves are
those of `lt.profile()`, of the shortest of five warm calls each.

    python -m benchmarks.picture           docs/assets/boxes-light.svg, docs/assets/boxes-dark.svg
    python -m benchmarks.picture --quick   the same of small boxes, into the current folder
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import lowtide as lt
from lowtide.tables import format_bytes, format_ms
from lowtide.tools.programs import PROGRAMS

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
GIB = 1 << 30
CALLS = 5
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 40, 40  # margins around the plot


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Live bytes during a call: `points` are (milliseconds since its begin, bytes)."""

    points: Sequence[tuple[float, int]]
    end_ms: float

    @property
    def peak_bytes(self) -> int:
        return max(nbytes for _, nbytes in self.points)


@dataclass(frozen=True, kw_only=True)
class Theme:
    """The colours of one picture."""

    name: str
    paper: str
    ink: str
    faint: str
    line: str
    eager: str
    lowtide: str


THEMES = (
    Theme(
        name="light", paper="#ffffff", ink="#1c2127", faint="#5f6976", line="#dde1e6",
        eager="#c9701a", lowtide="#2f7fd0",
    ),
    Theme(
        name="dark", paper="#14161a", ink="#e4e7eb", faint="#98a2ae", line="#363c46",
        eager="#e09a4a", lowtide="#4d9be6",
    ),
)  # fmt: skip


def record(function: Callable[..., object], args: Sequence[Tensor]) -> Curve:
    """Profiles calls, and gives the shortest. The first, which may compile, is not recorded."""
    function(*args)
    return min((_recorded(function, args) for _ in range(CALLS)), key=lambda curve: curve.end_ms)


def _recorded(function: Callable[..., object], args: Sequence[Tensor]) -> Curve:
    with lt.profile() as prof:
        result = function(*args)
        del result  # its free ends the call's curve
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(path)
        events = json.loads(path.read_text())["traceEvents"]
    points = [(e["ts"] / 1e3, e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    start_ms = min(e["ts"] / 1e3 for e in events if e["ph"] in "CX")
    return Curve(
        points=[(0.0, 0), *((ms - start_ms, nbytes) for ms, nbytes in points)],
        end_ms=points[-1][0] - start_ms,
    )


def draw(eager: Curve, ours: Curve, sizes: str, theme: Theme) -> str:
    """The picture as SVG: both curves over the same axes."""
    top_gib = _tidy(eager.peak_bytes / GIB)
    most_ms = eager.end_ms

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / most_ms

    def y(nbytes: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * nbytes / GIB / top_gib

    def area(curve: Curve, colour: str) -> str:
        steps = [f"M{x(0):.1f} {y(0):.1f}"]
        for (ms, nbytes), (next_ms, _) in zip(
            curve.points, [*curve.points[1:], (curve.end_ms, 0)], strict=True
        ):
            steps.append(f"L{x(ms):.1f} {y(nbytes):.1f}L{x(next_ms):.1f} {y(nbytes):.1f}")
        path = "".join([*steps, f"L{x(curve.end_ms):.1f} {y(0):.1f}Z"])
        return f'<path d="{path}" fill="{colour}" fill-opacity=".35" stroke="{colour}"/>'

    parts: list[str] = []
    for number in range(5):
        level = top_gib * number / 4
        at = y(level * GIB)
        parts.append(
            f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="{theme.line}" fill="none"/>'
        )
        parts.append(_text(LEFT - 8, at + 4, f"{level:.3g} GiB", theme.faint, "end"))
    step_ms = _tidy(most_ms / 5)
    for number in range(int(most_ms / step_ms) + 1):
        ms = step_ms * number
        anchor = "middle" if x(ms) < WIDTH - 40 else "end"
        parts.append(_text(x(ms), HEIGHT - 18, f"{ms:,.0f} ms", theme.faint, anchor))
    parts += [area(eager, theme.eager), area(ours, theme.lowtide)]
    parts.append(
        _text(LEFT, 20, f"Overlap areas of boxes, {sizes}: memory during a call", theme.ink)
    )
    named = (("eager PyTorch", eager, theme.eager), ("Lowtide", ours, theme.lowtide))
    for row, (name, curve, colour) in enumerate(named):
        at = TOP + 24 + 22 * row
        said = f"{name}: {format_bytes(curve.peak_bytes)}, {format_ms(curve.end_ms)}"
        parts.append(
            f'<rect x="{LEFT + 12}" y="{at - 10}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(_text(LEFT + 30, at, said, theme.ink))
    title = (
        f"Memory during a call: eager PyTorch {format_bytes(eager.peak_bytes)}, "
        f"Lowtide {format_bytes(ours.peak_bytes)}"
    )
    return _svg(title, HEIGHT, parts, theme)


def dots(rows: Mapping[str, Mapping[str, float]], ways: Sequence[str], theme: Theme) -> str:
    """A picture of megabytes by row and way, on a logarithmic axis; below 0.1 MB at its begin."""
    colours = dict(zip(ways, (theme.eager, theme.faint, theme.lowtide), strict=True))
    left, top, step, right = 268, 56, 20, WIDTH - 20
    bottom = top + step * len(rows)
    least, most = 0.1, 2000.0

    def x(mb: float) -> float:
        share = math.log(max(mb, least) / least) / math.log(most / least)
        return left + (right - left) * share

    parts = [_text(8, 20, "MB that a call holds, beyond inputs and results", theme.ink)]
    for k, (way, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{left + 6 + 130 * k}" cy="40" r="5" fill="{colour}"/>')
        parts.append(_text(left + 16 + 130 * k, 44, way, theme.ink))
    for mb, said in ((0.1, "≤ 0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1,000")):
        parts.append(f'<path d="M{x(mb):.1f} {top}V{bottom}" stroke="{theme.line}"/>')
        parts.append(_text(x(mb), bottom + 16, said, theme.faint, "middle"))
    for k, (name, row) in enumerate(rows.items()):
        y = top + step * k + 12
        parts.append(_text(left - 14, y + 4, name, theme.ink, "end"))
        for way, mb in row.items():
            colour = colours[way]
            parts.append(f'<circle cx="{x(mb):.1f}" cy="{y}" r="5" fill="{colour}"/>')
    return _svg("Memory of the programs", bottom + 24, parts, theme)


def _text(x: float, y: float, words: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def _svg(title: str, height: float, parts: Sequence[str], theme: Theme) -> str:
    paper = f'<rect width="100%" height="100%" rx="6" fill="{theme.paper}"/>'
    body = "\n".join([paper, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" role="img" font-size="13" '
        'font-family="system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
        f"<title>{title}</title>\n{body}\n</svg>\n"
    )


def _tidy(number: float) -> float:
    """The next of 1, 2, 4, 5 and 8 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(number))
    return next(scale * step for step in (1, 2, 4, 5, 8, 10) if scale * step >= number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small boxes, into this folder")
    options = parser.parse_args()
    boxes = PROGRAMS["boxes"]
    sizes = boxes.quick if options.quick else boxes.full
    args = boxes.make_inputs(*sizes)
    eager = record(boxes.function, args)
    ours = record(lt.script(boxes.function), args)
    folder = Path() if options.quick else ASSETS
    for theme in THEMES:
        path = folder / f"boxes-{theme.name}.svg"
        said = " × ".join(f"{size:,}" for size in sizes)
        path.write_text(draw(eager, ours, said, theme), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
