"""Reads untrusted JSON: a `Node` is a value with its location.

In: bytes. Out: nodes. Raises LoadError with the location and the expected value.

    parse(b'{"a": [1]}', "x").get("a").items_of(4)[0].size()     ->  1
    parse(b'{"a": "b"}', "x").get("a").size()     LoadError: x: a: expected a size, not "b"

Invariant: a parsed text has no NaN, no name twice, and no int outside 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from lowtide.errors import LoadError

_INT_DIGITS: Final = 19


def dump(value: object) -> bytes:
    """Return the JSON text; equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode()


def dump_lines(value: dict[str, object]) -> bytes:
    """Return readable JSON: a line for each entry of the outer dict and of the lists in it."""
    lines: list[str] = []
    for key, entry in value.items():
        name = json.dumps(key)
        if entry and isinstance(entry, list):
            rows = ",\n  ".join(dump(row).decode() for row in cast("list[object]", entry))
            lines.append(f"{name}: [\n  {rows}\n ]")
        else:
            lines.append(f"{name}: {dump(value[key]).decode()}")
    return ("{" + ",\n ".join(lines) + "}\n").encode()


def parse(raw: bytes, what: str) -> Node:
    """Return the outermost node. Raises LoadError."""
    try:
        value: object = json.loads(
            raw.decode("utf-8"),
            parse_constant=_no_constant,
            parse_int=_int,
            parse_float=_float,
            object_pairs_hook=_once_each,
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise LoadError(f"{what} is not JSON as Lowtide writes it: {error}") from error
    return Node(value, what)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _int(word: str) -> int:
    if len(word.lstrip("-")) > _INT_DIGITS or not -(2**63) <= int(word) < 2**63:
        raise ValueError(f"{word[:40]} is beyond 64 bits")
    return int(word)


def _float(word: str) -> float:
    value = float(word)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{word[:40]} is out of the range of a float")
    return value


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


@dataclass(frozen=True, slots=True)
class Node:
    """One JSON value. `where`: its location, for messages."""

    value: object
    where: str

    def fail(self, expected: str) -> LoadError:
        """Return the error to raise."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return LoadError(f"{self.where}: expected {expected}, not {shown}")

    def _dict(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return cast("dict[str, object]", self.value)

    def has(self, name: str) -> bool:
        """Return whether the object has this name."""
        return name in self._dict()

    def get(self, name: str) -> Node:
        """Return the value of this name, which is required."""
        found = self._dict()
        if name not in found:
            raise self.fail(f"an object with {name!r}")
        return Node(found[name], f"{self.where}: {name}")

    def only(self, *names: str) -> Node:
        """Return the node itself, if it has no other names than these."""
        for name in self._dict():
            if name not in names:
                raise self.fail(f"an object without {name!r}")
        return self

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield the object's names and values."""
        for name, value in self._dict().items():
            yield name, Node(value, f"{self.where}: {name[:60]}")

    def items_of(self, most: int | None = None) -> Sequence[Node]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            raise self.fail("a list")
        found = cast("list[object]", self.value)
        if most is not None and len(found) > most:
            raise self.fail(f"at most {most} elements")
        return [Node(v, f"{self.where}[{i}]") for i, v in enumerate(found)]

    def row(self, count: int) -> Sequence[Node]:
        """Return the elements of a list of this length."""
        found = self.items_of()
        if len(found) != count:
            raise self.fail(f"a list of {count}")
        return found

    def text(self, of: Any = None) -> str:
        """Return a string. `of`: the allowed ones."""
        if not isinstance(self.value, str):
            raise self.fail("a string")
        if of is not None and self.value not in of:
            raise self.fail(f"one of {', '.join(sorted(of))}")
        return self.value

    def integer(self) -> int:
        """Return an int."""
        if type(self.value) is not int:
            raise self.fail("an int")
        return self.value

    def size(self) -> int:
        """Return an int that is not negative."""
        if type(self.value) is not int or self.value < 0:
            raise self.fail("a size")
        return self.value

    def flag(self) -> bool:
        """Return a bool."""
        if not isinstance(self.value, bool):
            raise self.fail("true or false")
        return self.value

    def index(self, of: int) -> int:
        """Return an int in range(of)."""
        found = self.size()
        if found >= of:
            raise self.fail(f"an index below {of}")
        return found
