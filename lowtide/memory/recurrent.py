"""nn.RNN, nn.GRU and nn.LSTM in dry runs: all layers as one op, and an upper bound of its memory.

On meta tensors PyTorch decomposes them into steps, which no device does. In: a call of
`torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` on meta tensors. Out: its results.
It also allocates the op's own memory, for each step of each sequence:

    during the op        the gates, the input and a result of one layer
    saved for backward   for each layer and direction, `_SAVED` times the state and the input
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import torch

Tensor = torch.Tensor
_GATES: Final = {torch.lstm: 4, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}
_SAVED: Final = {torch.lstm: 8, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}


class _Form(NamedTuple):
    """The facts on which the op's memory depends. `saved`: 0 if no gradients are recorded. `dtype`:
    of the results."""

    gates: int
    saved: int
    layers: int
    directions: int
    dtype: torch.dtype


def layers(func: Any, args: Sequence[Any], device_type: str) -> tuple[Tensor, ...] | None:
    """Return the results of the call; None for any other function. `device_type`: "cpu" or "cuda",
    which the meta tensors stand for."""
    if func not in _GATES or not args[0].is_meta:
        return None
    x, *given = args
    if isinstance(given[0], torch.Tensor) and given[0].dim() == 1:
        given = given[1:]  # a packed sequence has its batch sizes first
    states, weights, _, count, _, _, both = given[:7]
    states = states if func is torch.lstm else (states,)
    operands = x, *states, *weights
    records = torch.is_grad_enabled() and any(v.requires_grad for v in operands)
    form = _Form(
        gates=_GATES[func],
        saved=_SAVED[func] if records else 0,
        layers=count,
        directions=2 if both else 1,
        dtype=_dtype(func, x, device_type),
    )
    return cast("tuple[Tensor, ...]", _Layers.apply(form, len(states), *operands))


def _dtype(func: Any, x: Tensor, device_type: str) -> torch.dtype:
    """Return the dtype of the results: autocast's, except for the CPU's GRU, whose state is
    float32."""
    is_wide = func is torch.gru and device_type == "cpu"
    if is_wide or x.dtype is not torch.float32 or not torch.is_autocast_enabled(device_type):
        return x.dtype
    return torch.get_autocast_dtype(device_type)


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: _Form, states: int, *operands: Tensor) -> tuple[Tensor, ...]:
        x, h, *rest = operands
        hidden = (rest[0] if states > 1 else h).shape[-1]
        inputs = [x.shape[-1], *[form.directions * h.shape[-1]] * (form.layers - 1)]
        wide = [max(hidden, n) for n in inputs]
        cells = x.shape[:-1]
        moment = x.new_empty((*cells, form.gates * hidden + 2 * max(wide)))
        between = sum(inputs[1:]) if form.saved else max(inputs[1:], default=0)
        layers = x.new_empty((*cells, between))
        y = x.new_empty((*cells, form.directions * h.shape[-1]), dtype=form.dtype)
        if form.saved:
            numbers = form.directions * form.saved * sum(hidden + n for n in wide)
            ctx.reserve = x.new_empty((*cells, numbers)), layers
            ctx.save_for_backward(*operands)
            ctx.moment = moment.shape
        ends = (torch.empty_like(v, dtype=form.dtype) for v in operands[1 : 1 + states])
        return y, *ends

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors
        moment = operands[0].new_empty(ctx.moment)
        needed = zip(operands, ctx.needs_input_grad[2:], strict=True)
        made = [torch.empty_like(x) if needs else None for x, needs in needed]
        del moment
        return None, None, *made
