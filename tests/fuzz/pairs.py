"""Grammar of pair programs: each row of one tensor with each row of another, then reduced.

In: a `Drawing`. Out: one more statement of its sketch.

    v0 = (x0[:, None] - x1[None]).abs().sum(-1)     [N, M]
    v1 = v0.min(1).values
    v2 = (v0 == v1[:, None]).sum(1)

Some rules compare a value with a selection, a reduction or a copy of itself. They find kernels that
compute a value twice with different bits.
"""

from __future__ import annotations

import torch

from tests.fuzz.drawing import Drawing, Dropped, floats
from tests.fuzz.models import Rule


def begin(d: Drawing) -> None:
    """Two sets of points, weights and labels."""
    n = d.one_of([1, 2, 3, 5, 8, 13])
    many = "torch.randn({}, {})"
    if d.chance(0.4):
        many = "torch.randint(-6, 7, ({}, {})) / 4"
    cast = d.r.choices(["", ".double()", ".half()", ".bfloat16()"], [10, 2, 0.6, 0.6])[0]
    many = f"({many}){cast}"
    d.give(many.format("N", n), d.one_of(["none", "leaf", "made"]))
    d.give(many.format(d.one_of(["M", "M", "N"]), n), d.one_of(["none", "leaf"]))
    if d.chance(0.4):
        d.give("torch.randint(0, 4, (N,))")
    if d.chance(0.3):
        d.give(f"torch.rand(M){cast}", d.one_of(["none", "leaf"]))
    pairs(d)


def pairs(d: Drawing) -> None:
    """[N, M, D] or [N, M] of two tensors of rows."""
    x, y = d.pick(floats(2)), d.pick(floats(2))
    if d[x].shape[1:] != d[y].shape[1:]:
        raise Dropped
    d.let(
        d.one_of(
            [
                f"{x}[:, None] - {y}[None]",
                f"{x}.unsqueeze(1) - {y}.unsqueeze(0)",
                f"({x}[:, None] - {y}[None]).pow(2).sum(-1)",
                f"({x}[:, None] - {y}).abs().sum(2)",
                f"torch.cdist({x}, {y})",
                f"{x} @ {y}.t()",
                f"({x}[:, None] * {y}[None]).sum(-1)",
                f"{x}.pow(2).sum(1)[:, None] + {y}.pow(2).sum(1) - 2 * {x} @ {y}.t()",
                f"(({x}[:, None] - {y}[None]) ** 2).sum(-1).sqrt()",
                f"torch.maximum({x}[:, None], {y})",
                f"((({x}[:, None] - {y}[None]) ** 2).sum(-1) + 1e-6).sqrt()",
                f"torch.einsum('nd,md->nm', {x}, {y})",
                f"({x}[:, None] - {y}[None]).norm(dim=-1)",
                f"F.cosine_similarity({x}[:, None], {y}[None], dim=-1)",
                f"({x}[:, None, :] > {y}).sum(-1)",
                f"({x}[:, None] - {y}[None]).abs().amax(-1)",
            ]
        )
    )


def kernel(d: Drawing) -> None:
    s = d.pick(floats(2, 3))
    d.let(
        d.one_of(
            [
                f"torch.exp(-{s})",
                f"torch.exp(-{s}.square() / 2)",
                f"1 / (1 + {s} ** 2)",
                f"{s} / 3.0",
                f"{s} * {s}",
                f"({s} - 1).relu()",
                f"{s} / {s}.shape[1]",
                f"-{s}",
                f"torch.tanh({s})",
                f"{s} + 0.1",
                f"{s} / math.sqrt(7)",
                f"{s}.abs().sqrt()",
                f"torch.sigmoid({s} * 2)",
                f"{s}.clamp(min=0.5)",
                f"{s} * 0.1 + 1",
            ]
        )
    )


def reduction(d: Drawing) -> None:
    s = d.pick(floats(1, 2, 3))
    dim = d.r.randrange(-d[s].dim(), d[s].dim())
    k = min(d[s].shape[dim], d.one_of([1, 2, 3]))
    d.let(
        d.one_of(
            [
                f"{s}.sum({dim})",
                f"{s}.mean({dim})",
                f"{s}.amin({dim})",
                f"{s}.amax({dim})",
                f"{s}.min({dim}).values",
                f"{s}.argmin({dim})",
                f"{s}.argmax({dim})",
                f"{s}.max({dim})[1]",
                f"{s}.topk({k}, dim={dim})[0]",
                f"{s}.topk({k}, dim={dim}, largest=False).indices",
                f"{s}.softmax({dim})",
                f"torch.logsumexp({s}, {dim})",
                f"{s}.sum()",
                f"{s}.max()",
                f"{s}.var({dim}, unbiased=False)",
                f"{s}.cumsum({dim})",
                f"{s}.sort({dim})[0]",
                f"{s}.norm(dim={dim})",
                f"({s} > 0.5).any({dim})",
                f"{s}.log_softmax({dim})",
                f"({s} < 1).sum({dim})",
                f"{s}.prod({dim})",
                f"{s}.median({dim}).values",
                f"{s}.argsort({dim})",
                f"{s}.mean({dim}, keepdim=True)",
                f"{s}.kthvalue({k}, {dim})[0]",
                f"{s}.std({dim}, correction=0)",
                f"{s}.all({dim})",
                f"torch.aminmax({s}, dim={dim})[1]",
            ]
        )
    )


