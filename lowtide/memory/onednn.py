"""nn.LSTM as oneDNN runs it: layers, which keep a workspace for gradients.

In: a call of `torch.lstm`, on meta tensors. Out: what runs a direction of a layer, and what that
and its gradient allocate.

    direction         a layer, one way  ──►  aten.mkldnn_rnn_layer
    layer_results     aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward  ──►  empty results
    layer_scratch, layer_backward_scratch     what these touch besides

Of the workspace the forward pass touches the gates and the states of the cells, from right to left
copies of what comes in and goes out, too; the backward pass four more rows of states. What nobody
touches takes no memory. Found by measuring, PyTorch 2.13 on x86: `tests/memory/test_prediction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten
_LSTM: Final = 2  # oneDNN's number for this kind of cell
_GATES: Final = 4
_LINE: Final = 16  # floats


def takes(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> bool:
    """Dense float32 without projections."""
    is_plain = x.dtype is torch.float32 and h.shape == c.shape
    return is_plain and torch.backends.mkldnn.is_available()


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
    hidden = h.shape[-1]
    y = x.new_empty((*x.shape[:2], hidden))
    rows = _row(_GATES * hidden) + _row(hidden) + is_reverse * 2 * _wide(x, hidden)
    kept = _rows(x, rows) if _keeps(args) else 0
    return y, torch.empty_like(h), torch.empty_like(c), x.new_empty(kept, dtype=torch.uint8)


def _layer_backward(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    w_in, w_state, bias, _, h, c = args[:6]
    made = (x, w_in, w_state, bias, bias, h, c)
    return tuple(v.new_empty(v.shape) for v in made)


def _keeps(args: Sequence[Any]) -> bool:
    """Whether gradients may be asked for: the module is in training, and they are recorded."""
    return bool(args[-1]) and torch.is_grad_enabled()


def layer_scratch(args: Sequence[Any], _: Any) -> int:
    """What `aten.mkldnn_rnn_layer` allocates inside: gates or states, and the weights reordered."""
    x, hidden, is_reverse = args[0], args[5].shape[-1], args[7]
    if _keeps(args):
        return _weight_bytes(args) + _rows(x, _GATES * hidden)
    states = 3 * _wide(x, hidden) if is_reverse else _row(hidden)
    gates = _GATES * hidden if x.shape[1] == 1 else 0  # of all steps at once
    return 2 * _weight_bytes(args) + _rows(x, states + gates)


def layer_backward_scratch(args: Sequence[Any], _: Any) -> int:
    """The same for its gradient, and what that is the first to touch of the workspace."""
    x, hidden, grad = args[0], args[5].shape[-1], args[10]
    states = 3 * _wide(x, hidden) + _row(hidden)
    copied = 0 if grad is None or grad.is_contiguous() else hidden
    return 2 * _weight_bytes(args) + _rows(x, _GATES * hidden + states + copied)


def _weight_bytes(args: Sequence[Any]) -> int:
    return 4 * (args[1].numel() + args[2].numel())


def _rows(x: torch.Tensor, floats: int) -> int:
    """So many floats for each cell."""
    steps, batch, _ = x.shape
    return 4 * (steps + 1) * batch * floats


def _wide(x: torch.Tensor, hidden: int) -> int:
    return _row(max(x.shape[-1], hidden))


def _row(length: int) -> int:
    """Rows begin at a cache line, but not all at the same place of the cache."""
    padded = -(-length // _LINE) * _LINE
    return padded + _LINE if padded % 256 == 0 else padded


_MAKERS: Final[dict[Any, Callable[..., tuple[torch.Tensor, ...]]]] = {
    aten.mkldnn_rnn_layer.default: _layer,
    aten.mkldnn_rnn_layer_backward.default: _layer_backward,
}
