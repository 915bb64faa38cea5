"""Finds the author's line for a place in an archive's code.

In: the bytes of a table `code/….py.debug_pkl`, an offset in bytes into the code beside it.
Out: a `Loc` in the author's file, as torch.jit.script saw it.

    found = ranges(old.debug["__torch__.py"])
    author_of(found, 712)                      model.py:40: y = torch.tensor([1.]) + x

A table is ("FORMAT_WITH_STRING_TABLE", strings, rows) with rows (offset, range, tag). PyTorch wrote
rows alone once, (offset, tag, range) or (offset, range), with the strings in place.
A range is (source, begin, end), a source (text, file, first line).
Invariant: a damaged table has no ranges; it never raises.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from lowtide.deploy import limits
from lowtide.deploy.torchscript.pickles import unpickle
from lowtide.errors import LoadError, Loc

_WITH_STRINGS: Final = "FORMAT_WITH_STRING_TABLE"
_FUNCTION: Final = re.compile(r"^[ \t]*(?:async +)?def +(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """Text that was scripted, in parts; `line`: of its first line in the file."""

    parts: tuple[str, ...]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Range:
    """From byte `offset` of the archive's code on, what came from byte `begin` of the source."""

    offset: int
    source: Source
    begin: int


def ranges(raw: bytes) -> list[Range]:
    """Return the table's ranges in order; an empty list for a damaged table."""
    try:
        value = unpickle(raw, "debug_pkl")
        rows = cast("tuple[Any, ...]", value if type(value) is tuple else ())
        strings = None
        if rows[:1] == (_WITH_STRINGS,):
            _, strings, rows = rows
        known: dict[int, Source] = {}
        found = [_range(row, strings, known) for row in rows]
    except (LoadError, ValueError, TypeError, LookupError):
        return []
    return sorted(found, key=lambda r: r.offset)


def _range(row: Any, strings: tuple[object, ...] | None, known: dict[int, Source]) -> Range:
    offset, given = row[0], row[1] if len(row) == 2 or strings is not None else row[2]
    source, begin, _ = given
    if id(source) not in known:
        known[id(source)] = _source(source, strings)
    if type(offset) is not int or type(begin) is not int or begin < 0:
        raise ValueError("offsets are natural numbers")
    return Range(offset, known[id(source)], begin)


def _source(row: Any, strings: Any) -> Source:
    text, file, line = row
    if strings is not None:
        text = [strings[k] for k in text]
        file = None if file is None else strings[file]
    parts = (text,) if type(text) is str else tuple(text)
    if not all(type(p) is str for p in (*parts, file or "")) or type(line) is not int:
        raise ValueError("a source is text, a file and a line")
    return Source(cast("tuple[str, ...]", parts), file or "", line)


def author_of(found: Sequence[Range], offset: int) -> Loc | None:
    """Return the author's place for a byte of the archive's code; None where none is known."""
    k = bisect_right(found, offset, key=lambda r: r.offset)
    if k == 0:
        return None
    source, begin = found[k - 1].source, found[k - 1].begin
    if not source.file or sum(map(len, source.parts)) > limits.CODE_BYTES:
        return None
    text = "".join(source.parts).encode(errors="replace")
    if begin > len(text):
        return None
    first = text.rfind(b"\n", 0, begin) + 1
    line = text[first:].split(b"\n", 1)[0].decode(errors="replace")
    function = _FUNCTION.search(text.decode(errors="replace"))
    return Loc(
        file=source.file,
        line=source.line + text.count(b"\n", 0, begin),
        column=len(text[first:begin].decode(errors="replace")) + 1,
        text=line,
        function=function[1] if function else "",
    )
