"""Products by the BLAS of PyTorch's library: any sizes, strides and batches, or a refusal."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.runtime import blas

SIZES = (1, 2, 7, 33, 64)


def run(dtype: str, x: Tensor, w: Tensor, y: Tensor) -> int:
    *batch, rows, terms = x.shape
    numbers = [rows, w.shape[-1], terms]
    numbers += [step for t in (x, w, y) for step in t.stride()[-2:]]
    for d, extent in enumerate(batch):
        numbers += [extent, x.stride(d), w.stride(d), y.stride(d)]
    numbers.insert(9, len(batch))
    found = blas.blas(dtype)
    places = (x.data_ptr(), w.data_ptr(), y.data_ptr())
    return found.run(blas.packer(len(batch))(found.one, found.batch, *places, *numbers))


def matrix(draw: random.Random, batch: list[int], rows: int, columns: int, dtype: torch.dtype):
    """Row-major, by columns, a part of a larger tensor, or with the batch between."""
    kind, rank = draw.randrange(4), len(batch)
    if kind == 1:
        return torch.randn(*batch, columns, rows, dtype=dtype).transpose(-1, -2)
    if kind == 2:
        whole = torch.randn(*batch, rows + 3, columns + 5, dtype=dtype)
        return whole[..., 1 : rows + 1, 2 : columns + 2]
    if kind == 3:
        between = torch.randn(rows, *batch, columns, dtype=dtype)
        return between.permute(*range(1, rank + 1), 0, rank + 1)
    return torch.randn(*batch, rows, columns, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    draw, name = random.Random(0), {torch.float32: "f32", torch.float64: "f64"}[dtype]
    if not blas.blas(name).one:
        pytest.skip("PyTorch is built without MKL")
    done = 0
    for _ in range(200):
        batch = [draw.choice((1, 2, 5, 19)) for _ in range(draw.randrange(4))]
        rows, columns, terms = (draw.choice(SIZES) for _ in range(3))
        x, w = matrix(draw, batch, rows, terms, dtype), matrix(draw, batch, terms, columns, dtype)
        y = matrix(draw, batch, rows, columns, dtype).fill_(float("nan"))
        if run(name, x, w, y):
            assert y.isnan().all()
            assert y.stride(-1) != 1  # only results by columns are refused
            continue
        done += 1
        torch.testing.assert_close(y, x @ w, rtol=1e-4, atol=1e-4)
    assert done > 120


def test_refusals() -> None:
    x, w, y = torch.ones(4, 6), torch.ones(6, 8), torch.zeros(4, 8)
    assert run("f32", x[:, :0], w[:0], y) == 1  # a sum over nothing
    assert run("f32", torch.ones(4, 12)[:, ::2], w, y) == 1  # no dim has a step of 1
    assert run("f32", torch.ones(6).expand(4, 6), w, y) == 1  # rows overlap
    assert not y.any()


def test_without_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    blas.blas.cache_clear()
    monkeypatch.setattr(blas.launch, "torch_function", lambda name: 0)
    assert run("f32", torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 2)) == 1
    blas.blas.cache_clear()


def layer(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x + 1) @ w


def test_a_lower_precision_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[bytes]()
    known = blas.blas("f32")
    seen = dataclasses.replace(known, run=lambda slots: calls.append(slots) or known.run(slots))
    monkeypatch.setattr(blas, "blas", lambda dtype: seen)
    with config.override(products="library"):
        f = lt.script(layer)
        x, w = torch.rand(300, 200), torch.rand(200, 100)
        f(x, w)
        assert len(calls) == 1
        torch.set_float32_matmul_precision("medium")
        try:
            f(x, w)
        finally:
            torch.set_float32_matmul_precision("highest")
    assert len(calls) == 1
