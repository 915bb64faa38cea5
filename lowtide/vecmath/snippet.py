"""One C function of the vector library as a record, and the small notation its text is written in.

In: template text. Out: `Snippet`s whose C text names types for the kernel-wide lane count (`f32v`,
`i64v`).
Invariant: a text is one function `result name(params) { … }`; what it calls is found by reading it.

    F sq_T(F x) { return fma_T(x, x, K(0.5)); }          template, for dtype f32
    f32v sq_f32(f32v x) { return fma_f32(x, x, (0.5f - (f32v){0})); }

`F I U` are the float vector, the signed and unsigned integer vectors of its width, `S SI` their
scalars; `_T` the suffix; `K(c)` a number or a name of CONSTANTS as a vector (x - 0 folds for every
x, x + 0 does not for -0); `KI(c)` an integer; `POLY(name, x)` Horner over COEFFICIENTS;
`BITS MANT BIAS SIGN MAGNITUDE` are the format's numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lowtide.vecmath.coefficients import COEFFICIENTS, CONSTANTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a text: the lanes of a vector, the bytes of the widest hardware vector."""

    lanes: int
    vector_bytes: int

    def hardware_lanes(self, itemsize: int) -> int:
        """Lanes of elements of `itemsize` bytes that fit in one hardware vector, at most all."""
        return min(self.lanes, max(1, self.vector_bytes // itemsize))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A C function: its text for a layout. `splits`: printed for one hardware vector and called
    once per part where the kernel's vectors are wider."""

    name: str
    text: Callable[[Layout], str]
    splits: bool = True
    note: str = ""


_FORMATS = {
    "f32": {
        "F": "f32v",
        "I": "i32v",
        "U": "u32v",
        "S": "float",
        "SI": "int32_t",
        "BITS": "32",
        "MANT": "23",
        "BIAS": "127",
        "SIGN": "0x80000000u",
        "MAGNITUDE": "0x7fffffff",
    },
    "f64": {
        "F": "f64v",
        "I": "i64v",
        "U": "u64v",
        "S": "double",
        "SI": "int64_t",
        "BITS": "64",
        "MANT": "52",
        "BIAS": "1023",
        "SIGN": "0x8000000000000000ull",
        "MAGNITUDE": "0x7fffffffffffffffll",
    },
}
_TOKEN = re.compile(r"\b(F|I|U|SI|S|BITS|MANT|BIAS|SIGN|MAGNITUDE)\b")


def expand(template: str, dtype: str) -> str:
    """Return the template's C text for `dtype`, "f32" or "f64"."""
    text = re.sub(r"POLY\((\w+), (\w+)\)", lambda m: _horner(f"{m[1]}_{dtype}", m[2]), template)
    text = re.sub(r"\bKI\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"((SI)(\1) - (I){0})", text)
    text = re.sub(
        r"\bK\((-?)([^()]+)\)", lambda m: f"({_literal(m[1], m[2], dtype)} - (F){{0}})", text
    )
    text = _TOKEN.sub(lambda m: _FORMATS[dtype][m[1]], text)
    return re.sub(r"_T\b", f"_{dtype}", text).strip()


def for_floats(*templates: str) -> list[Snippet]:
    """Return snippets of `templates` for f32 and f64."""
    return [one_float(t, dtype) for t in templates for dtype in ("f32", "f64")]


def one_float(template: str, dtype: str) -> Snippet:
    """Return the snippet of `template` for one `dtype`."""
    text = expand(template, dtype)
    return Snippet(name=prototype(text).name, text=lambda _: text)


def fixed(text: str, *, splits: bool = True, note: str = "") -> Snippet:
    """Return a snippet whose text does not depend on the layout."""
    clean = text.strip()
    return Snippet(name=prototype(clean).name, text=lambda _: clean, splits=splits, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prototype:
    """`result name(type param, …)` of a C function."""

    result: str
    name: str
    params: tuple[tuple[str, str], ...]


def prototype(text: str) -> Prototype:
    """Reads the prototype that opens a function's text."""
    match = re.match(r"([\w ]+?\**) ?\b(\w+)\(([^)]*)\)\s*\{", text)
    assert match, f"not a C function: {text[:60]!r}"
    pairs: list[tuple[str, str]] = []
    for param in match[3].split(","):
        kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", param, re.S).groups()  # type: ignore[union-attr]
        pairs.append((kind.strip(), name))
    return Prototype(result=match[1].strip(), name=match[2], params=tuple(pairs))


def _literal(sign: str, word: str, dtype: str) -> str:
    value = CONSTANTS[dtype].get(word, word)
    suffix = "f" if dtype == "f32" and not value.startswith("__") else ""
    minus = "-" if sign else ""
    return f"{minus}{value}{suffix}".replace("--", "")


def _horner(name: str, x: str) -> str:
    *low, top = COEFFICIENTS[name]
    text = f"K({top})"
    for coefficient in reversed(low):
        text = f"fma_T({text}, {x}, K({coefficient}))"
    return text
