"""Grammar of views, detached parts and in-place writes: which names see a write, and when.

In: a `Drawing`. Out: one more statement of its sketch.

    v0 = x0 * 2
    v1 = v0[:, 1:]
    v1.mul_(3)
    v2 = v0.detach() + v1
"""

from __future__ import annotations

import torch

from tests.fuzz.drawing import Drawing, floats
from tests.fuzz.loops import Node
from tests.fuzz.models import Rule


def begin(d: Drawing) -> None:
    """Tensors to be viewed and written, a mask and indices."""
    c = d.one_of([1, 3, 4, 6, 8, 9])
    base = d.one_of(
        [
            f"torch.randn(B, {c})",
            f"torch.randn(B, T, {c})",
            f"torch.randn({c}, B).t()",
            f"torch.randn(B, {c + 3})[:, 1:{c + 1}]",
            f"torch.randn(B, {c}, T + 1)",
            f"torch.randn(2 * B, {c})[::2]",
            f"torch.randn({c})",
        ]
    )
    cast = d.r.choices(["", ".double()", ".half()", ".bfloat16()"], [12, 2, 0.5, 0.5])[0]
    d.give(base + cast, d.one_of(["none", "made", "made", "leaf"]))
    d.give(base + cast, d.one_of(["none", "none", "leaf"]))
    if d.chance(0.3):
        d.give("torch.randint(-9, 9, (B, 4))")
    if d.chance(0.5):
        d.let(
            d.one_of(
                [
                    "x0 * 2",
                    "x0 + x1",
                    "x0.clone()",
                    "x0.sigmoid()",
                    "torch.zeros_like(x0)",
                    "x0.exp()",
                    "x1 - 1",
                    "torch.cat([x0, x1])",
                ]
            )
        )


def _any(t: torch.Tensor) -> bool:
    return t.numel() > 0 and t.dim() > 0


VIEWS = (
    "{x}[0]",
    "{x}[:, 0]",
    "{x}[..., -1]",
    "{x}.t()",
    "{x}.transpose(0, -1)",
    "{x}.view(-1)",
    "{x}.reshape(-1)",
    "{x}.unsqueeze(0)",
    "{x}[1:]",
    "{x}[:, 1:]",
    "{x}[:, ::2]",
    "{x}[:-1]",
    "{x}.flatten()",
    "{x}.squeeze()",
    "{x}.expand(3, *{x}.shape)",
    "{x}.detach()",
    "{x}.diagonal()",
    "{x}.narrow(0, 0, 1)",
    "{x}.select(-1, 0)",
    "{x}.view_as({x})",
    "{x}.contiguous()",
    "{x}.mT",
    "{x}.permute(*range({x}.dim() - 1, -1, -1))",
    "{x}[None]",
    "{x}.detach()[0]",
    "{x}[:2]",
    "{x}.unfold(0, 2, 1)",
    "{x}.movedim(0, -1)",
    "{x}.data",
    "{x}.to({x}.dtype)",
    "{x}.float()",
    "{x}.swapaxes(0, 1)",
    "{x}[...]",
    "{x}.view(torch.int32)",
    "{x}.real",
    "{x}.flatten(0, 1)",
    "{x}.unflatten(0, (1, -1))",
)


def view(d: Drawing) -> None:
    x = d.pick(_any)
    if d.chance(0.15):
        d.lets(
            2,
            d.one_of(
                [
                    f"{x}.split([1, {x}.shape[0] - 1])",
                    f"{x}.chunk(2)[0], {x}",
                    f"{x}.unbind(-1)[0], {x}.unbind(-1)[-1]",
                ]
            ),
        )
        return
    d.let(d.one_of(VIEWS).format(x=x))


