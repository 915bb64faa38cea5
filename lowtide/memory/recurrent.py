"""nn.RNN, nn.GRU and nn.LSTM as PyTorch runs them on the CPU.

On meta tensors PyTorch takes another road, which keeps less: the input's part of the gates is made
step by step there, on the CPU for all steps at once. In: a call of `torch.lstm`, `torch.gru`,
`torch.rnn_tanh` or `torch.rnn_relu`, on meta tensors. Out: its results, by the CPU's road; None
where that is not known.

    torch.gru(x, …)    ──►  per layer and direction: linear(x, w_ih); per step linear(h, w_hh), …
    torch.lstm(x, …)   ──►  the same, or aten.mkldnn_rnn_layer where oneDNN takes it (see onednn)

Packed sequences, whose calls look otherwise, go the road of meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

from lowtide.memory import onednn
from lowtide.memory.linear import linear

Tensor = torch.Tensor
State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM
Cell = Callable[[Tensor, State, Sequence[Tensor], bool], State]
Kept = dict[str, Any]  # what the first direction of a layer leaves until the second is done
Direction = Callable[[Tensor, State, Sequence[Tensor], bool, Kept], tuple[Tensor, State]]


def layers(func: Any, args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """See the module's text."""
    cell = _CELLS.get(func)
    if cell is None or not is_plain(*args):
        return None
    states = args[1] if func is torch.lstm else (args[1],)
    if func is torch.lstm and onednn.takes(args[0], *states):
        return run_layers(onednn.direction(*args), *args, states=states, dense=True)
    return run_layers(_stepped(cell, bool(args[3])), *args, states=states)


def is_plain(x: Tensor, hx: Any, *_: Any) -> bool:
    """Whether the call is of tensors of the meta device that are not packed."""
    is_packed = isinstance(hx, Tensor) and hx.dim() == 1  # the sizes of its batches
    return x.is_meta and x.numel() > 0 and not is_packed


def run_layers(
    run: Direction,
    x: Tensor,
    _: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    states: Sequence[Tensor],
    dense: bool = False,
    drop: Callable[[Tensor, float, bool], Tensor] = torch.dropout,
) -> tuple[Tensor, ...]:
    """The layers of a call, each direction of each by `run`; `dense`: of an input in order, and a
    layer's results are held until the next one's take their places, as PyTorch does for oneDNN."""
    if batch_first:
        x = x.transpose(0, 1)
    x = x.contiguous() if dense else x
    directions = 2 if bidirectional else 1
    per = len(weights) // (num_layers * directions)
    last: list[State] = []
    found: list[Any] = [None] * directions
    for layer in range(num_layers):
        kept: Kept = {}
        for direction in range(directions):
            k = layer * directions + direction
            own = weights[k * per : (k + 1) * per]
            found[direction], state = run(x, tuple(s[k] for s in states), own, direction == 1, kept)
            last.append(state)
        x = found[0] if directions == 1 else torch.cat(found, -1)
        if not dense:
            found = [None] * directions
        kept.clear()
        if dropout and train and layer < num_layers - 1:
            x = drop(x, dropout, True)
    ends = [torch.stack(s) for s in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x), *ends


def _stepped(cell: Cell, has_biases: bool) -> Direction:
    """A direction of a layer, cell by cell."""

    def run(
        x: Tensor, state: State, weights: Sequence[Tensor], is_reverse: bool, kept: Kept
    ) -> tuple[Tensor, State]:
        w_in, w_state, *rest = weights
        biases = rest[:2] if has_biases else [None, None]
        gates = kept["gates"] = linear(x, w_in, biases[0]).unbind(0)
        own = [w_state, *biases[1:], *rest[2 if has_biases else 0 :]]
        outputs: list[Tensor] = []
        kept[f"outputs {is_reverse}"] = outputs
        for gate in reversed(gates) if is_reverse else gates:
            state = cell(gate, state, cast("Sequence[Tensor]", own), has_biases)
            outputs.append(state[0])
        if is_reverse:
            outputs.reverse()
        return torch.stack(outputs), state

    return run


def _rnn(nonlinearity: Callable[[Tensor], Tensor]) -> Cell:
    def cell(gate: Tensor, state: State, weights: Sequence[Tensor], _: bool) -> State:
        return (nonlinearity(linear(state[0], *weights).add_(gate)),)

    return cell


def _gru(gate: Tensor, state: State, weights: Sequence[Tensor], _: bool) -> State:
    (h,) = state
    given, own = torch.unsafe_chunk(gate, 3, 1), torch.unsafe_chunk(linear(h, *weights), 3, 1)
    reset = own[0].add_(given[0]).sigmoid_()
    update = own[1].add_(given[1]).sigmoid_()
    new = given[2].add(own[2].mul_(reset)).tanh_()
    return ((h - new).mul_(update).add_(new),)


def _lstm(gate: Tensor, state: State, weights: Sequence[Tensor], has_biases: bool) -> State:
    h, c = state
    w_state, bias, *projection = weights
    gates = torch.unsafe_chunk(linear(h, w_state, bias).add_(gate), 4, 1)
    entering, forgetting = gates[0].sigmoid_(), gates[1].sigmoid_()
    cell, leaving = gates[2].tanh_(), gates[3].sigmoid_()
    c = (forgetting * c).add_(entering * cell)
    h = leaving * c.tanh()
    return (h @ projection[0].t() if projection else h), c


_CELLS: Final[dict[Any, Cell]] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: _rnn(torch.tanh),
    torch.rnn_relu: _rnn(torch.relu),
}
