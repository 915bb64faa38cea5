"""Programs are run as each stage has made them, by evaluators, and give what PyTorch gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.codegen.executable import compile_program
from lowtide.diagnostics import stats
from lowtide.execute import backend
from lowtide.tools import interpreted


def pairs(x, y):
    d = (x[:, None] - y[None]).square().sum(-1)
    return d.min(0).values, d.min(1).values, d.argmin(1), (d > 3).sum()


def attention(q, k):
    return F.scaled_dot_product_attention(q, k, k, is_causal=True)


def steps(x, h):
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h.flip(0))
    return h, h.cumsum(0)


def norms(x, w):
    return F.layer_norm(F.gelu(x @ w), (w.shape[1],))


def added(x, w):
    return x.new_zeros(9).index_add(0, (w[0] > 0).long() * 7, x.sum(1)[: w.shape[1]])


def long_sums(x):
    """Accumulators in float64."""
    return x.exp().sum(0), x.exp().sum(1), (x * x).mean()


@pytest.mark.parametrize("stage", interpreted.STAGES)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (pairs, [(70, 3), (50, 3)]),
        (attention, [(2, 70, 16)] * 2),
        (steps, [(40, 8), (8,)]),
        (norms, [(33, 35), (35, 300)]),
        (added, [(40, 33), (2, 40)]),
        (long_sums, [(700, 70)]),
    ],
)
def test_each_stage_by_itself(stage: str, fn: Any, shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    make = functools.partial(interpreted.interpreted, stage=stage)
    before = stats.cache_stats()
    backend.use(functools.partial(compile_program, make=make))
    try:
        found = lt.script(fn)(*inputs)
    finally:
        backend.use(None)
    assert interpreted.fault() is None
    assert not (stats.cache_stats() - before).calls_eager
    torch.testing.assert_close(found, fn(*inputs), rtol=1e-4, atol=1e-4)
