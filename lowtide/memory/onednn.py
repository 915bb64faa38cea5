"""nn.LSTM as oneDNN runs it: layers, which keep a workspace for gradients.

In: a call of `torch.lstm`, on meta tensors. Out: what runs a direction of a layer, and what that
and its gradient allocate.

    direction         a layer, one way  ──►  aten.mkldnn_rnn_layer
    layer_results     aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward  ──►  empty results
    layer_scratch, layer_backward_scratch     what these touch besides

Of the workspace the forward pass touches the gates and the states of the cells, from right to left
copies of what comes in and goes out, too; the backward pass four more rows of states. What nobody
touches takes no memory. In bfloat16 the workspace has that dtype, and gradients are in float32, so
that a cotangent is copied; processors without products of bfloat16 sum the gates beside them. Found
by measuring, PyTorch 2.13 on x86, those without by oneDNN's own switch: `tests/memory/test_onednn`,
`test_autocast_peaks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten
_LSTM: Final = 2  # oneDNN's number for this kind of cell
_GATES: Final = 4
_LINE_BYTES: Final = 64
_SUM_BYTES: Final = 4  # whatever the operands are


def takes(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> bool:
    """Dense float32 without projections, or bfloat16 where oneDNN has it."""
    if h.shape != c.shape or not torch.backends.mkldnn.is_available():
        return False
    return x.dtype is torch.float32 or (x.dtype is torch.bfloat16 and _has_bfloat16())


def direction(
    _: Any,
    __: Any,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
    """What runs a direction of a layer, for such a call of `torch.lstm`."""
    keeps = torch.is_grad_enabled()

    def run(
        x: torch.Tensor,
        state: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        is_reverse: bool,
        _: object,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        biases = [] if has_biases else [w.new_zeros(w.shape[0]) for w in weights]
        h, c = (s.contiguous() for s in state)
        y, hy, cy, *_ = aten.mkldnn_rnn_layer(
            x,
            *weights,
            *biases,
            h,
            c,
            is_reverse,
            (),
            _LSTM,
            h.shape[-1],
            num_layers,
            has_biases,
            bidirectional,
            batch_first,
            keeps,
        )
        return y, (hy, cy)

    return run


def layer_results(func: Any, args: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """What a layer or its gradient gives, on the meta device; None for any other op."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _layer(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    h, c, is_reverse = args[4], args[5], args[6]
    hidden, each = h.shape[-1], x.itemsize
    y = x.new_empty((*x.shape[:2], hidden))
    rows = _row(_GATES * hidden, each) + _row(hidden, each) + is_reverse * 2 * _wide(x, h, each)
    kept = _cells(x) * rows if _keeps(args) else 0
    return y, torch.empty_like(h), torch.empty_like(c), x.new_empty(kept, dtype=torch.uint8)


def _layer_backward(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    w_in, w_state, bias, _, h, c = args[:6]
    made = (x, w_in, w_state, bias, bias, h, c)
    return tuple(v.new_empty(v.shape, dtype=torch.float32) for v in made)


def _keeps(args: Sequence[Any]) -> bool:
    """Whether gradients may be asked for: the module is in training, and they are recorded."""
    return bool(args[-1]) and torch.is_grad_enabled()


def layer_scratch(args: Sequence[Any], _: Any) -> int:
    """What `aten.mkldnn_rnn_layer` allocates inside: gates or states, and the weights reordered."""
    x, h, is_reverse = args[0], args[5], args[7]
    gates = _SUM_BYTES * _GATES * h.shape[-1]  # of all steps at once
    is_fused = _is_fused(x) and x.shape[1] > 1
    if _keeps(args):
        return _weight_bytes(args) + (0 if is_fused else _cells(x) * gates)
    copies = 2 * _wide(x, h, x.itemsize) if is_reverse else 0
    rows = copies + _row(h.shape[-1], x.itemsize)
    is_at_once = x.shape[1] == 1 if x.itemsize == _SUM_BYTES else not is_fused
    return 2 * _weight_bytes(args) + _cells(x) * (rows + is_at_once * gates)


def layer_backward_scratch(args: Sequence[Any], _: Any) -> int:
    """The same for its gradient, and what that is the first to touch of the workspace."""
    x, h, grad = args[0], args[5], args[10]
    hidden = h.shape[-1]
    rows = 3 * _wide(x, h, _SUM_BYTES) + _row(hidden, _SUM_BYTES)
    if not _is_fused(x):
        rows += x.itemsize * _GATES * hidden
    if grad is not None:
        is_wide = grad.itemsize == _SUM_BYTES
        rows += 0 if grad.is_contiguous() else grad.itemsize * hidden
        rows += 0 if is_wide else _SUM_BYTES * hidden
    return 2 * _weight_bytes(args) + _cells(x) * rows


def _weight_bytes(args: Sequence[Any]) -> int:
    return args[1].itemsize * (args[1].numel() + args[2].numel())


def _cells(x: torch.Tensor) -> int:
    """Of which there are states; gates have a step less."""
    steps, batch, _ = x.shape
    return (steps + 1) * batch


def _wide(x: torch.Tensor, h: torch.Tensor, itemsize: int) -> int:
    return _row(max(x.shape[-1], h.shape[-1]), itemsize)


def _row(length: int, itemsize: int) -> int:
    """Bytes: rows begin at a cache line, but not all at the same place of the cache."""
    line = _LINE_BYTES // itemsize
    padded = -(-length // line) * line
    return itemsize * (padded + line if padded % 256 == 0 else padded)


def _is_fused(x: torch.Tensor) -> bool:
    """Whether gates are summed within the kernel, step by step, in a gradient also of one row."""
    return x.dtype is torch.bfloat16 and multiplies_bfloat16()


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether the processor does; where it does not, oneDNN keeps sums in float32 aside."""
    return torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]


@functools.cache
def _has_bfloat16() -> bool:
    """Whether PyTorch gives it to oneDNN on this processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


_MAKERS: Final[dict[Any, Callable[..., tuple[torch.Tensor, ...]]]] = {
    aten.mkldnn_rnn_layer.default: _layer,
    aten.mkldnn_rnn_layer_backward.default: _layer_backward,
}
