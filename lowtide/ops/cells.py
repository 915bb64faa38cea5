"""One step of a recurrent layer, as `torch.nn.LSTMCell` and its kin call it.

    lstm_cell(x, (h, c), w, u)    g[n, k] = sum(j: x[n, j] * w[k, j]) + sum(j: h[n, j] * u[k, j])
                                  i, f, m, o = the quarters of g along k          s: sigmoid
                                  c[n, k] = s(f[n, k]) * c[n, k] + s(i[n, k]) * tanh(m[n, k])
                                  h[n, k] = s(o[n, k]) * tanh(c[n, k])

The products are those of `linear`, and the gates are views of them, so that a loop over a cell
equals a loop over the handwritten formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from lowtide.ops.contractions import lower_linear
from lowtide.ops.operands import Term, pointwise, require_float, same_dtype
from lowtide.ops.registry import op
from lowtide.ops.slicing import lower_chunk
from lowtide.texpr.build import Builder, Unsupported, Val

# A single step is PyTorch's: the gradients of its weights are products that it does faster. Over
# the steps of a recurrence, they are one product of all.
ONLY_IN_LOOPS: Final = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})

_WEIGHTS = "w_ih: Tensor, w_hh: Tensor, b_ih: Tensor? = None, b_hh: Tensor? = None"


def _checked(b: Builder, x: Val, h: Val, w: Val, u: Val, biases: list[Val | None]) -> None:
    require_float(x)
    same_dtype(x, h, w, u, *biases)
    if x.ndim != 2 or h.ndim != 2 or u.ndim != 2:
        raise Unsupported("a cell whose input is not a batch of vectors")
    b.require_equal(x.shape[0], h.shape[0], "batches differ")
    b.require_equal(w.shape[0], u.shape[0], "sizes of gates differ")


def _gates(b: Builder, g: Val, count: int, h: Val) -> list[Val]:
    """Return the equal parts of the last dim, each as wide as what is carried."""
    size = h.shape[-1]
    b.require_equal(g.shape[-1], size * count, "the gates are not as wide as the state")
    return lower_chunk(b, g, count, g.ndim - 1)


def _sum(b: Builder, x: Val, y: Val) -> Val:
    return pointwise(b, [x, y], x.dtype, lambda u, v: u + v)


def _sigmoid(x: Term) -> Term:
    return x.fn("sigmoid")


# ---- steps: of the products of the input and of the state, and what is carried --------------


def lstm_step(b: Builder, x: Val, u: Val, carried: Sequence[Val]) -> list[Val]:
    """Return the next hidden state and cell state."""
    h, c = carried
    i, f, g, o = _gates(b, _sum(b, x, u), 4, h)
    after = pointwise(
        b,
        [i, f, g, c],
        x.dtype,
        lambda i, f, g, c: _sigmoid(f) * c + _sigmoid(i) * g.fn("tanh"),
    )
    return [
        pointwise(b, [o, after], x.dtype, lambda o, c: _sigmoid(o) * c.fn("tanh")),
        after,
    ]


def gru_step(b: Builder, x: Val, u: Val, carried: Sequence[Val]) -> list[Val]:
    """Return the next hidden state."""
    (h,) = carried
    r0, z0, n0 = _gates(b, x, 3, h)
    r1, z1, n1 = _gates(b, u, 3, h)

    def formula(r0: Term, r1: Term, z0: Term, z1: Term, n0: Term, n1: Term, h: Term) -> Term:
        n = (n0 + _sigmoid(r0 + r1) * n1).fn("tanh")
        return (h - n) * _sigmoid(z0 + z1) + n

    return [pointwise(b, [r0, r1, z0, z1, n0, n1, h], x.dtype, cast("Any", formula))]


def plain_step(fn: str) -> Callable[[Builder, Val, Val, Sequence[Val]], list[Val]]:
    """Return the next hidden state, of one gate."""

    def step(b: Builder, x: Val, u: Val, carried: Sequence[Val]) -> list[Val]:
        b.require_equal(x.shape[-1], carried[0].shape[-1], "the gate is not as wide as the state")

        def formula(v: Term) -> Term:
            return v.fn("tanh") if fn == "tanh" else v.fn("maximum", 0)

        return [pointwise(b, [_sum(b, x, u)], x.dtype, formula)]

    return step


# ---- cells ------------------------------------------------------------------------------------


@op(
    "lstm_cell",
    f"(input: Tensor, hx: Tensor[], {_WEIGHTS}) -> (Tensor, Tensor)",
    "torch.lstm_cell",
    kind="contraction",
)
def lower_lstm_cell(
    b: Builder, x: Val, hx: Any, w: Val, u: Val, b_ih: Val | None, b_hh: Val | None
) -> list[Val]:
    """The next hidden state and cell state."""
    if len(hx) != 2:
        raise b.error("lstm_cell with other states than two")
    h, c = hx
    _checked(b, x, h, w, u, [b_ih, b_hh])
    same_dtype(h, c)
    for mine, other in zip(h.shape, c.shape, strict=True):
        b.require_equal(mine, other, "the two states differ in their sizes")
    return lstm_step(b, lower_linear(b, x, w, b_ih), lower_linear(b, h, u, b_hh), [h, c])


@op(
    "gru_cell",
    f"(input: Tensor, hx: Tensor, {_WEIGHTS}) -> Tensor",
    "torch.gru_cell",
    kind="contraction",
)
def lower_gru_cell(
    b: Builder, x: Val, h: Val, w: Val, u: Val, b_ih: Val | None, b_hh: Val | None
) -> Val:
    """The next hidden state."""
    _checked(b, x, h, w, u, [b_ih, b_hh])
    return gru_step(b, lower_linear(b, x, w, b_ih), lower_linear(b, h, u, b_hh), [h])[0]


def _plain(fn: str) -> None:
    step = plain_step(fn)

    @op(
        f"rnn_{fn}_cell",
        f"(input: Tensor, hx: Tensor, {_WEIGHTS}) -> Tensor",
        f"torch.rnn_{fn}_cell",
        kind="contraction",
    )
    def lower(  # pyright: ignore[reportUnusedFunction]
        b: Builder, x: Val, h: Val, w: Val, u: Val, b_ih: Val | None, b_hh: Val | None
    ) -> Val:
        """The next hidden state."""
        _checked(b, x, h, w, u, [b_ih, b_hh])
        return step(b, lower_linear(b, x, w, b_ih), lower_linear(b, h, u, b_hh), [h])[0]


_plain("tanh")
_plain("relu")