def itself(d: Drawing) -> None:
    """A value beside a selection, a reduction or a copy of itself."""
    s = d.pick(floats(2))
    square = d[s].shape[0] == d[s].shape[1]
    texts = [
        f"({s} == {s}.amax(1, keepdim=True)).sum(1)",
        f"{s} - {s}.amin(0)",
        f"({s} >= {s}.max(1).values[:, None]).sum(1)",
        f"({s} > {s}[:, :1]).sum(1)",
        f"({s} - {s}.clone()).abs().sum()",
        f"({s} == {s}.contiguous()).all()",
        f"{s}.gather(1, {s}.argmax(1, keepdim=True)) == {s}.amax(1, keepdim=True)",
        f"{s} - {s}.gather(1, {s}.argmin(1)[:, None])",
        f"({s} < {s}.mean(1, keepdim=True)).sum(0)",
        f"({s}.amin() == {s}).sum()",
        f"({s} <= {s}.min(0).values).sum(0)",
        f"({s}[:, 0] == {s}.select(1, 0)).all()",
        f"({s} == {s}.t().contiguous().t()).all()",
        f"torch.take_along_dim({s}, {s}.argsort(1), 1) - {s}.sort(1)[0]",
        f"({s}.sum(1)[:, None] == {s}.sum(1, keepdim=True)).all()",
        f"torch.where({s} == {s}.amax(1, keepdim=True), 1.0, {s})",
        f"({s} / {s}.amax(1, keepdim=True)).amax(1)",
        f"(({s} * 2 + 1) > ({s} * 2 + 1)[:1]).sum(1)",
    ]
    if square:
        texts += [
            f"({s} > {s}.diagonal()[:, None]).sum(1)",
            f"({s}.diagonal() == torch.diag({s})).all()",
            f"({s} == {s}.t()).sum()",
            f"({s} - {s}.t()).abs().amax()",
            f"{s}.masked_fill(torch.eye({s}.shape[0], dtype=torch.bool), float('inf')).amin(1)",
            f"F.cross_entropy({s}, torch.arange({s}.shape[0]))",
            f"{s}.tril(-1).sum(1)",
            f"{s}.fill_diagonal_(0).sum(0)",
            f"{s}.trace()",
        ] * 2
    d.let(d.one_of(texts))


def chosen(d: Drawing) -> None:
    """What stands at indices, or is added there."""
    i = d.pick(lambda t: t.dtype == torch.int64 and t.dim() in (1, 2) and t.numel() > 0)
    x = d.pick(floats(1, 2))
    weight = f"{x}.flatten()[: {i}.numel()]"
    d.let(
        d.one_of(
            [
                f"{x}[{i}]",
                f"{x}[{i} % {x}.shape[0]]",
                f"torch.index_select({x}, 0, {i}.flatten())",
                f"F.one_hot({i}.clamp(0, 5), 6).sum(0)",
                f"torch.bincount({i}.flatten(), minlength=7)[:7]",
                f"torch.zeros(8).index_add(0, {i}.flatten() % 8, {weight}.float())",
                f"{i} + 1",
                f"torch.zeros_like({x}).index_add(0, {i} % {x}.shape[0], {x}[: {i}.shape[0]])",
                f"({i}[:, None] == {i}[None]).sum(1)",
                f"{x}.gather(-1, {i} % {x}.shape[-1])",
                f"({i}[:, None] != {i}[None]).float()",
                f"{i}.float().mean(0)",
                f"{x}.scatter(0, {i} % {x}.shape[0], 1.5)",
            ]
        )
    )


def joined(d: Drawing) -> None:
    """Two values that broadcast."""
    a, b = d.pick(floats(1, 2, 3)), d.pick(floats(1, 2, 3))
    d.let(
        d.one_of(
            [
                f"{a} * {b}",
                f"{a} + {b}",
                f"{a} - {b}",
                f"{a} / ({b}.abs() + 1)",
                f"{a} @ {b}",
                f"{a}[..., None] * {b}",
                f"torch.where({a} > {b}, {a}, {b} * 0)",
                f"({a} > {b}).sum()",
                f"{a} * {b}[:, None]",
                f"({a}.softmax(-1) @ {b})",
            ]
        )
    )


GRAMMAR: list[tuple[float, Rule]] = [
    (3, pairs),
    (3, kernel),
    (4, reduction),
    (4, itself),
    (2, chosen),
    (1.5, joined),
]
