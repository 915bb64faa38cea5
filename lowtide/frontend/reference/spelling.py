"""Spells the objects in the compiler's tables as users write them.

In: an AST class, a typing origin, a Python object. Out: the text that stands in source.

    SYMBOLS[ast.FloorDiv]      →  "//"
    spelt(torch.nn.Parameter)  →  "torch.nn.Parameter"
"""

from __future__ import annotations

import ast
import collections
import collections.abc
import types
import typing
from typing import Any, Final

import torch

from lowtide.torch_private.torch_jit import MODULE

SYMBOLS: Final[dict[type[ast.AST], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Lt: "<",
    ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip

OUTSIDE_SYNTAX: Final[dict[type[ast.AST], str]] = {
    ast.Yield: "yield", ast.YieldFrom: "yield from", ast.Await: "await",
    ast.AsyncFor: "async for", ast.AsyncWith: "async with", ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class", ast.Try: "try", ast.Global: "global", ast.Nonlocal: "nonlocal",
    ast.Match: "match", **({ast.TryStar: "try"} if hasattr(ast, "TryStar") else {}),
}  # fmt: skip

GUARDS: Final[dict[str, str]] = {
    "value": "a constant of a module: an attribute in `__constants__` or `Final`, a function",
    "none": "whether an attribute is None",
    "same": "that two names hold the same tensor, where they did when it was compiled",
    "type": "the type of an attribute that the program assigns",
    "fits": "what types the items of such an attribute have, if it is a list, a dict or a tuple",
    "has": "which attributes a module has, where the program asks (`hasattr`)",
    "hooks": "the hooks of a module",
}

# The styles in which one generic type is written. All of a row must mean the same type.
ANNOTATIONS: Final[dict[object, tuple[str, ...]]] = {
    typing.Union: ("Union[int, str]",),
    types.UnionType: ("int | str",),
    list: ("List[int]", "list[int]"),
    collections.abc.Sequence: ("Sequence[int]",),
    collections.abc.Iterable: ("Iterable[int]", "Tuple[int, ...]", "tuple[int, ...]"),
    tuple: ("Tuple[Tensor, int]", "tuple[Tensor, int]"),
    dict: ("Dict[str, Tensor]", "dict[str, Tensor]"),
    collections.OrderedDict: ("OrderedDict[str, Tensor]",),
    collections.abc.Mapping: ("Mapping[str, Tensor]",),
    collections.abc.MutableMapping: ("MutableMapping[str, Tensor]",),
    set: ("Set[int]", "set[int]"),
    torch.futures.Future: ("torch.futures.Future[Tensor]",),
    typing.Final: ("Final[int]",),
    typing.ClassVar: ("ClassVar[int]",),
    typing.Annotated: ('Annotated[int, "…"]',),
}
SAME_AS: Final[dict[str, Any]] = {"torch": torch, "Tensor": torch.Tensor}


def spelt(obj: object) -> str:
    """Return the name by which users reach a Python object."""
    if obj in (None, typing.Any):
        return "None" if obj is None else "Any"
    if obj is type(None):
        return "NoneType"
    if isinstance(obj, torch.dtype | torch.layout):
        return str(obj)
    name = str(getattr(obj, "__name__", repr(obj)))
    owner = getattr(obj, "__self__", None)
    if isinstance(owner, type):  # `dict.fromkeys`
        return f"{spelt(owner)}.{name}"
    module = str(getattr(obj, "__module__", ""))
    for known, prefix in _PREFIXES.items():
        if module == known or module.startswith(f"{known}."):
            return f"{prefix}{name}"
    return name


_PREFIXES: Final = {
    "lowtide": "lt.",
    "torch.jit": "torch.jit.",
    "torch.utils.checkpoint": "torch.utils.checkpoint.",
    MODULE: "torch.jit.",
    "torch.futures": "torch.futures.",
    "torch.nn": "torch.nn.",
    "torch": "torch.",
    "itertools": "itertools.",
    "dataclasses": "dataclasses.",
    "functools": "functools.",
    "_functools": "functools.",
    "typing": "typing.",
    "collections": "collections.",
    "_operator": "operator.",
    "warnings": "warnings.",
    "_warnings": "warnings.",
}
