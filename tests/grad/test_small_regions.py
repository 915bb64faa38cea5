"""Regions so small that PyTorch runs them, between ops that PyTorch runs anyway."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.ir.core import Op, Value
from lowtide.ir.prepared import prepared
from lowtide.ir.types import TENSOR
from lowtide.ops import convolutions


def net(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1)


def long(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    y = (torch.tanh(y) * 2 + torch.exp(-y * y)).sigmoid() * y
    return F.conv2d(y, w, padding=1)


def parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w)
    return F.conv2d(y + 1, w), torch.linalg.vector_norm(y.flatten(1), 3.0, 1)


def alone(x: Tensor) -> Tensor:
    return x.relu()


def given(n: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(n)
    x, w = (
        torch.randn(*shape, generator=gen, dtype=dtype) for shape in ((2, 3, n, n), (3, 3, 3, 3))
    )
    return x.requires_grad_(grad), w.requires_grad_(grad)


def kernels(fn: object, *args: Tensor) -> int:
    return len(list(lt.script(fn).explain(*args).kernels))  # type: ignore[attr-defined]


def test_one_cheap_op_between_calls_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "FEW", 0)  # all are PyTorch's
    assert kernels(net, *given(8)) == 0
    assert kernels(net, *given(8, grad=False)) == 1
    assert kernels(net, *given(200)) == 1  # large values
    assert kernels(long, *given(8)) > 0
    assert kernels(alone, given(8)[0]) == 1  # all of the program


@pytest.mark.parametrize("fn", [net, long, parts])
def test_gradients_of_first_and_second_order(fn) -> None:
    compiled = lt.script(fn)
    for size in (8, 8, 150, 8):
        found = []
        for f in (compiled, fn):
            x, w = given(size, dtype=torch.float64)
            out = f(x, w)
            out = out if isinstance(out, tuple) else (out,)
            loss = sum(o.square().mean() for o in out)
            (first,) = torch.autograd.grad(loss, w, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            found.append((*out, first, second))
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want)


def test_without_gradients_after_gradients() -> None:
    compiled, (x, w) = lt.script(net), given(8)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w), net(x, w))
        with torch.no_grad():
            got = compiled(x, w)
        assert not got.requires_grad
        torch.testing.assert_close(got, net(x, w))


def test_prepared_calls_find_what_stands_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = Value("x", TENSOR), Value("y", TENSOR)
    attrs = {"target": "torch.linalg.inv", "kwnames": ()}
    step = prepared(Op(name="call_torch", operands=[x], results=[y], attrs=attrs))
    env = {x: torch.eye(2) * 2}
    step(env)
    assert torch.equal(env[y], torch.eye(2) / 2)
    monkeypatch.setattr(torch.linalg, "inv", torch.neg)
    step(env)
    assert torch.equal(env[y], torch.eye(2) * -2)


def test_prepared_properties() -> None:
    x, y = Value("x", TENSOR), Value("y", TENSOR)
    attrs = {"target": "Tensor.is_leaf", "kwnames": ()}
    env = {x: torch.eye(2)}
    prepared(Op(name="call_torch", operands=[x], results=[y], attrs=attrs))(env)
    assert env[y] is True


def test_as_many_elements_of_other_shapes_build_no_pairs() -> None:
    @lt.script
    def f(x: Tensor, y: Tensor) -> Tensor:
        s = x.sum() * 0
        while s < 100:
            s = s + (x * y).sum()
        return s

    @lt.script
    def g(x: Tensor, n: int) -> Tensor:
        s = x.sum() * 0
        while s < 1000:
            s = s + x.expand(n, -1).exp().sum()
        return s

    x, y = torch.rand(600, requires_grad=True), torch.rand(600)
    f(x, y).backward()
    with lt.profile() as of_pairs:
        f(x.detach()[:, None].requires_grad_(), y).backward()
    g(x, 2).backward()
    with lt.profile() as of_rows:
        g(x, 3000).backward()
    assert max(of_pairs.peak_bytes, of_rows.peak_bytes) < 20_000
