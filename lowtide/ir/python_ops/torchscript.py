"""Ops of TorchScript on numbers and strings that are not Python's; archives of torch.jit have them.

    find("torchscript.truediv").run(1.0, 0.0)   ==  inf          C++'s division
    find("torchscript.text").run(2.0)           ==  "2."         see `torchscript_text`
    find("torchscript.len").run("é")            ==  2            strings are bytes of UTF-8

A byte that is no character is a lone surrogate of Python's, U+DC80 to U+DCFF, in a program. A
result for Python that has one raises UnicodeDecodeError, as in torch.jit.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.numbers import MATH_FLOATS
from lowtide.ir.python_ops.row import OpDef, ResultType, always
from lowtide.ir.python_ops.strings import METHODS_OF, method
from lowtide.ir.python_ops.torchscript_text import text
from lowtide.ir.types import ListType, Type

_BYTE: Final = "surrogateescape"  # how a byte that is no character is written in a str
_OPERATORS: Final[Any] = operator
_BEYOND: Final = (ValueError, OverflowError, ZeroDivisionError)


# ---- numbers ------------------------------------------------------------------------------------


def _of_c(run: Callable[..., Any], by_torch: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return Python's function, with the result of C's where Python's raises: inf or nan."""

    @functools.wraps(run)
    def call(*operands: Any) -> Any:
        try:
            return run(*operands)
        except _BEYOND:
            return by_torch(*(torch.tensor(v, dtype=torch.float64) for v in operands)).item()

    return call


def _floordiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.floor(a / b)


def _gamma(x: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(x).exp()


def _ieee_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * b * math.nan


def _ldexp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * math.inf


_OTHER: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "gamma": _gamma,
    "remainder": _ieee_remainder,
    "ldexp": _ldexp,
}


def _power_of_c(a: float, b: float) -> float:
    if a == 0.0 and b < 0:
        raise ZeroDivisionError("0.0 cannot be raised to a negative power")
    return _raised(a, b)


_raised: Final = _of_c(math.pow, torch.pow)
MATH: Final = frozenset(n for n in MATH_FLOATS if n in _OTHER or hasattr(torch, n))


# ---- strings ------------------------------------------------------------------------------------


def _formatted(template: str, *values: object) -> str:
    """Return `template.format(*values)`, where only `{}` is special: the next value."""
    parts = template.split("{}")
    if len(parts) - 1 > len(values):
        raise RuntimeError(f"Too few arguments for format string: {template}")
    texts = [*map(text, values[: len(parts) - 1]), ""]
    return "".join(map(operator.add, parts, texts))


def _percent(template: str, *values: object) -> str:
    """Return `template % values` with the specifiers of TorchScript."""
    made: list[str] = []
    rest = list(values)
    head, *parts = template.split("%")
    k = 0
    while k < len(parts):
        part = parts[k]
        if not part:  # `%%`, or a `%` at the end
            if k + 1 == len(parts):
                raise RuntimeError("Incomplete format specifier")
            made.append("%" + parts[k + 1])
            k += 2
            continue
        if not rest:
            raise RuntimeError("Too few arguments for format string")
        made.append(_specified(part[0], rest.pop(0)) + part[1:])
        k += 1
    if rest:
        raise RuntimeError("Too many arguments for format string")
    return head + "".join(made)


def _specified(letter: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match letter:
        case "s":
            return text(value)
        case "d" | "i" if is_number:
            return str(int(value))
        case "e" | "E" | "f" | "F" if is_number:
            return f"{float(value):.6{letter}}"
        case "c" if isinstance(value, int):
            return chr(value & 127)
        case "c" if isinstance(value, str) and len(value) == 1:
            return value
        case "d" | "i" | "e" | "E" | "f" | "F" | "c":
            raise RuntimeError(f"%{letter} of a {type(value).__name__}")
        case _:
            raise RuntimeError(
                f"The specifier %{letter} is not supported in TorchScript format strings"
            )


def _on_bytes(run: Callable[..., Any], by_bytes: Callable[..., Any]) -> Callable[..., Any]:
    """Python's function for texts of ASCII; else that of bytes."""

    @functools.wraps(run)
    def call(*operands: Any) -> Any:
        if all(map(_is_ascii, operands)):
            return run(*operands)
        return _decoded(by_bytes(*map(_encoded, operands)))

    return call


def _is_ascii(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_ascii, cast("list[Any]", value)))
    return value.isascii() if isinstance(value, str) else True


