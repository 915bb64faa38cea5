"""Constants as text: what `const {value=...}` and every other attribute may hold.

In: None, bool, int, float, complex, str, a torch dtype, device, layout or memory format, or a tuple
of these. Out: Python text that reads back to the same constant.

    print_literal((1, torch.float32, float("inf")))  ==  "(1, torch.float32, inf)"

Invariant: reading looks up names in a table, evaluates nothing and ends at any text, however
deep or long.
"""

from __future__ import annotations

import re
from typing import Final, cast

import torch

_TORCH_KINDS = (torch.dtype, torch.layout, torch.memory_format)


def is_literal(value: object) -> bool:
    """Return whether a constant can have this value."""
    if isinstance(value, tuple):
        return all(is_literal(v) for v in cast("tuple[object, ...]", value))
    plain = (bool, int, float, complex, str, type(None))
    return type(value) in plain or isinstance(value, (torch.device, *_TORCH_KINDS))


def same_literal(a: object, b: object) -> bool:
    """Return whether both are the same constant: 1, 1.0 and True differ, NaN equals NaN."""
    return print_literal(a) == print_literal(b)


def print_literal(value: object) -> str:
    """Return the text of a constant."""
    if isinstance(value, tuple):
        parts = [print_literal(v) for v in cast("tuple[object, ...]", value)]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    return repr(value)


_DEEPEST: Final = 64  # tuples in tuples
_LONGEST_INT: Final = 4000  # digits

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![\w.]))
    | (?P<name>[A-Za-z_][\w.]*)
    | (?P<mark>[(),=])
    )""",
    re.VERBOSE | re.ASCII,
)
_NAMES: Final[dict[str, object]] = {
    "None": None,
    "True": True,
    "False": False,
    **{str(v): v for v in vars(torch).values() if isinstance(v, _TORCH_KINDS)},
}


def parse_literal(text: str) -> object:
    """Return the constant that this text prints; raises ValueError."""
    reader = _Reader(text)
    found = reader.value(0)
    reader.end()
    return found


def parse_attrs(text: str) -> dict[str, object]:
    """Return the attributes in "name=literal, name=literal"; raises ValueError."""
    reader = _Reader(text)
    found: dict[str, object] = {}
    while not reader.at_end():
        name = reader.need("name")
        reader.mark("=")
        if name in found:
            raise ValueError(f"attribute {name!r} stands twice")
        found[name] = reader.value(0)
        if not reader.skip(","):
            break
    reader.end()
    return found


class _Reader:
    """Reads constants from the front of a text."""

    def __init__(self, text: str) -> None:
        self.text = text.rstrip()
        self.position = 0

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def end(self) -> None:
        if not self.at_end():
            raise self.fail()

    def fail(self) -> ValueError:
        return ValueError(f"not a constant: {self.text[self.position : self.position + 80]!r}")

    def token(self) -> tuple[str, str]:
        found = _TOKEN.match(self.text, self.position)
        if found is None or found.lastgroup is None:
            raise self.fail()
        self.position = found.end()
        return found.lastgroup, found[found.lastgroup]

    def need(self, kind: str) -> str:
        got, word = self.token()
        if got != kind:
            raise self.fail()
        return word

    def mark(self, mark: str) -> None:
        if self.need("mark") != mark:
            raise self.fail()

    def skip(self, mark: str) -> bool:
        found = _TOKEN.match(self.text, self.position)
        if found is None or found["mark"] != mark:
            return False
        self.position = found.end()
        return True

    def value(self, depth: int) -> object:
        kind, word = self.token()
        match kind:
            case "string":
                return _string(word)
            case "number":
                return _number(word)
            case "name" if word in _NAMES:
                return _NAMES[word]
            case "name" if word in ("complex", "device"):
                self.mark("(")
                return _made(word, self.tuple(depth + 1))
            case "mark" if word == "(" and depth < _DEEPEST:
                return self.tuple(depth + 1)
            case _:
                raise self.fail()

    def tuple(self, depth: int) -> tuple[object, ...]:
        elems: list[object] = []
        while not self.skip(")"):
            elems.append(self.value(depth))
            if not self.skip(","):
                self.mark(")")
                break
        return tuple(elems)


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def _string(word: str) -> str:
    return _ESCAPE.sub(_unescaped, word[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code:
        return chr(int(code, 16))  # ValueError beyond Unicode
    if found[4] not in _ESCAPED:
        raise ValueError(f"not an escape: {found[0]!r}")
    return _ESCAPED[found[4]]


def _number(word: str) -> int | float:
    digits = word.removeprefix("-")
    if not digits.isdigit():
        return float(word)
    if len(digits) > _LONGEST_INT:
        raise ValueError(f"an int of {len(digits)} digits")
    return int(word)


def _made(kind: str, parts: tuple[object, ...]) -> object:
    match kind, parts:
        case "complex", (float(real), float(imaginary)):
            return complex(real, imaginary)
        case "device", (str(name),):
            return _device(name)
        case _:
            raise ValueError(f"not a constant: {kind}{parts!r}")


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"not a device: {name!r}") from error
