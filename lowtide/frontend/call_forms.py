"""Decides whether PyTorch accepts a call of this form: so many arguments, of these types, by these
names.

In: a source name and the types of the arguments. Out: a bool.

    torch.sum(x, 1, keepdim=True)   True
    torch.sum(x, keepdim=True)      False: no overload has `keepdim` without `dim`
    F.softmax(x, axis=1)            False

Records of `lowtide.ops` join overloads that PyTorch's parser keeps apart. So its parser is called
once for each form, with a meta tensor and numbers in place of the arguments. A call that it does
not take is left to PyTorch, which raises its own TypeError when the call runs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch

from lowtide.ir import types as t
from lowtide.ir.interpret import callable_of
from lowtide.ir.types import ListType, OptionalType, TupleType, Type
from lowtide.torch_private.modes import NoFunctionModes, no_dispatch_modes

_SAMPLES: Final[dict[Type, object]] = {
    t.INT: 1,
    t.FLOAT: 0.5,
    t.BOOL: True,
    t.STR: "none",
    t.NONE: None,
    t.DTYPE: torch.float32,
    t.DEVICE: torch.device("meta"),
    t.LAYOUT: torch.strided,
    t.MEMORY_FORMAT: torch.contiguous_format,
}
# What the parser says of a form, whatever the values are.
_NOT_TAKEN: Final = re.compile(
    r"invalid combination of arguments|unexpected keyword argument|missing \d+ required"
    r"|takes (no|\d+|from|at most|exactly)\b.* argument|doesn't apply to a"
    r"|argument '\w+'.* must be .*(, not |element of type NoneType)"
)


def is_taken(source: str, args: Sequence[Type], keywords: Mapping[str, Type]) -> bool:
    """Return whether PyTorch takes the call; True also where the types leave that open."""
    return _is_taken(source, tuple(args), tuple(keywords.items()))


@cache
def _is_taken(source: str, args: tuple[Type, ...], keywords: tuple[tuple[str, Type], ...]) -> bool:
    try:
        given = [_sample(a) for a in args]
        named = {k: _sample(v) for k, v in keywords}
    except LookupError:
        return True
    fn = callable_of(source)
    if not callable(fn):  # a property
        return True
    with torch.no_grad(), NoFunctionModes(), no_dispatch_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fn(*given, **named)
        except TypeError as error:
            return _NOT_TAKEN.search(str(error)) is None
        except Exception:  # of the values, which are not the user's
            return True
    return True


def _sample(type_: Type) -> Any:
    """Return a value of the type; LookupError if it has no example here."""
    match type_:
        case t.TENSOR:
            return torch.ones((1, 1), device="meta")
        case OptionalType(elem):
            return _sample(elem)
        case ListType(elem):
            return [_sample(elem)] * 2
        case TupleType(elems):
            return tuple(_sample(e) for e in elems)
        case _:
            return _SAMPLES[type_]
