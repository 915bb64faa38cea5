"""einsum: any equation is one sum of products, or a chain of them for more than two operands.

    einsum("bij,bkj->bik", x, y)   →   t[b, i, k] = sum(j: x[b, i, j] * y[b, k, j])
    bilinear(x, y, w)              →   einsum("...i,kij,...j->...k", x, w, y)

More than two operands are contracted from left to right, each time over the letters that neither a
later operand nor the output needs.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.ir.dtypes import f64
from lowtide.ops.contractions import accumulator
from lowtide.ops.operands import Size, Term, cast_to, is_list, pointwise, same_dtype
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    val: Val
    labels: Labels  # one for each dim; "0", "1", ... name the dims of an ellipsis from the last on


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand's dims and of the output's; raises ValueError."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError("as many terms as operands")
    operands = [_labels(term, rank) for term, rank in zip(terms, ranks, strict=True)]
    spread = max((sum(c.isdigit() for c in labels) for labels in operands), default=0)
    dots = tuple(str(k) for k in reversed(range(spread)))
    if arrow:
        output = _output(right, dots)
    else:
        letters = [c for labels in operands for c in labels if not c.isdigit()]
        output = dots + tuple(c for c in _order(letters) if letters.count(c) == 1)
    known = {c for labels in operands for c in labels}
    if len(set(output)) != len(output) or not set(output) <= known:
        raise ValueError("an output label twice, or in no operand")
    return operands, output


def _order(letters: Sequence[str]) -> list[str]:
    return sorted(set(letters), key=(string.ascii_uppercase + string.ascii_lowercase).index)


def _labels(term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    if not all(c in string.ascii_letters for c in before + after):
        raise ValueError("a label that is no letter")
    spread = rank - len(before) - len(after)
    if spread < 0 or (spread and not dots):
        raise ValueError("as many labels as dimensions")
    return (*before, *(str(k) for k in reversed(range(spread))), *after)


def _output(term: str, dots: Labels) -> Labels:
    before, ellipsis, after = term.partition("...")
    if not all(c in string.ascii_letters for c in before + after):
        raise ValueError("a label that is no letter")
    if dots and not ellipsis:
        raise ValueError("an ellipsis that is summed")  # legal in PyTorch; left to it
    return (*before, *(dots if ellipsis else ()), *after)


@op(
    "einsum",
    "(equation: str, *operands: Tensor[]) -> Tensor",
    "torch.einsum torch.functional.einsum",
    kind="contraction",
    eager=lambda equation, operands: torch.einsum(equation, *_operands(operands)),
)
def lower_einsum(b: Builder, equation: str, operands: Any) -> Val:
    """Sums of products as the equation says."""
    xs: list[Val] = _operands(operands)
    if not xs:
        raise b.error("einsum of nothing")
    same_dtype(*xs)
    try:
        terms, output = parse(equation, [x.ndim for x in xs])
    except ValueError as wrong:
        raise Unsupported(f"einsum {equation!r}: {wrong}") from wrong
    sizes = _sizes(b, xs, terms)
    left = _Operand(xs[0], terms[0])
    if len(xs) == 1:
        if set(terms[0]) <= set(output):
            raise Unsupported(f"einsum {equation!r}: a view")
        return _contract(b, [left], output, sizes).val
    for k in range(1, len(xs)):
        right = _Operand(xs[k], terms[k])
        needed = {*output, *(c for labels in terms[k + 1 :] for c in labels)}
        both = dict.fromkeys((*left.labels, *right.labels))
        last = k == len(xs) - 1
        kept = output if last else tuple(c for c in both if c in needed)
        left = _contract(b, [left, right], kept, sizes)
    return left.val


def _operands(operands: Any) -> list[Any]:
    if len(operands) == 1 and is_list(operands[0]):
        return list(operands[0])
    return list(operands)


def _sizes(b: Builder, xs: Sequence[Val], terms: Sequence[Labels]) -> dict[str, Size]:
    """Return the size of each label; sizes of 1 broadcast."""
    sizes: dict[str, Size] = {}
    for x, labels in zip(xs, terms, strict=True):
        for size, label in zip(x.shape, labels, strict=True):
            old = sizes.get(label, 1)
            if b.equal(size, 1):
                sizes.setdefault(label, 1)
            elif isinstance(old, int) and old == 1:
                sizes[label] = size
            else:
                b.require_equal(old, size, f"einsum: sizes of {label!r} differ")
        for label in set(labels):
            same = [s for s, c in zip(x.shape, labels, strict=True) if c == label]
            if any(b.equal(s, 1) != b.equal(same[0], 1) for s in same[1:]):
                raise b.error("einsum: a diagonal of different sizes")
    return sizes


def _contract(
    b: Builder, operands: Sequence[_Operand], kept: Labels, sizes: dict[str, Size]
) -> _Operand:
    """Return the product of one or two operands, summed over the labels that are not kept."""
    dtype = operands[0].val.dtype
    within = accumulator(dtype)
    present = dict.fromkeys(c for o in operands for c in o.labels)
    summed = [c for c in present if c not in kept]

    def body(idx: tuple[Index, ...]) -> Expr:
        def term(k: tuple[Index, ...]) -> Expr:
            at = {**dict(zip(kept, idx, strict=True)), **dict(zip(summed, k, strict=True))}

            def load(o: _Operand) -> Term:
                where = [
                    as_index(0) if b.equal(s, 1) else at[c]
                    for s, c in zip(o.val.shape, o.labels, strict=True)
                ]
                return Term(b, b.load(o.val, where)).cast(within)

            product = load(operands[0])
            for o in operands[1:]:
                product = product * load(o)
            return product.expr

        return b.reduce("sum", [sizes[c] for c in summed], term)

    return _Operand(b.tensor([sizes[c] for c in kept], dtype, body), kept)


@op(
    "bilinear",
    "(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor? = None) -> Tensor",
    "F.bilinear torch.bilinear",
    kind="contraction",
)
def lower_bilinear(b: Builder, x: Val, y: Val, weight: Val, bias: Val | None) -> Val:
    """x[..., i] * weight[k, i, j] * y[..., j], summed over i and j; and the bias."""
    if weight.ndim != 3 or not x.ndim or x.ndim != y.ndim:
        raise Unsupported("bilinear of other ranks than PyTorch takes")
    same_dtype(x, y, weight, bias)
    wanted = [*x.shape[:-1], weight.shape[1], weight.shape[2]]
    for size, want in zip([*y.shape[:-1], x.shape[-1], y.shape[-1]], wanted, strict=True):
        b.require_equal(size, want, f"bilinear: a size of {size} for {want}")
    total = lower_einsum(b, "...i,kij,...j->...k", [x, weight, y])
    if bias is None:
        return total
    if bias.ndim != 1:
        raise Unsupported("bilinear with a bias that is no vector")
    b.require_equal(bias.shape[0], weight.shape[0], "bilinear: a bias of another size")
    return pointwise(b, [total, bias], total.dtype, lambda u, v: u + v)


@op("trace", "(self: Tensor) -> Tensor", "torch.trace Tensor.trace", kind="reduction")
def lower_trace(b: Builder, x: Val) -> Val:
    """The sum of the diagonal of a matrix."""
    from lowtide.ops.rearrange import lower_diagonal
    from lowtide.ops.reductions import lower_sum

    if x.ndim != 2:
        raise b.error("trace of what is no matrix")
    diagonal = lower_diagonal(b, x, 0, 0, 1)
    if not x.dtype.is_float:
        return lower_sum(b, diagonal, None, False, None)
    total = lower_sum(b, cast_to(b, diagonal, f64), None, False, None)  # as PyTorch adds up
    return cast_to(b, total, x.dtype)
