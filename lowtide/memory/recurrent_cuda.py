"""nn.RNN, nn.GRU and nn.LSTM as PyTorch runs them on GPUs.

On meta tensors PyTorch takes another road. In: a call of `torch.lstm` and its kin, on meta tensors.
Out: its results, by the GPU's road; None where that is the one of meta tensors.

    cuDNN takes it    ──►  aten._cudnn_rnn, all layers at once: see cudnn
    else a step is    ──►  x[t] @ w_ih, h @ w_hh, aten._thnn_fused_lstm_cell: here

Read from what PyTorch 2.11 built with CUDA 13 calls and allocates, on the simulated GPU of
`tests/simulated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.memory.recurrent import Direction, Kept, State, is_plain, run_layers

aten = torch.ops.aten
Tensor = torch.Tensor
# The products of a step with the input and with the state; the state; biases, or None.
Cell = Callable[[Tensor, Tensor, State, Sequence[Any]], State]

_NO_BIASES: Final = (None, None)
_GRU_KEEPS: Final = 5  # numbers for each of the state: three gates, the new one, and the old one


def fused_layers(func: Any, args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """Without cuDNN; see the module's text."""
    cell = _CELLS.get(func)
    if cell is None or not is_plain(*args):
        return None
    states = args[1] if func is torch.lstm else (args[1],)
    return run_layers(_stepped(cell, bool(args[3])), *args, states=states, drop=dropout)


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """On GPUs one kernel, which keeps a mask of bools."""
    if not train or not 0 < p < 1 or not x.numel():
        return torch.dropout(x, p, train)
    return torch.native_dropout(x, p, True)[0]


def _stepped(cell: Cell, has_biases: bool) -> Direction:
    def run(
        x: Tensor, state: State, weights: Sequence[Tensor], is_reverse: bool, kept: Kept
    ) -> tuple[Tensor, State]:
        w_in, w_state, *rest = weights
        biases, projection = (rest[:2], rest[2:]) if has_biases else (_NO_BIASES, rest)
        outputs: list[Tensor] = []
        kept[f"outputs {is_reverse}"] = outputs
        steps = x.unbind(0)
        for step in reversed(steps) if is_reverse else steps:
            # Autocast casts at each step what is no parameter itself, as these views.
            h, *others = cell(step @ w_in.t(), state[0] @ w_state.t(), state, biases)
            state = (h @ projection[0].t() if projection else h, *others)
            outputs.append(state[0])
        if is_reverse:
            outputs.reverse()
        return torch.stack(outputs), state

    return run


def _lstm(given: Tensor, own: Tensor, state: State, biases: Sequence[Any]) -> State:
    h, c, _ = aten._thnn_fused_lstm_cell(given, own, state[1], *biases)
    return h, c


def _gru(given: Tensor, own: Tensor, state: State, biases: Sequence[Any]) -> State:
    return (aten._thnn_fused_gru_cell(given, own, state[0], *biases)[0],)


_CELLS: Final[dict[Any, Cell]] = {torch.lstm: _lstm, torch.gru: _gru}


def cell_results(func: Any, args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """What a fused cell or its gradient gives, on the meta device; None for any other op."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _lstm_cell(given: Tensor, _: Tensor, c: Tensor, *__: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(c), torch.empty_like(c), torch.empty_like(given)


def _lstm_cell_backward(
    _: Any, __: Any, c: Tensor, ___: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    return torch.empty_like(kept), torch.empty_like(c), _bias(kept, has_bias)


def _gru_cell(_: Tensor, __: Tensor, h: Tensor, *___: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(h), h.new_empty(h.shape[0], h.shape[1] * _GRU_KEEPS)


def _gru_cell_backward(
    cotangent: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    rows, hidden = cotangent.shape
    gates = [kept.new_empty(rows, 3 * hidden) for _ in range(2)]
    return *gates, torch.empty_like(cotangent), *(_bias(g, has_bias) for g in gates)


def _bias(gates: Tensor, has_bias: bool) -> Tensor | None:
    return gates.new_empty(gates.shape[1]) if has_bias else None


_MAKERS: Final[dict[Any, Callable[..., tuple[Tensor | None, ...]]]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
