"""The order in memory of the dims of a region's outputs: that of PyTorch's own results.

In: how PyTorch runs the ops of a region, the live-ins of a call. Out: an order for each output that
is not contiguous in PyTorch. The ops run on meta tensors, so nothing is computed.

    x: [8, 16, 64, 64], channels_last     y = relu(x * 2)     {y: (0, 2, 3, 1)}

This is done only where an input is not contiguous, the program names a memory format, or an op
returns a view with other strides; otherwise outputs are nearly always contiguous. The order also
decides results: `dropout` draws its mask in the order of the tensor's memory, and `view` raises
where it would have to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.execute.autograd_function import EagerRegion
from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value
from lowtide.memory import layouts
from lowtide.memory.like_cpu import LikeTheCpu
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.specialise.abstract import Abs
from lowtide.texpr.orders import Order, order_of
from lowtide.torch_private.modes import OwnMode
from lowtide.torch_private.pytree import tree_map

_TURNING: Final = frozenset(
    ("permute", "transpose", "movedim", "t", "T", "mT", "mH", "einsum", "unfold", "diagonal")
)
_WITH_GAPS: Final = frozenset(
    ("getitem", "select", "narrow", "split", "chunk", "unbind", "expand", "expand_as")
)
_VIEWS: Final = frozenset(("view", "view_as", "unflatten"))  # that raise where they cannot be views
# What tells how a tensor lies: of a part, too.
_LAYOUTS_ASKED: Final = frozenset((
    "as_strided", "data_ptr", "is_contiguous", "is_set_to", "storage", "storage_offset", "stride",
    "untyped_storage", "view", "numpy", "__array__",
))  # fmt: skip


class ViewFails(Exception):
    """Where PyTorch views a tensor, it raises instead."""


def is_plain(ops: Sequence[Op]) -> bool:
    """Is what these ops make of contiguous tensors contiguous, and no view of it refused?"""
    found = {op.name.rpartition(".")[2] for op in _all(ops)}
    return found.isdisjoint(_TURNING) and (found.isdisjoint(_VIEWS) or found.isdisjoint(_WITH_GAPS))


def _all(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for block in op.blocks:
            yield from _all(block.ops)


def asks_layouts(op: Op) -> bool:
    """Whether the op tells how its operands lie, so that their parts must have PyTorch's gaps."""
    target = str(op.attrs.get("target", "")) if op.name == "call_torch" else ""
    return op.name == "torch.view.dtype" or target.rpartition(".")[2] in _LAYOUTS_ASKED


def orders_of(
    eager: EagerRegion | None, outputs: Sequence[Abs], values: Sequence[Any]
) -> dict[Abs, Order]:
    """See the module's text; nothing of what comes of a loop, nor where PyTorch cannot tell without
    the data. Raises ViewFails where the ops do not fit how their operands lie."""
    if eager is None:
        return {}
    eager = _without_loops(eager)
    try:
        with outside_dispatch_modes(), LikeTheCpu(), _WithoutData(), torch.no_grad():
            # of a part of a tensor, which is stored without the gaps
            made = eager([_without_data(v) for v in values])
            found = [None if y is None else torch.empty_like(y) for y in made]
    except ViewFails:
        raise
    except Exception:  # whatever it is, PyTorch says so when the region is run
        return {}
    pairs = zip(outputs, found, strict=True)
    rows = ((x, order_of(y.shape, y.stride())) for x, y in pairs if y is not None)
    return {x: order for x, order in rows if order is not None}


def _without_loops(eager: EagerRegion) -> EagerRegion:
    """The ops that need no loop to be run, which may take long."""
    ops: list[Op] = []
    late: set[Value] = set()
    for op in eager.ops:
        if any(inner.name == "loop" for inner in _all([op])) or not late.isdisjoint(op.operands):
            late.update(op.results)
            late.update(x.operands[0] for x in _all([op]) if opdefs.writes(x.name))
        else:
            ops.append(op)
    outputs = (None if at is None or at[0] in late else at for at in eager.outputs)
    return replace(eager, ops=tuple(ops), outputs=tuple(outputs))


class _WithoutData(OwnMode):
    """What the ops make themselves is on the meta device, too, and lies as on the CPU."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the op."""
        args, named = tree_map(_on_meta, (args, dict(kwargs or {})))
        if func is torch.ops.aten.view.default:
            try:
                return func(*args, **named)
            except RuntimeError as why:
                raise ViewFails from why
        return layouts.as_it_lies(func, args, func(*args, **named))


def _on_meta(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("meta")
    return _without_data(x) if isinstance(x, torch.Tensor) and x.device.type != "meta" else x


def _without_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {k: _without_data(v) for k, v in entries.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_data, value))
    return value
