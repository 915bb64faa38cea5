"""Types in an archive's code → annotations of Python.

In: the AST of a type, and how the archive's own classes are found. Out: an annotation, as a user
would write it; None where nothing can be said (modules and interfaces, which the program knows).

    Optional[Tensor]                  →  Optional[torch.Tensor]
    List[__torch__.net.Point]         →  List[Point], the class made for it
    number                            →  Union[int, float, complex]
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Callable
from typing import Any, Final

import torch

_PLAIN: Final[dict[str, Any]] = {
    "Tensor": torch.Tensor,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "complex": complex,
    "NoneType": type(None),
    "None": type(None),
    "number": typing.Any,
    "Scalar": typing.Any,
    "Any": typing.Any,
    "Device": torch.device,
    "Generator": torch.Generator,
    "Stream": typing.Any,
    "AnyListType": list,
    "AnyTupleType": tuple,
    "list": list,
    "tuple": tuple,
}
_GENERIC: Final[dict[str, Any]] = {
    "Optional": typing.Optional,
    "List": typing.List,  # noqa: UP006
    "Dict": typing.Dict,  # noqa: UP006
    "Tuple": typing.Tuple,  # noqa: UP006
    "Union": typing.Union,
    "Final": typing.Final,
    "Future": torch.futures.Future,
    "Await": torch.futures.Future,
}

Find = Callable[[str, ast.AST], Any]  # a class of the archive by its dotted name


class Unknown(Exception):
    """A type that is none of the language's; the text names it."""


def annotation(node: ast.expr, find: Find) -> Any:
    """Return the annotation; None for a module or an interface. Raises Unknown."""
    match node:
        case ast.Constant(None):
            return type(None)
        case ast.Name(id) if id in _PLAIN:
            return _PLAIN[id]
        case ast.Attribute():
            return find(ast.unparse(node), node)
        case ast.Subscript(ast.Name(name), ast.Tuple(elts)) if name in _GENERIC:
            return _made(name, [annotation(e, find) for e in elts])
        case ast.Subscript(ast.Name(name), elem) if name in _GENERIC:
            return _made(name, [annotation(elem, find)])
        case _:
            raise Unknown(ast.unparse(node)[:80])


def _made(name: str, args: list[Any]) -> Any:
    if any(a is None for a in args):
        return None
    if name == "Tuple" and not args:
        return typing.Tuple[()]  # noqa: UP006
    if name == "Final":
        return args[0]
    try:
        return _GENERIC[name][tuple(args) if len(args) != 1 else args[0]]
    except TypeError as error:  # such as a Dict of one type
        raise Unknown(f"{name} of {len(args)}") from error
