"""HTML for notebooks: the style and the few parts that plans, explanations and tables are made of.

In: text and numbers. Out: self-contained HTML, light and dark, without scripts. All text is
escaped. A `_repr_html_` returns `page(...)` of parts:

    page(heading("peak 8,000,000 bytes"), bar([("boxes.py:7", 6_000_000), ("boxes.py:9", 10)]))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from lowtide.tables import format_bytes

COLOURS: Final = 6  # of a bar; further parts share the last one
_STYLE: Final = """
.lowtide { color-scheme: light dark; --ink: #1c2127; --faint: #5f6976; --line: #dde1e6;
  --raised: #f6f7f9;
  --p0: #2f7fd0; --p1: #c9701a; --p2: #3f9253; --p3: #8d5fc4; --p4: #c2486b; --p5: #7d8794;
  color: var(--ink); background: #ffffff; padding: 8px; max-width: 900px;
  font: 13px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
@media (prefers-color-scheme: dark) { .lowtide { --ink: #e4e7eb; --faint: #98a2ae;
  --line: #363c46; --raised: #1f232a; --p0: #4d9be6; --p1: #e09a4a; --p2: #62b676; --p3: #b08ae0;
  --p4: #e2708f; --p5: #929ba7; background: #14161a; } }
.lowtide h4 { font-size: 14px; font-weight: 650; margin: 6px 0; color: inherit; }
.lowtide p { margin: 4px 0; }
.lowtide .faint { color: var(--faint); }
.lowtide code { font: 12px/1.45 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: none; color: inherit; padding: 0; overflow-wrap: anywhere; }
.lowtide .bar { display: flex; height: 18px; border-radius: 4px; overflow: hidden; margin: 6px 0;
  background: var(--raised); }
.lowtide .bar i { display: block; min-width: 1px; }
.lowtide .key { display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 6px; }
.lowtide table { border-collapse: collapse; margin: 6px 0; color: inherit; font-size: 12.5px; }
.lowtide th, .lowtide td { padding: 3px 12px 3px 0; text-align: left; vertical-align: top;
  border: 0; border-bottom: 1px solid var(--line); background: none; }
.lowtide th { font-weight: 600; color: var(--faint); }
.lowtide .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.lowtide .card { border: 1px solid var(--line); background: var(--raised); border-radius: 8px;
  padding: 6px 10px; margin: 6px 0; }
.lowtide .left { border-left: 4px solid var(--p1); }
.lowtide .bad { color: var(--p4); font-weight: 600; }
"""


def page(*parts: str) -> str:
    """Return the parts, which are HTML, with their style."""
    return f'<div class="lowtide"><style>{_STYLE}</style>{"".join(parts)}</div>'


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h4>{escape(text)}</h4>"


def line(text: str, kind: str = "") -> str:
    """Return a paragraph. `kind`: `"faint"`, `"bad"` or `""`."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def text(words: str) -> str:
    """Return text as HTML."""
    return escape(words)


def code(text: str) -> str:
    """Return text in the font of code."""
    return f"<code>{escape(text)}</code>"


def card(*parts: str, kind: str = "") -> str:
    """Return a box around parts. `kind`: `"left"` for what Lowtide does not run."""
    return f'<div class="card {kind}">{"".join(parts)}</div>'


def bar(parts: Sequence[tuple[str, int]]) -> str:
    """Return a bar of named parts, each as wide as its share of the bytes."""
    total = sum(nbytes for _, nbytes in parts)
    pieces = [
        f'<i style="width:{100 * nbytes / total:.2f}%;background:{_colour(k)}" '
        f'title="{escape(name)}: {nbytes:,} bytes"></i>'
        for k, (name, nbytes) in enumerate(parts)
        if total
    ]
    return f'<div class="bar">{"".join(pieces)}</div>'


def key(position: int) -> str:
    """Return the mark in the colour of a bar's part."""
    return f'<span class="key" style="background:{_colour(position)}"></span>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    """Return a table. Headers are text, cells are HTML; `numbers`: columns aligned to the right."""
    right = frozenset(numbers)

    def cells(tag: str, row: Iterable[str]) -> str:
        kinds = (' class="number"' if k in right else "" for k in range(len(headers)))
        return "".join(
            f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", map(escape, headers))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def size(nbytes: int) -> str:
    """Return bytes in full, with a title in a larger unit."""
    return f'<span title="{nbytes:,} bytes">{format_bytes(nbytes)}</span>'


def frame(document: str, height: int) -> str:
    """Return a whole HTML document inside a frame, apart from the notebook's style."""
    return (
        f'<iframe srcdoc="{escape(document)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _colour(position: int) -> str:
    return f"var(--p{min(position, COLOURS - 1)})"
