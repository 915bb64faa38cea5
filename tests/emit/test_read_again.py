"""A product that two sweeps read is done once; a costly factor of a product once per element; pairs
once for all sums over them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.runtime import toolchain
from tests.texts import kernels_in

_VALUE = r"(?:\w+\[[^\]]*\]|%\w+)"


def normalised(x, w):
    return F.layer_norm(x @ w, (400,))


def last_layer(x, w, target):
    return F.cross_entropy(x @ w.t(), target)


def recurrent(x, h, w, u):
    outs = []
    for t in range(x.shape[0]):
        gates = F.layer_norm(x[t] @ w, (160,)) + F.layer_norm(h @ u, (160,))
        h = torch.tanh(gates).view(h.shape[0], 40, 4).sum(-1)
        outs.append(h)
    return torch.stack(outs)


def tile_programs(fn: Any, args: tuple[torch.Tensor, ...], backward: bool = False) -> list[str]:
    stages = lt.script(fn).stages(*args)
    return [
        kernels_in(t)
        for n, t in stages
        if "tile program" in n and n.startswith("backward") == backward
    ]


def products(text: str) -> int:
    """Sums of products of two tensors, as often as they are done."""
    return len(re.findall(rf"= sum\[\w+\]\(mul\({_VALUE}, {_VALUE}\)\)", text))


def test_a_norm_reads_one_product() -> None:
    texts = tile_programs(normalised, (torch.randn(300, 100), torch.randn(100, 400)))
    assert sum(map(products, texts)) == 1


def attention(q, k, v, w):
    y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    return y.transpose(1, 2).flatten(2) @ w


@pytest.mark.parametrize("n", [100, 700])
def test_scores_are_computed_once(n: int) -> None:
    """The layer behind would read the softmax in tiles of heads, whose sums follow no maximum."""
    q, k, v = torch.randn(3, 2, 8, n, 32)
    texts = tile_programs(attention, (q, k, v, torch.randn(256, 256)))
    assert "".join(texts).count("= max[") == 1
    assert sum(map(products, texts)) == 2  # of the softmax and v is the second


def test_so_in_a_loop() -> None:
    args = (
        torch.randn(50, 8, 36), torch.zeros(8, 40), torch.randn(36, 160), torch.randn(40, 160),
    )  # fmt: skip
    texts = tile_programs(recurrent, args)
    assert sum(map(products, texts)) == 2  # of x before the loop, of h in it
    want = recurrent(*(x.double() for x in args)).float()
    torch.testing.assert_close(lt.script(recurrent)(*args), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [2, 8, 16])
def test_pairs_are_computed_once_for_both_gradients(columns: int) -> None:
    x, w = (torch.randn(n, columns).requires_grad_() for n in (300, 500))
    target = torch.randint(0, 500, (300,))
    texts = tile_programs(last_layer, (x, w, target), backward=True)
    # where a row is one or two vectors, each sum reads a pair as a number of its own
    is_short = columns == 8 and toolchain.target().vector_bytes <= 32
    assert [t.count("exp(") for t in texts] == [2 if is_short else 1]
    got = torch.autograd.grad(lt.script(last_layer)(x, w, target), (x, w))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    want = torch.autograd.grad(last_layer(*wide, target), wide)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_norm_is_a_staged_factor() -> None:
    x = torch.randn(50, 64, 100)
    w = torch.randn(100, 128, requires_grad=True)

    def gated(x, w):
        a, b, c, d = F.layer_norm(x @ w, (128,)).chunk(4, -1)
        return torch.sigmoid(a) * torch.tanh(b) + torch.sigmoid(c) * torch.tanh(d)

    texts = tile_programs(gated, (x, w), backward=True)
    assert "ct_x1 = sum" in "".join(texts)
    compiled = lt.script(gated)
    (got,) = torch.autograd.grad(compiled(x, w).sum(), w)
    wide = w.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(gated(x.double(), wide).sum(), wide)
    torch.testing.assert_close(got, want.float(), rtol=1e-3, atol=1e-3)


def hidden(x, w, v):
    return F.gelu(x @ w) @ v


@pytest.mark.parametrize("n", [4, 40])
def test_what_costs_most_is_staged(n: int) -> None:
    """However many axes it has: it is computed once, not for each vector of results."""
    args = torch.randn(n, 64, 128), torch.randn(128, 512) / 12, torch.randn(512, 128) / 23
    texts = tile_programs(hidden, args)
    assert re.search(r"^ *s\d+ = .*erf", "\n".join(texts), re.MULTILINE)
    want = hidden(*(x.double() for x in args)).float()
    torch.testing.assert_close(lt.script(hidden)(*args), want, rtol=1e-4, atol=1e-4)


def heads(qkv):
    q, k, v = (x.view(8, 256, 3, 16).transpose(1, 2) for x in qkv.chunk(3, -1))
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def test_heads_that_share_nothing_are_tasks_of_their_own() -> None:
    """Else a task holds what all heads read, which is too much to be staged."""
    (text,) = tile_programs(heads, (torch.rand(8, 256, 144, requires_grad=True),), backward=True)
    wide = max(re.split(r"(?=^kernel )", text, flags=re.M), key=lambda t: t.count("sum["))
    first = wide.split("\n")[0]
    assert re.search(r"grid \(\w+:8 by 1, \w+:3 by 1", first), first
