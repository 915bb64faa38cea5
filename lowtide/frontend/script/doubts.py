"""Warnings about code that compiles, does what Python does, and is probably not meant.

In: compiled operands. Out: a UserWarning at the user's line, once for each line.

    x.size() == [2, 3]      False: a torch.Size is a tuple, and a tuple never equals a list
"""

from __future__ import annotations

import ast
import warnings
from typing import Any, Final

from lowtide.frontend.script.context import Context
from lowtide.ir.core import Value

_SIZES: Final = ("torch.shape", "torch.size")
_shown: dict[Any, int] = {}  # what `warnings` keeps so as to tell a line once


def size_and_list(c: Context, node: ast.Compare, a: Value, b: Value) -> None:
    """Warn about `==` and `!=` between a size and a list display, which are constant."""
    makers = [c.builder.makers.get(side) for side in (a, b)]
    names = {"" if maker is None else maker.name for maker in makers}
    if "list.make" not in names or not names.intersection(_SIZES):
        return
    place = c.frame.source.loc(node)
    text = (
        f"{place}: `{ast.unparse(node)[:60]}` always has the same result: a torch.Size is a tuple, "
        "and a tuple never equals a list; write instead: a tuple, or list(x.shape)"
    )
    warnings.warn_explicit(text, UserWarning, place.file, place.line, registry=_shown)
