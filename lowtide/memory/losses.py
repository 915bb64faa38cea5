"""What PyTorch's losses allocate on the CPU: an upper bound.

In: an ATen op, its arguments and its result, on meta tensors. Out: bytes beyond the result.

    results                  ops that keep more than they show, or have no meta kernel
    huber_loss(x, y)         what is summed, where the loss is one number
    mse_loss(x, y), halves   their mean is taken in single precision
    ctc_loss                 the probabilities of the other direction

Found by measuring, PyTorch 2.13 on x86: `tests/memory/test_prediction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.memory.convolution import nbytes

aten = torch.ops.aten
Tensor = torch.Tensor
Bound = Callable[[Sequence[Any], Any], int]
_MEAN: Final = 1  # the number of this reduction


def results(func: Any, args: Sequence[Any]) -> Any:
    """What an op gives, on the meta device; None for any op that shows there what it keeps."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _soft_margin(x: Tensor, _: Tensor, reduction: int = _MEAN) -> Tensor:
    """One number lies where the loss of each element was."""
    of_each = x.new_empty(x.shape)
    return of_each.view(-1)[0] if reduction and x.numel() else of_each


def _ctc(log_probs: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Targets are as long as they can be: no longer than what they are compared with."""
    steps, batch, _labels = log_probs.shape
    longest = min(targets.shape[-1], steps)
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _like_operand(_: Tensor, x: Tensor, *__: Any) -> Tensor:
    """A gradient."""
    return torch.empty_like(x)


def _loss(of_each: int, of_one: int, reduction: int) -> Bound:
    """Copies of the operand where a loss is for each element, or one number; the mean of half
    precision in single. `reduction`: the argument that tells."""

    def bound(args: Sequence[Any], _: Any) -> int:
        x = args[0]
        how = args[reduction] if len(args) > reduction else _MEAN
        single = 4 * x.numel() if how == _MEAN and x.itemsize < 4 else 0
        return (of_one if how else of_each) * nbytes(x) + single

    return bound


def _twice(args: Sequence[Any], _: Any) -> int:
    return 2 * nbytes(args[1])


def _other_direction(args: Sequence[Any], _: Any) -> int:
    """As much again as the forward pass has kept."""
    return nbytes(args[6])


_MAKERS: Final[dict[Any, Callable[..., Any]]] = {
    aten.soft_margin_loss.default: _soft_margin,
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten._ctc_loss_backward.default: _like_operand,
    aten._ctc_loss_backward.Tensor: _like_operand,
    aten.multi_margin_loss_backward.default: _like_operand,
    aten.multilabel_margin_loss_backward.default: _like_operand,
}

BOUNDS: Final[dict[Any, Bound]] = {
    aten.binary_cross_entropy_with_logits.default: _loss(1, 2, 4),
    aten.huber_loss.default: _loss(0, 1, 2),
    aten.mse_loss.default: _loss(0, 0, 2),
    aten.smooth_l1_loss.default: _loss(0, 0, 2),
    aten.soft_margin_loss.default: _loss(0, 0, 2),
    aten.binary_cross_entropy.default: _loss(0, 0, 3),
    aten.soft_margin_loss_backward.default: _twice,
    aten._ctc_loss_backward.default: _other_direction,
    aten._ctc_loss_backward.Tensor: _other_direction,
}
