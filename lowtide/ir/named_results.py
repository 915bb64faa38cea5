"""PyTorch's named tuples: `torch.return_types` (of `x.max(0)` and its kind), `PackedSequence`.

In: a PyTorch function's name and the fields of its result. Out: the name of the class in
`ir.python_objects`, so that compiled code gives its caller what PyTorch would.

    x.max(0)              torch.return_types.max(values=…, indices=…)
    torch.linalg.qr(a)    torch.return_types.linalg_qr(Q=…, R=…)

Invariant: the classes are known to `ir.python_objects` by their own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch.nn.utils.rnn import PackedSequence

from lowtide.ir import python_objects

RESULTS: Final[dict[str, type]] = {
    python_objects.name_of(cls): cls
    for cls in (*cast("list[type]", torch.return_types.all_return_types), PackedSequence)  # pyright: ignore
}


def class_of_result(source: str, names: Sequence[str], with_out: bool = False) -> str:
    """Return the class that the PyTorch function `source` ("Tensor.max", "torch.linalg.qr") gives
    its results in, named as `names`; "" if these are a plain tuple."""
    if not names:
        return ""
    _, _, name = source.partition(".")
    found = f"torch.return_types.{name.replace('.', '_')}{'_out' if with_out else ''}"
    known = RESULTS.get(found)
    return found if known is not None and field_names(known) == tuple(names) else ""


def field_names(cls: type) -> tuple[str, ...]:
    """Return the fields of a named tuple, the user's own or PyTorch's; none of any other class."""
    names: tuple[str, ...] = getattr(cls, "_fields", ())
    return names or (cast("Any", cls).__match_args__ if cls in RESULTS.values() else ())


def build(cls: type, elems: Sequence[Any]) -> Any:
    """Return a sequence of this class, named tuples included."""
    make: Any = getattr(cls, "_make", cls)
    return make(elems)
