"""Runs the op `saved_product`: a PyTorch product in a recomputed section whose result was saved.

In: the saved result, and the op's operands. Out: its results. PyTorch records the op in its graph,
but the kernel that computes the product is skipped.

    %y = saved_product(%saved)
      block():
        %1 = torch.conv2d(%x, %w, …)
        yield(%1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.ir.core import Block, Op, Value
from lowtide.ir.interpret import run_block
from lowtide.torch_private.modes import OwnMode

Tensor = torch.Tensor
SAVED_PRODUCT: Final = "saved_product"
_ATEN: Final = torch.ops.aten


def _of_a_convolution(made: Tensor, x: Tensor, weight: Tensor, *given: Any) -> int:
    is_transposed = given[4]  # after the bias, stride, padding, dilation
    return 2 * (x if is_transposed else made).numel() * weight[0].numel()


def _of_matrices(made: Tensor, a: Tensor, *_: Any) -> int:
    return 2 * made.numel() * a.shape[-1]


def _added_to(made: Tensor, _: Tensor, a: Tensor, *__: Any) -> int:
    return _of_matrices(made, a)


# The products that can be saved, and their floating-point operations.
_FLOPS: Final[Mapping[object, Callable[..., int]]] = {
    _ATEN.convolution: _of_a_convolution,
    _ATEN.mm: _of_matrices,
    _ATEN.bmm: _of_matrices,
    _ATEN.addmm: _added_to,
    _ATEN.baddbmm: _added_to,
}


def saved_product(op: Op, saved: Value) -> Op:
    """Return the op that stands for `op`, whose result was saved as `saved`."""
    inner = Value(op.result.name, op.result.type)
    made = Op(name=op.name, operands=op.operands, attrs=op.attrs, results=[inner], loc=op.loc)
    end = Op(name="yield", operands=[inner])
    return Op(
        name=SAVED_PRODUCT,
        operands=[saved],
        results=[op.result],
        blocks=[Block([], [made, end])],
        loc=op.loc,
    )


def run_saved_product(op: Op, env: Mapping[Value, Any]) -> list[Any]:
    """Return the results of the op; see the module's text."""
    (block,) = op.blocks
    with _ReuseSaved(env[op.operands[0]]):
        return run_block(block, dict(env))


class Products(OwnMode):
    """A context that notes the products computed inside: results and floating-point operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[object, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        count = _FLOPS.get(func.overloadpacket)
        if count is not None:
            self.found.append((made, count(made, *args)))
        return made


class _ReuseSaved(OwnMode):
    """A context in which the first product returns the saved result instead of being computed."""

    def __init__(self, saved: Tensor) -> None:
        super().__init__()
        self.saved: Tensor | None = saved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if self.saved is not None and func.overloadpacket in _FLOPS:
            product, self.saved = self.saved.detach(), None
            return product
        return func(*args, **(kwargs or {}))
