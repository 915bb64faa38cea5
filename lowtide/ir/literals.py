"""Constants as text: what `const {value=...}` and every other attribute may hold.

In: None, bool, int, float, complex, str, a torch dtype, device, layout or memory format, or a tuple
of these. Out: Python text that reads back to the same constant; nothing is evaluated.

    print_literal((1, torch.float32, float("inf")))  ==  "(1, torch.float32, inf)"
"""

from __future__ import annotations

import ast
import math
from typing import cast

import torch

_TORCH_KINDS = (torch.dtype, torch.layout, torch.memory_format)


def is_literal(value: object) -> bool:
    """Whether a constant can hold this."""
    if isinstance(value, tuple):
        return all(is_literal(v) for v in cast("tuple[object, ...]", value))
    plain = (bool, int, float, complex, str, type(None))
    return type(value) in plain or isinstance(value, (torch.device, *_TORCH_KINDS))


def same_literal(a: object, b: object) -> bool:
    """Whether both are the same constant: 1, 1.0 and True differ, NaN equals NaN."""
    return print_literal(a) == print_literal(b)


def print_literal(value: object) -> str:
    """The text of a constant."""
    if isinstance(value, tuple):
        parts = [print_literal(v) for v in cast("tuple[object, ...]", value)]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    return repr(value)


def parse_literal(text: str) -> object:
    """The constant that this text prints; raises ValueError."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, AttributeError) as error:
        raise ValueError(f"not a constant: {text!r}") from error


def parse_attrs(text: str) -> dict[str, object]:
    """The attributes in "name=literal, name=literal"; raises ValueError."""
    try:
        call = ast.parse(f"attrs({text})", mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not attributes: {text!r}") from error
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError(f"not attributes: {text!r}")
    return {str(k.arg): _read(k.value) for k in call.keywords}


_NAMES = {"inf": math.inf, "nan": math.nan}


def _read(node: ast.expr) -> object:
    match node:
        case ast.Constant(value):
            return value
        case ast.Tuple(elts):
            return tuple(_read(e) for e in elts)
        case ast.UnaryOp(ast.USub(), operand):
            value = _read(operand)
            if isinstance(value, int | float | complex):
                return -value
        case ast.Call(ast.Name("complex"), [real, imaginary], []):
            parts = _read(real), _read(imaginary)
            if isinstance(parts[0], float) and isinstance(parts[1], float):
                return complex(parts[0], parts[1])
        case ast.Name(id) if id in _NAMES:
            return _NAMES[id]
        case ast.Attribute(ast.Name("torch"), attr):
            found: object = getattr(torch, attr)
            if isinstance(found, _TORCH_KINDS):
                return found
        case ast.Call(ast.Name("device"), [ast.Constant(str(name))], []):
            return torch.device(name)
        case _:
            pass
    raise ValueError(f"not a constant: {ast.unparse(node)!r}")
