"""Recurrent layers over whole sequences, as `torch.nn.LSTM` and its kin call them, where there is
no library: each layer and direction is a recurrence of cells along time.

    torch.rnn_tanh(x, h0, (w, u), …)   →   delay d[t, n, k] = y[t - 1, n, k] from h0[n, k]
                                           y[t] = tanh(x[t] @ w.T + d[t] @ u.T)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowtide.ir.effects import Effects
from lowtide.ops.cells import gru_step, lstm_step, plain_step
from lowtide.ops.contractions import lower_linear
from lowtide.ops.joins import lower_cat, lower_stack
from lowtide.ops.library import LIBRARY, require_kernels, require_wide_floats
from lowtide.ops.operands import is_list
from lowtide.ops.registry import op
from lowtide.ops.scans import Carry
from lowtide.ops.slicing import lower_select
from lowtide.ops.views import permute
from lowtide.texpr.build import Builder, Unsupported, Val

# What is carried after a step, of the products of the input and of the state, and what was carried.
Step = Callable[[Builder, Val, Val, Sequence[Val]], list[Val]]


def _layers(step: Step, states: int) -> Callable[..., list[Val]]:
    def lower(
        b: Builder,
        x: Val,
        hx: Any,
        params: Any,
        has_biases: Any,
        num_layers: Any,
        dropout: Any,
        train: Any,
        bidirectional: Any,
        batch_first: Any,
    ) -> list[Val]:
        """Return the outputs of the last layer, and the states after the last step."""
        require_kernels(b)
        given: list[Val] = list(hx) if is_list(hx) else [hx]
        weights: list[Val] = list(params)
        require_wide_floats(x, *given, *weights)
        layers, ways = b.static_int(num_layers), 2 if bidirectional is True else 1
        each = 4 if has_biases is True else 2
        if len(weights) != layers * ways * each or len(given) != states:
            raise Unsupported("a recurrent layer with projections")
        if train is not False and dropout != 0 and layers > 1:
            raise Unsupported("dropout between recurrent layers")
        if x.ndim != 3 or any(h.ndim != 3 for h in given):
            raise b.error("a recurrent layer of other ranks")
        if batch_first is True:
            x = permute(b, x, [1, 0, 2])
        if not all(b.at_least(n, 1) for n in x.shape):
            raise Unsupported("a recurrent layer of nothing")
        for h in given:
            b.require_equal(h.shape[0], layers * ways, "as many states as layers")
            b.require_equal(h.shape[1], x.shape[1], "batches differ")
        ends: list[list[Val]] = [[] for _ in given]
        for layer in range(layers):
            made: list[Val] = []
            for way in range(ways):
                k = layer * ways + way
                first = [lower_select(b, h, 0, k) for h in given]
                own = weights[k * each : (k + 1) * each]
                y, last = _layer(b, x, first, own, step, reverse=way == 1)
                made.append(y)
                for found, end in zip(ends, last, strict=True):
                    found.append(end)
            x = made[0] if ways == 1 else lower_cat(b, made, 2)
        if batch_first is True:
            x = permute(b, x, [1, 0, 2])
        return [x, *(lower_stack(b, found, 0) for found in ends)]

    return lower


def _layer(
    b: Builder, x: Val, first: list[Val], weights: list[Val], step: Step, *, reverse: bool
) -> tuple[Val, list[Val]]:
    """Return one layer in one direction: the outputs of all steps, and the states at the end."""
    w, u, *biases = weights
    v, c = biases if biases else (None, None)
    b.require_equal(w.shape[0], u.shape[0], "sizes of gates differ")
    for h in first:
        b.require_equal(h.shape[1], u.shape[1], "the state is of another size")
    carries = [Carry(b, h, x.shape[0], reverse=reverse) for h in first]
    before = [carry.before for carry in carries]
    given = lower_linear(b, x, w, v)
    after = step(b, given, lower_linear(b, before[0], u, c), before)
    last = [carry.becomes(y) for carry, y in zip(carries, after, strict=True)]
    return after[0], last


_REST = (
    "params: Tensor[], has_biases: bool, num_layers: int, dropout: float, train: bool,"
    " bidirectional: bool, batch_first: bool"
)


def _register(name: str, step: Step, states: int) -> None:
    state = "Tensor" if states == 1 else "Tensor[]"
    results = ", ".join(["Tensor"] * (states + 1))
    op(
        name,
        f"(input: Tensor, hx: {state}, {_REST}) -> ({results})",
        f"torch.{name}",
        kind=LIBRARY,
        effects=Effects.RAISES | Effects.DRAWS,
    )(_layers(step, states))


_register("lstm", lstm_step, 2)
_register("gru", gru_step, 1)
_register("rnn_tanh", plain_step("tanh"), 1)
_register("rnn_relu", plain_step("relu"), 1)
