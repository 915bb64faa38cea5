"""Scaled dot product attention: a contraction, a softmax and a contraction.

    s[i, j] = scale * sum(k: q[i, k] * key[j, k])      masked where j > i if causal
    t[i, d] = sum(j: exp(s[i, j] - m[i]) * v[j, d]) / sum(j: exp(s[i, j] - m[i]))

A row whose scores are all masked gives zeros, as PyTorch's safe softmax does. Scores and weights
are computed in the compute dtype (f32 for bf16 and f16).
"""

from __future__ import annotations

from typing import Any

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects, when
from lowtide.ops.operands import (
    INF,
    Size,
    Term,
    broadcast,
    broadcast_index,
    compute,
    constant_float,
    require_float,
    same_dtype,
)
from lowtide.ops.reductions import reduce_over
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index

LONG = 1024  # rows and columns, from which skipping half of them outweighs fused neighbours


@op(
    "scaled_dot_product_attention",
    "(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor? = None, "
    "dropout_p: float = 0.0, is_causal: bool = False, *, scale: float? = None, "
    "enable_gqa: bool = False) -> Tensor",
    "F.scaled_dot_product_attention",
    kind="composite",
    effects=when(4, (0, 0.0), Effects.DRAWS),
)
def lower_attention(
    b: Builder,
    q: Val,
    key: Val,
    value: Val,
    mask: Val | None,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    enable_gqa: Any,
) -> Val:
    """softmax(q @ key.T * scale + mask) @ value."""
    require_float(q, key, value)
    dtype = same_dtype(q, key, value)
    within = compute(dtype)
    if dropout_p != 0 or enable_gqa:
        raise Unsupported("attention with dropout or grouped queries")
    if min(q.ndim, key.ndim, value.ndim) < 2:
        raise b.error("attention of vectors")
    if is_causal and mask is not None:
        raise b.error("is_causal and attn_mask")
    b.require_equal(q.shape[-1], key.shape[-1], "attention: sizes of query and key differ")
    b.require_equal(key.shape[-2], value.shape[-2], "attention: as many keys as values")
    length, width, depth = key.shape[-2], value.shape[-1], q.shape[-1]
    if not b.at_least(length, 1) or not b.at_least(depth, 1):
        raise Unsupported("attention over nothing")
    batch = broadcast(b, q.shape[:-2], key.shape[:-2], value.shape[:-2])
    if is_causal and _has_skipping_kernel(b, q, key, value):
        raise Unsupported(
            "long causal attention: PyTorch's kernel skips the blocks that are masked"
        )
    nb = len(batch)
    shape: list[Size] = [*batch, q.shape[-2], length]
    if mask is not None:
        _check_mask(b, mask, shape, dtype)

    def batched(x: Val, idx: tuple[Index, ...], *last: Index) -> Term:
        at = [*broadcast_index(b, x.shape[:-2], idx[:nb]), *last]
        return Term(b, b.cast(b.load(x, at), within))

    def score(idx: tuple[Index, ...]) -> Expr:
        i, j = idx[-2], idx[-1]

        def term(k: tuple[Index, ...]) -> Expr:
            return (batched(q, idx, i, k[0]) * batched(key, idx, j, k[0])).expr

        s = Term(b, b.reduce("sum", [depth], term))
        s = s * (_default_scale(b, s, depth) if scale is None else constant_float(scale))
        if is_causal:
            seen = Term(b, b.apply("le", b.at(j), b.at(i)))
            return seen.where(s, -INF).expr
        if mask is None:
            return s.expr
        allowed = Term(b, b.load(mask, broadcast_index(b, mask.shape, idx)))
        if mask.dtype is dtypes.boolean:
            return allowed.where(s, -INF).expr
        return (s + allowed.cast(within)).expr

    scores = b.tensor(shape, within, score)
    rows = [nb + 1]
    top = reduce_over(
        b, scores, rows, True, "max", within=within, result=within,
        finish=lambda m: m.equals(-INF).where(0.0, m),
    )  # fmt: skip

    def weight(idx: tuple[Index, ...]) -> Term:
        best = Term(b, b.load(top, [*idx[:-1], as_index(0)]))
        return (Term(b, b.load(scores, idx)) - best).fn("exp")

    mass = reduce_over(
        b, scores, rows, True, "sum", within=within, result=within,
        term=lambda _v, full, _kept: weight(tuple(full)),
        finish=lambda s: s.equals(0.0).where(1.0, s),
    )  # fmt: skip

    def body(idx: tuple[Index, ...]) -> Expr:
        row = idx[:-1]

        def term(j: tuple[Index, ...]) -> Expr:
            return (weight((*row, j[0])) * batched(value, idx, j[0], idx[-1])).expr

        total = Term(b, b.reduce("sum", [length], term))
        return (total / Term(b, b.load(mass, [*row, as_index(0)]))).expr

    return b.tensor([*batch, q.shape[-2], width], dtype, body)


def _has_skipping_kernel(b: Builder, q: Val, key: Val, value: Val) -> bool:
    """Return whether PyTorch runs the CPU kernel that skips scores hidden by the mask, half of
    many."""
    alike = all(
        x.ndim == 4
        and all(map(b.equal, x.shape[:2], q.shape[:2]))
        and b.equal(x.shape[3], q.shape[3])
        for x in (q, key, value)
    )
    return b.device.type == "cpu" and alike and all(b.at_least(x.shape[2], LONG) for x in (q, key))


def _default_scale(b: Builder, like: Term, depth: Size) -> Term:
    """1 / sqrt of the size of a key."""
    return Term(b, b.cast(b.at(depth), like.dtype)).fn("rsqrt")


def _check_mask(b: Builder, mask: Val, shape: list[Size], dtype: Any) -> None:
    if mask.dtype is not dtypes.boolean and mask.dtype is not dtype:
        raise Unsupported(f"an attention mask of {mask.dtype}")
    if not 2 <= mask.ndim <= len(shape):
        raise Unsupported("an attention mask of another rank than the scores")
    for s, t in zip(mask.shape, shape[len(shape) - mask.ndim :], strict=True):
        if not b.equal(s, 1):
            b.require_equal(s, t, "attention: the mask does not fit the scores")
