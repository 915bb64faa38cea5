"""Saves the source lines of a program's locations, so that errors show them on other machines.

In:  Functions. Out: rows, such as ["/home/u/net.py", [[12, "y = self.fc(x)", "forward"]]]
In:  rows, and Functions with file and line only. Out: the same Functions with complete locations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from lowtide.deploy.jsontext import Node
from lowtide.errors import Loc
from lowtide.ir.core import Function

Lines = Mapping[tuple[str, int], tuple[str, str]]

_LONGEST = 400


def rows_of(functions: Iterable[Function]) -> list[object]:
    """Return the table of lines, sorted by file and line."""
    files: dict[str, dict[int, list[object]]] = {}
    for fn in functions:
        for loc in (fn.loc, *(op.loc for op in fn.walk())):
            if loc.line and loc.text:
                row: list[object] = [loc.line, loc.text[:_LONGEST], loc.function]
                files.setdefault(loc.file, {}).setdefault(loc.line, row)
    return [
        [file, [lines[line] for line in sorted(lines)]] for file, lines in sorted(files.items())
    ]


def lines_of(rows: Node) -> Lines:
    """Return text and function by file and line. Raises LoadError."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for row in rows.items_of():
        file, lines = row.row(2)
        for entry in lines.items_of():
            line, text, function = entry.row(3)
            found[file.text(), line.size()] = _shown(text.text()), _shown(function.text())
    return found


def _shown(text: str) -> str:
    """Return the text without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text[:_LONGEST])


def restore(fn: Function, lines: Lines) -> None:
    """Complete the locations of the function and its ops."""
    fn.loc = _whole(fn.loc, lines)
    for op in fn.walk():
        op.loc = _whole(op.loc, lines)


def _whole(loc: Loc, lines: Lines) -> Loc:
    text, function = lines.get((loc.file, loc.line), ("", ""))
    column = len(text) - len(text.lstrip()) + 1
    file = _shown(loc.file)
    return dataclasses.replace(loc, file=file, column=column, text=text, function=function)
