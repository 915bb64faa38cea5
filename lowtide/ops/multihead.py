"""Attention of many heads with its projections.

q, k, v = the projections of query, key, value, their last dim split among the heads
F.multi_head_attention_forward(…)   →   (projection of softmax(q @ k.T / sqrt(d) + mask) @ v, …)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ir.effects import Effects
from lowtide.ops.attention import lower_attention
from lowtide.ops.contractions import lower_linear, matmul
from lowtide.ops.library import require_wide_floats
from lowtide.ops.normalisation import softmax
from lowtide.ops.operands import INF, Size, compute, pointwise, unravel
from lowtide.ops.reductions import mean_over
from lowtide.ops.registry import op
from lowtide.ops.slicing import narrow
from lowtide.ops.views import permute, view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Load
from lowtide.texpr.index import Index, as_index


def _effects(operands: Sequence[object]) -> Effects:
    """It draws random numbers in training, unless there is no dropout."""
    dropout, training = operands[10], operands[13]
    is_quiet = training is False or (isinstance(dropout, int | float) and dropout == 0)
    return Effects.RAISES if is_quiet else Effects.RAISES | Effects.DRAWS


@op(
    "multi_head_attention",
    "(query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,"
    " in_proj_weight: Tensor?, in_proj_bias: Tensor?, bias_k: Tensor?, bias_v: Tensor?,"
    " add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor?,"
    " training: bool = True, key_padding_mask: Tensor? = None, need_weights: bool = True,"
    " attn_mask: Tensor? = None, use_separate_proj_weight: bool = False,"
    " q_proj_weight: Tensor? = None, k_proj_weight: Tensor? = None, v_proj_weight: Tensor? = None,"
    " static_k: Tensor? = None, static_v: Tensor? = None, average_attn_weights: bool = True,"
    " is_causal: bool = False) -> (Tensor, Tensor?)",
    "F.multi_head_attention_forward",
    kind="composite",
    effects=_effects,
)
def lower_multi_head_attention(
    b: Builder,
    query: Val,
    key: Val,
    value: Val,
    width: Any,
    heads: Any,
    weight: Val | None,
    bias: Val | None,
    bias_k: Val | None,
    bias_v: Val | None,
    add_zero: Any,
    dropout: Any,
    out_weight: Val,
    out_bias: Val | None,
    training: Any,
    padding: Val | None,
    need_weights: Any,
    mask: Val | None,
    separate: Any,
    q_weight: Val | None,
    k_weight: Val | None,
    v_weight: Val | None,
    static_k: Val | None,
    static_v: Val | None,
    average: Any,
    is_causal: Any,
) -> tuple[Val, Val | None]:
    """Each position of the query looks at all of the keys."""
    if b.device.type != "cpu":
        raise Unsupported("is PyTorch's own on a GPU")
    require_wide_floats(query, key, value, weight, out_weight)
    if (training is not False and dropout != 0) or add_zero is not False:
        raise Unsupported("attention with dropout, or to a position of zeros")
    if any(x is not None for x in (bias_k, bias_v, static_k, static_v)):
        raise Unsupported("attention to keys of its own")
    if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise b.error("attention of other ranks")
    is_batched = query.ndim == 3
    if not is_batched:
        query, key, value = (_batch_of_one(b, x) for x in (query, key, value))
        padding = padding and view(b, padding, [1, *padding.shape], lambda idx: idx[1:])
    # Rows of the projections are in the order that memory has, so that no operand is copied.
    order = _Order(_is_batch_first(b, query))
    size, h = b.static_int(width), b.static_int(heads)
    b.require_equal(query.shape[2], size, "attention: the size of the query")
    if h < 1 or size % h:
        raise b.error("attention: the heads do not divide the size")
    for x, y in zip(key.shape[:2], value.shape[:2], strict=True):
        b.require_equal(x, y, "attention: sizes of key and value")
    b.require_equal(query.shape[1], key.shape[1], "attention: batches differ")
    if separate is True:
        biases = [bias and narrow(b, bias, 0, k * size, size) for k in range(3)]
        parts = [
            _projected(b, order.rows(b, x), w, c)
            for x, w, c in zip(
                (query, key, value), (q_weight, k_weight, v_weight), biases, strict=True
            )
        ]
    else:
        b.require_equal(key.shape[2], size, "attention: the size of the key")
        b.require_equal(value.shape[2], size, "attention: the size of the value")
        parts = _packed(b, order, [query, key, value], weight, bias, size)
    q, k, v = (order.heads(b, x, h, size // h) for x in parts)
    if is_causal and mask is None:
        raise b.error("attention that is causal needs its mask")
    if is_causal and padding is None and need_weights is False:
        mask = None
    else:
        is_causal = False
    sizes: list[Size] = [query.shape[1], h, query.shape[0], key.shape[0]]
    allowed = _mask(b, query.dtype, sizes, mask, padding)
    found: Val | None = None
    if need_weights is False:
        y = lower_attention(b, q, k, v, allowed, 0.0, is_causal, None, False)
    else:
        scale = math.sqrt(1.0 / (size // h))
        scaled = pointwise(b, [q], q.dtype, lambda x: x * scale)
        scores = matmul(b, scaled, permute(b, k, [0, 1, 3, 2]))
        if allowed is not None:
            scores = pointwise(b, [scores, allowed], scores.dtype, lambda s, m: s + m)
        found = softmax(b, scores, -1)
        y = matmul(b, found, v)
        if average is True:
            found = mean_over(b, found, [1], False, found.dtype)
        if not is_batched:
            found = view(b, found, found.shape[1:], lambda idx: [as_index(0), *idx])
    y = lower_linear(b, _joined(b, y, size), out_weight, out_bias)
    if not is_batched:
        y = view(b, y, [y.shape[0], y.shape[2]], lambda idx: [idx[0], as_index(0), idx[1]])
    return y, found


def _batch_of_one(b: Builder, x: Val) -> Val:
    return view(b, x, [x.shape[0], 1, x.shape[1]], lambda idx: [idx[0], idx[2]])


def _packed(
    b: Builder,
    order: _Order,
    operands: Sequence[Val],
    weight: Val | None,
    bias: Val | None,
    size: int,
) -> list[Val]:
    """Return the projections by the parts of one weight; operands that are the same value take one
    product."""
    for x in (weight, bias):
        if x is not None:
            b.require_equal(x.shape[0], 3 * size, "attention: the rows of the weight")
    found: list[Val] = []
    while len(found) < 3:
        first = len(found)
        same = next((k for k in range(first, 3) if operands[k] is not operands[first]), 3) - first
        place = first * size, same * size
        w, c = weight, bias
        if same < 3:
            w, c = (x and narrow(b, x, 0, *place) for x in (weight, bias))
        whole = _projected(b, order.rows(b, operands[first]), w, c)
        found += [narrow(b, whole, 2, k * size, size) for k in range(same)]
    return found


def _projected(b: Builder, x: Val, weight: Val | None, bias: Val | None) -> Val:
    if weight is None:
        raise b.error("attention without a weight")
    return lower_linear(b, x, weight, bias)


def _is_batch_first(b: Builder, x: Val) -> bool:
    """Return whether [position, batch, channel] is [batch, position, channel] in memory."""
    made, given = b.program.defs.get(x.name), b.program.inputs.get(x.name)
    if made is not None and isinstance(made.expr, Load):
        i, j, k = map(as_index, made.axes)
        return made.expr.index == (j, i, k)
    return given is not None and given.order == (1, 0, 2)


@dataclass(frozen=True)
class _Order:
    """The order of rows in the projections: by batch and position, or by position and
    batch."""

    is_batch_first: bool

    def rows(self, b: Builder, x: Val) -> Val:
        """Return [position, batch, channel] with its rows in this order."""
        return permute(b, x, [1, 0, 2]) if self.is_batch_first else x

    def heads(self, b: Builder, x: Val, heads: int, each: int) -> Val:
        """Return rows as [batch, head, position, channel]."""
        outer = x.shape[0 if self.is_batch_first else 1], x.shape[1 if self.is_batch_first else 0]

        def index(idx: tuple[Index, ...]) -> list[Index]:
            rows = [idx[0], idx[2]] if self.is_batch_first else [idx[2], idx[0]]
            return [*rows, idx[1] * each + idx[3]]

        return view(b, x, [outer[0], heads, outer[1], each], index)


def _joined(b: Builder, y: Val, size: int) -> Val:
    """Return [position, batch, channel] of [batch, head, position, channel]."""
    many, heads, places, each = y.shape

    def index(idx: tuple[Index, ...]) -> list[Index]:
        head, channel = unravel(idx[2], [heads, each])
        return [idx[1], head, idx[0], channel]

    return view(b, y, [places, many, size], index)


def _mask(
    b: Builder, dtype: DType, shape: list[Size], mask: Val | None, padding: Val | None
) -> Val | None:
    """Return the tensor that is added to the scores; None if there is no mask."""
    parts: list[Val] = []
    if mask is not None:
        if mask.ndim not in (2, 3):
            raise b.error("a mask of another rank")
        for x, y in zip(mask.shape[-2:], shape[2:], strict=True):
            b.require_equal(x, y, "a mask of other sizes")
        if mask.ndim == 3:
            many, heads = shape[0], b.static_int(shape[1])
            b.require_equal(mask.shape[0], as_index(many) * heads, "a mask of another batch")
            parts.append(
                view(b, mask, shape, lambda idx: [idx[0] * heads + idx[1], idx[2], idx[3]])
            )
        else:
            parts.append(view(b, mask, [1, 1, *shape[2:]], lambda idx: idx[2:]))
    if padding is not None:
        if padding.ndim != 2:
            raise b.error("a padding mask of another rank")
        for x, y in zip(padding.shape, (shape[0], shape[3]), strict=True):
            b.require_equal(x, y, "a padding mask of other sizes")
        sizes: list[Size] = [shape[0], 1, 1, shape[3]]
        parts.append(view(b, padding, sizes, lambda idx: [idx[0], idx[3]]))
    if not parts:
        return None
    added = [_added(b, x, dtype) for x in parts]
    if len(added) == 1:
        return added[0]
    return pointwise(b, added, dtype, lambda x, y: x + y)


def _added(b: Builder, x: Val, dtype: DType) -> Val:
    """-inf where a bool says that nothing is seen."""
    if x.dtype is dtype:
        return x
    if x.dtype is not dtypes.boolean:
        raise Unsupported(f"an attention mask of {x.dtype}")
    hidden, seen = b.const(-INF, compute(dtype)), b.const(0.0, compute(dtype))
    return b.tensor(x.shape, dtype, lambda idx: b.select(b.load(x, idx), hidden, seen))
