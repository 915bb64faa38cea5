"""Reads the header that `lt.export_c` writes.

In: its text. Out: for each function its sizes, inputs and outputs.

    /* pairs: v0 = a.shape[0], at least 0; n2 = n, at least 0 */      Size("v0", ("a.shape[0]",), 0)
    /*   a: f32 [v0, 3] */                                            Given("a", "f32", ("v0", "3"))
    /*   out0: i64 [v0] at most: out0_capacity … */                   is_counted
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import torch

DTYPES: Final = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
NUMBERS: Final = {"int": torch.int64, "float": torch.float64}
_ENTRY: Final = re.compile(
    r"\n/\* (\w+): (.*?) \*/\n(?:/\* constant.*?\*/\n)?typedef struct.*?_sizes;(.*?)\w+_status \w+"
    r"\(const \w+ \*sizes",
    re.DOTALL,
)
_GIVEN: Final = re.compile(r"/\*   (\w+): (\w+)(?: \[(.*?)\])?( at most)?")
_SIZE: Final = re.compile(r"(\w+) = (.*?), at least (-?\d+)")
_FIELD: Final = re.compile(r"^  (\w+) \w+(?:\[(\d+)\])?;$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Size:
    """`dims`: where it is found, as "x.shape[0]" or the name of an int."""

    symbol: str
    dims: tuple[str, ...]
    least: int


@dataclass(frozen=True, kw_only=True)
class Given:
    """An input or an output. `kind`: a type of elements, or "int", "float", "bool" for a number.
    `shape`: of a tensor, as written."""

    name: str
    kind: str
    shape: tuple[str, ...] | None
    is_counted: bool

    @property
    def dtype(self) -> torch.dtype:
        """The type of its elements."""
        return DTYPES[self.kind] if self.kind in DTYPES else NUMBERS[self.kind]

    @property
    def is_output(self) -> bool:
        """Whether the function writes it."""
        return re.fullmatch(r"out\d+", self.name) is not None


@dataclass(frozen=True, kw_only=True)
class Function:
    """What a C function takes and gives."""

    name: str
    sizes: tuple[Size, ...]
    inputs: tuple[Given, ...]
    outputs: tuple[Given, ...]


def functions(text: str) -> dict[str, Function]:
    """Return the functions of a header by name."""
    found: dict[str, Function] = {}
    for name, sizes, rows in _ENTRY.findall(text):
        given = [
            Given(
                name=word,
                kind=kind,
                shape=tuple(filter(None, shape.split(", "))) if f"{kind} [" in row else None,
                is_counted=bool(most),
            )
            for row in rows.splitlines()
            for word, kind, shape, most in _GIVEN.findall(row)
        ]
        found[name] = Function(
            name=name,
            sizes=tuple(
                Size(symbol=s, dims=tuple(dims.split(" = ")), least=int(least))
                for s, dims, least in _SIZE.findall(sizes)
            ),
            inputs=tuple(g for g in given if not g.is_output),
            outputs=tuple(g for g in given if g.is_output),
        )
    return found


def state_bytes(text: str) -> int:
    """Return at least the bytes of the state, 0 without one."""
    found = re.search(r"typedef struct \{\n((?:  \w+ \w+(?:\[\d+\])?;\n)+)\} \w+_state;", text)
    if found is None:
        return 0
    return sum(8 + 8 * int(n or 1) for _, n in _FIELD.findall(found[1]))