def _encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_encoded, cast("list[Any]", value))]
    return value.encode(errors=_BYTE) if isinstance(value, str) else value


def _decoded(found: Any) -> Any:
    if isinstance(found, bytes):
        return found.decode(errors=_BYTE)
    if isinstance(found, list):
        return [*map(_decoded, cast("list[Any]", found))]
    return tuple(map(_decoded, cast("Any", found))) if isinstance(found, tuple) else found


def _of_bytes(name: str) -> Callable[..., Any]:
    """Return the method of bytes. A method that bytes lack raises RuntimeError for text that is not
    ASCII."""
    if name in ("isdecimal", "isnumeric"):
        return bytes.isdigit
    if hasattr(bytes, name):
        return method(name)

    def unknown(*operands: object) -> object:
        raise RuntimeError(f"str.{name}() of a text that is not ASCII")

    return unknown


def _item(x: Any, k: int) -> Any:
    if not -len(x) <= k < len(x):
        raise IndexError("string index out of range")
    k = k + len(x) if k < 0 else k
    return x[k : k + 1]


def _slice(x: Any, *bounds: int | None) -> Any:
    return x[slice(*bounds)]


def _items(x: Any) -> list[Any]:
    return [x[k : k + 1] for k in range(len(x))]


def _chr(n: int) -> str:
    if not 0 <= n < 256:
        raise RuntimeError(f"chr() arg not in range(256): {n}")
    return bytes([n]).decode(errors=_BYTE)


def _result(value: object) -> object:
    """Return the value. Raises UnicodeDecodeError for a string that ends within a character, and
    OverflowError for an int beyond 64 bits, which torch.jit wraps."""
    match value:
        case str():
            if not value.isascii():
                value.encode(errors=_BYTE).decode()
        case int() if not -(2**63) <= value < 2**63:
            raise OverflowError("an int beyond 64 bits, which torch.jit wraps, is a result")
        case list() | tuple():
            for part in cast("Sequence[object]", value):
                _result(part)
        case dict():
            _result([*cast("dict[object, object]", value).items()])
        case _:
            pass
    return cast("object", value)


_BYTES: Final[dict[str, tuple[Callable[..., Any], Callable[..., Any], Type]]] = {
    "add": (operator.add, operator.add, t.STR),
    "len": (len, len, t.INT),
    "getitem": (_item, _item, t.STR),
    "slice": (_slice, _slice, t.STR),
    "list": (_items, _items, ListType(t.STR)),
    "ord": (ord, ord, t.INT),
    **{
        f"str.{name}": (method(name), _of_bytes(name), result)
        for result, names in METHODS_OF.items()
        for name in names
        if name != "format"
    },
}


def _copied(value: object) -> object:
    """Return copies of the containers, as TorchScript makes them at calls from Python and back."""
    match value:
        case list():
            return [_copied(v) for v in cast("list[object]", value)]
        case dict():
            return {k: _copied(v) for k, v in cast("dict[object, object]", value).items()}
        case tuple():
            parts = tuple(map(_copied, cast("tuple[object, ...]", value)))
            make: Callable[..., object] = getattr(cast("Any", type)(value), "_make", tuple)
            return make(parts)
        case _:
            return value


def _rows() -> list[OpDef]:
    def row(name: str, run: Callable[..., Any], result: ResultType) -> OpDef:
        name = f"torchscript.{name}"
        return OpDef(name=name, run=run, result=result, effects=Effects.RAISES)

    return [
        row("truediv", _of_c(_OPERATORS.truediv, torch.div), always(t.FLOAT)),
        row("floordiv", _of_c(_OPERATORS.floordiv, _floordiv), always(t.FLOAT)),
        row("mod", _of_c(_OPERATORS.mod, torch.fmod), always(t.FLOAT)),
        row("pow", _power_of_c, always(t.FLOAT)),
        *(
            row(n, _of_c(getattr(math, n), _OTHER.get(n) or getattr(torch, n)), always(t.FLOAT))
            for n in sorted(MATH - {"pow"})
        ),
        row("result", _result, lambda operands: operands[0]),
        row("copied", _copied, lambda operands: operands[0]),
        row("text", text, always(t.STR)),
        row("format", _formatted, always(t.STR)),
        row("percent", _percent, always(t.STR)),
        row("chr", _chr, always(t.STR)),
        *(row(n, _on_bytes(run, other), always(r)) for n, (run, other, r) in _BYTES.items()),
    ]


ROWS: Final = _rows()
