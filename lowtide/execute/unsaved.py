"""Finds inputs that the backward pass of a region reads, but that of PyTorch does not.

In: a function that runs the ops in PyTorch, the region's gradient, the live-ins of a call. Out:
names of inputs.

    y = x @ q.clone()        PyTorch saves the clone; the region would save q
    q.add_(1)                the caller's write, which raises no error in PyTorch
    y.sum().backward()

Such an input (a queue, a mask, a target) is copied in the forward pass, if the caller may write it
and it wants no gradient. The ops run on meta tensors, and a hook notes the tensors that they save.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from lowtide.execute.autograd_function import EagerRegion, item
from lowtide.execute.gradient import Gradient
from lowtide.ir.core import Op, Value
from lowtide.memory.like_device import LikeTheCpu
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.specialise.abstract import Place
from lowtide.torch_private.tensors import storage_of


def unsaved(
    eager: EagerRegion,
    gradient: Gradient,
    places: Mapping[str, Place],
    live_ins: Sequence[Value],
    lent: Container[Value],
    values: Sequence[Any],
) -> frozenset[str]:
    """Return the names of such inputs; none if PyTorch cannot tell without the data, or only by
    running a whole loop. `lent`: values that the caller may write."""
    candidates = [
        n for n in gradient.saved_inputs
        if n not in gradient.wanted and live_ins[places[n].position] in lent
    ]  # fmt: skip
    if not candidates or any(map(_has_loop, eager.ops)):
        return frozenset()
    saved: set[int] = set()

    def note(x: torch.Tensor) -> torch.Tensor:
        saved.add(storage_of(x))
        return x

    try:
        with outside_dispatch_modes(), LikeTheCpu(), torch.enable_grad():
            given = [_without_data(v) for v in values]
            with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
                made = eager(given)
    except Exception:  # PyTorch raises it, if it matters, when the region runs
        return frozenset()
    del made
    stands = {n: item(given[places[n].position], places[n].path) for n in candidates}
    return frozenset(n for n, x in stands.items() if storage_of(x) not in saved)


def _has_loop(op: Op) -> bool:
    return op.name == "loop" or any(map(_has_loop, (o for b in op.blocks for o in b.ops)))


def _without_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strides, dtype = value.stride(), value.dtype
        found = torch.empty_strided(value.shape, strides, dtype=dtype, device="meta")
        return found.requires_grad_(value.requires_grad)
    if type(value) is dict:
        return {k: _without_data(v) for k, v in value.items()}  # pyright: ignore
    if type(value) in (list, tuple):
        return type(value)(map(_without_data, value))
    return value
