"""Meta results of ops for which PyTorch has no meta kernel, or one that gives other strides.

In: an ATen op and its arguments, on the meta device. Out: empty results with the shapes, strides
and dtypes that the CPU gives; None for ops whose meta kernel is right.

    results(aten.soft_margin_loss.default, (x, y))     x: [N], y: [N]  →  []
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
_MEAN: Final = 1  # the argument `reduction` of a loss in ATen


def results(func: Any, args: Sequence[Any]) -> Any:
    """Return the meta results, or None; see the module's text."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _attention(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, heads, length, _width = q.shape
    single = torch.float32 if q.itemsize < 4 else q.dtype
    return _by_heads(q), q.new_empty((batch, length, heads), dtype=single).transpose(1, 2)


def _attention_backward(_: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(map(_by_heads, given[:3]))


def _by_heads(x: Tensor) -> Tensor:
    """Return a tensor like x: [batch, heads, length, width], whose memory is in the order [batch,
    length, heads, width]."""
    batch, heads, length, width = x.shape
    return x.new_empty((batch, length, heads, width)).transpose(1, 2)


def _native_attention(q: Tensor, k: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """Return the fused op that `nn.MultiheadAttention` runs if no gradients are recorded."""
    heads = given[2]
    needs, averages = (*given[8:10], True, True)[:2]
    batch, length, _ = q.shape
    dims = (batch, length, k.shape[1]) if averages else (batch, heads, length, k.shape[1])
    return torch.empty_like(q), q.new_empty(dims if needs else 0)


def _like_first(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _like_second(_: Tensor, x: Tensor, *__: Any) -> Tensor:
    return torch.empty_like(x)


def _soft_margin(x: Tensor, _: Tensor, reduction: int = _MEAN) -> Tensor:
    """A reduced loss is a view of the losses of all elements."""
    losses = x.new_empty(x.shape)
    return losses.view(-1)[0] if reduction and x.numel() else losses


def _ctc(log_probs: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return the results, with the longest target taken as the largest possible one, since it
    depends on the data."""
    steps, batch, _labels = log_probs.shape
    longest = min(targets.shape[-1], steps)
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _lstsq(a: Tensor, b: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """The solution is a view of the first rows of a copy of the right side."""
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]
    right = (b.unsqueeze(-1) if is_vector else b).shape
    batch: Any = cast("Any", torch).broadcast_shapes(a.shape[:-2], right[:-2])
    copy = b.new_empty((*batch, max(rows, columns), right[-1]))
    solution = copy[..., :columns, :]
    rank = a.new_empty(a.shape[:-2], dtype=torch.int64)
    nothing = a.new_empty(0)
    return (solution.squeeze(-1) if is_vector else solution), nothing, rank, nothing.clone()


_MAKERS: Final[dict[Any, Callable[..., Any]]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten._native_multi_head_attention.default: _native_attention,
    aten._transformer_encoder_layer_fwd.default: _like_first,
    aten.linalg_lstsq.default: _lstsq,
    aten.soft_margin_loss.default: _soft_margin,
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten._ctc_loss_backward.default: _like_second,
    aten._ctc_loss_backward.Tensor: _like_second,
    aten.multi_margin_loss_backward.default: _like_second,
    aten.multilabel_margin_loss_backward.default: _like_second,
}