WRITES = (
    "{x}.mul_(2)",
    "{x}.add_(1)",
    "{x} += 1",
    "{x} *= 3",
    "{x} -= {y}",
    "{x}.copy_({y})",
    "{x}.zero_()",
    "{x}.fill_(2)",
    "{x}[0] = 1",
    "{x}[:, 0] = {y}[:, 0]",
    "{x}[:, 0] += 1",
    "{x}[0] = {y}[0]",
    "{x}[1:] = {y}[1:] * 2",
    "{x}[..., -1] *= 2",
    "{x}[{x} > 0] = 0",
    "{x}[{y} > 0] = 1",
    "{x}.masked_fill_({y} > 0, 3)",
    "{x}.clamp_(-1, 1)",
    "{x}.sub_({y}, alpha=2)",
    "{x}[:] = {y}",
    "{x}[:-1] += {x}[1:]",
    "{x}.t_()",
    "{x}.relu_()",
    "{x}.neg_()",
    "{x}.sigmoid_()",
    "{x}[::2] = 5",
    "{x}[:, ::2] += {y}[:, ::2]",
    "{x}.index_fill_(0, torch.tensor([0]), 7)",
    "{x}.index_add_(0, torch.tensor([0, 0]), {y}[:2].clone())",
    "{x}[torch.tensor([0, -1])] = 4",
    "{x}.scatter_(0, torch.zeros_like({x}, dtype=torch.long), {y}.clone())",
    "{x}.div_(2)",
    "{x} /= 3",
    "{x}.addcmul_({y}, {y}, value=0.5)",
    "{x}.lerp_({y}, 0.5)",
    "{x}.mul_({y})",
    "{x}.exp_()",
    "{x}[-1, 0] = {y}[0, -1]",
    "{x}[[0]] += 1",
    "{x}.unsqueeze_(0)",
    "{x}.squeeze_()",
    "{x}.fill_diagonal_(1)",
    "{x}[None, 0] = 2",
    "torch.add({x}, 1, out={x})",
    "{x}.pow_(2)",
    "{x}.detach().mul_(2)",
    "{x}.view(-1)[0] = 9",
    "{x}.transpose(0, -1).add_(1)",
    "{x}.round_()",
    "{x}.cumsum_(0)",
    "{x}.tril_()",
    "{x}.where({y} > 0, {x} * 0)",
    "{x}.index_copy_(0, torch.tensor([0]), {y}[:1].clone())",
    "{x}.masked_scatter_({y} > 0, {y}.clone())",
    "{x}.data.mul_(2)",
)


def write(d: Drawing) -> None:
    x = d.pick(_any)
    like = d.names(lambda t: t.shape == d[x].shape and t.dtype == d[x].dtype)
    text = d.one_of(WRITES).format(x=x, y=d.one_of(like))
    if d.chance(0.08):
        d.add(Node(text="with torch.no_grad():", inside=(Node(text=text),)))
    elif d.chance(0.06):
        d.add(Node(text=f"for i in range({d.one_of([2, 3])}):", inside=(Node(text=text),)))
    else:
        d.do(text)


def value(d: Drawing) -> None:
    """A new value of what is there."""
    x = d.pick(_any)
    y = d.one_of(d.names(lambda t: t.shape == d[x].shape))
    d.let(
        d.one_of(
            [
                f"{x} * 2",
                f"{x} + {y}",
                f"{x} * {y}",
                f"{x}.clone()",
                f"{x} * 1",
                f"{x}.sum(0)",
                f"torch.zeros_like({x})",
                f"{x}.sum()",
                f"torch.stack([{x}, {y}])",
                f"torch.empty_like({x}).copy_({x})",
                f"torch.cat([{x}, {y}])",
                f"{x}.abs()",
                f"{x} + 0",
                f"{x}.new_zeros(3, 2)",
                f"{x}.detach().clone()",
                f"torch.ones({x}.shape[0], 3)",
                f"{x} - {y}.detach()",
                f"torch.where({x} > 0, {x}, {y})",
                f"{x}.sort(0)[0]",
                f"{x}.repeat(2, *[1] * ({x}.dim() - 1))",
            ]
        )
    )


def kept(d: Drawing) -> None:
    """`b = a.detach()`, or another view, then a write, then both are used."""
    x = d.pick(floats())
    v = d.let(
        d.one_of(
            [
                "{x}.detach()",
                "{x}.detach()",
                "{x}[0]",
                "{x}.clone()",
                "{x}.view(-1)",
                "{x}.detach().clone()",
                "{x}[1:]",
                "{x} * 1",
            ]
        ).format(x=x)
    )
    written = d.one_of([x, x, v])
    d.do(
        d.one_of(
            [
                f"{written}.mul_(3)",
                f"{written} += 1",
                f"{written}.zero_()",
                f"{written}[0] = 1",
                f"{written}.relu_()",
                f"{written} *= 2",
            ]
        )
    )
    d.let(d.one_of([f"{v} * 2", f"{v}.sum() * {x}", f"{x} * {v}", f"{x}.sum() + {v}.sum()"]))


def looped(d: Drawing) -> None:
    """A loop that fills a tensor or changes it row by row."""
    x = d.pick(floats(2, 3))
    out = d.let(d.one_of([f"torch.zeros_like({x})", f"torch.full_like({x}, 2)", f"{x} * 0.5"]))
    body = d.one_of(
        [
            f"{out}[i] = {x}[i] * 2",
            f"{out}[i] = {x}[i] + {out}[i - 1]",
            f"{out}[i] += {x}[i - 1]",
            f"{out}[i, 0] = {x}[i].sum()",
            f"{out}[i] = {out}[i].relu()",
            f"{out}[i].add_({x}[i])",
            f"{out}[i] = i",
            f"{out}[i].mul_(0.5)",
            f"{out}[-1] += {x}[i]",
        ]
    )
    d.add(Node(text=f"for i in range({x}.shape[0]):", inside=(Node(text=body),)))


GRAMMAR: list[tuple[float, Rule]] = [
    (4, view),
    (4, write),
    (2, value),
    (1.5, kept),
    (0.8, looped),
]
