"""In which order the dims of a region's outputs lie in memory: as those of PyTorch's own results.

In: how PyTorch runs the ops of a region, the live-ins of a call. Out: an order for each output that
has one of its own. The ops are run on meta tensors, so nothing is computed.

    x: [8, 16, 64, 64], channels_last     y = relu(x * 2)     {y: (0, 2, 3, 1)}

It is asked only where an input is not contiguous, the program says how a tensor is to lie, or an op
turns its dims: what else comes of an op is nearly always contiguous. It shows: masks of `dropout`
are drawn in the order in which a tensor lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from lowtide.ir.core import Op
from lowtide.memory import layouts
from lowtide.memory.like_cpu import LikeTheCpu
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.pipeline.abstract import Abs
from lowtide.pipeline.recording import EagerRegion
from lowtide.texpr.orders import Order, order_of

_TURNING: Final = frozenset(
    ("permute", "transpose", "movedim", "t", "T", "mT", "einsum", "unfold", "diagonal")
)


def turns(ops: Iterable[Op]) -> bool:
    """Does one of these give a view whose dims lie in another order?"""
    return any(
        op.name.rpartition(".")[2] in _TURNING or any(turns(b.ops) for b in op.blocks) for op in ops
    )


def orders_of(
    eager: EagerRegion | None, outputs: Sequence[Abs], values: Sequence[Any]
) -> dict[Abs, Order]:
    """See the module's text; nothing where PyTorch cannot tell without the data."""
    if eager is None or any(op.name == "loop" for op in eager.ops):  # they may take long
        return {}
    try:
        with outside_dispatch_modes(), LikeTheCpu(), _WithoutData(), torch.no_grad():
            # of a part of a tensor, which is stored without the gaps
            made = eager([_without_data(v) for v in values])
            found = [None if y is None else torch.empty_like(y) for y in made]
    except Exception:  # whatever it is, PyTorch says so when the region is run
        return {}
    pairs = zip(outputs, found, strict=True)
    rows = ((x, order_of(y.shape, y.stride())) for x, y in pairs if y is not None)
    return {x: order for x, order in rows if order is not None}


class _WithoutData(TorchDispatchMode):
    """What the ops make themselves is on the meta device, too, and lies as on the CPU."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the op."""
        args, named = cast("Any", tree_map(_on_meta, (args, dict(kwargs or {}))))
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
