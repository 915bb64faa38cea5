"""Gradients through traced functions, and `no_grad` inside them."""

from __future__ import annotations

import torch
from agree import same

import lowtide as lt

R = torch.rand


def test_no_grad_inside_keeps_gradients_out() -> None:
    weight = R(3, requires_grad=True)

    def fn(x):
        with torch.no_grad():
            scale = (x * weight).sum()
            weight.clamp_(max=0.5)
        return x * scale * weight

    traced = lt.trace(fn, R(3))
    x = R(3)
    for call in (fn, traced):
        weight.grad = None
        call(x).sum().backward()
        same(weight.grad, (x * (x * weight).sum()).detach())


def test_gradients_to_inputs() -> None:
    traced = lt.trace(lambda x, y: (x * y).tanh().sum(), (R(3), R(3)))
    x, y = R(5, requires_grad=True), R(5)
    traced(x, y).backward()
    z = x.detach().requires_grad_()
    (z * y).tanh().sum().backward()
    same(x.grad, z.grad)


def test_grad_inside_the_traced_function() -> None:
    def fn(x):
        x = x.detach().requires_grad_()
        energy = (x**3).sum()
        (force,) = torch.autograd.grad(energy, x)
        return force

    traced = lt.trace(fn, R(3))
    x = R(4)
    same(traced(x), 3 * x**2)


def test_inference_mode_inside() -> None:
    weight = R(3, requires_grad=True)

    def fn(x):
        with torch.inference_mode():
            scale = (x * weight).sum()
        return x * weight * scale.clone()

    traced = lt.trace(fn, R(3), check_trace=False)
    x = R(3)
    traced(x).sum().backward()
    same(weight.grad, (x * (x * weight).sum()).detach())


def test_traced_without_gradients_and_run_with() -> None:
    weight = R(3, requires_grad=True)
    with torch.no_grad():
        traced = lt.trace(lambda x: x * weight, R(3))
    x = R(3)
    traced(x).sum().backward()
    same(weight.grad, x)


def test_a_call_leaves_the_grad_mode() -> None:
    def fn(x):
        with torch.no_grad():
            y = x + 1
        return y * x

    traced = lt.trace(fn, R(3))
    with torch.no_grad():
        traced(R(3))
        assert not torch.is_grad_enabled()
    traced(R(3))
    assert torch.is_grad_enabled()


def test_an_example_that_is_no_leaf_may_be_written() -> None:
    def fill(x, y):
        x[:] = y
        x.mul_(2)
        return x.sum()

    leaf = R(4, 3, requires_grad=True)
    traced = lt.trace(fill, (R(4, 3), leaf * 1))  # x requires a gradient once it is written
    assert traced(leaf * 1, leaf).requires_grad
    traced = lt.trace(lambda x: torch.relu_(x) + 1, (leaf * 1,))
    x = leaf * 1
    assert torch.equal(traced(x), x + 1)


def test_no_grad_inside_a_run_without_gradients() -> None:
    def fn(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
        return y, z, y * z

    with torch.no_grad():
        traced = lt.trace(fn, R(4))
        assert not any(y.requires_grad for y in traced(R(4).requires_grad_()))
    ours, theirs = (torch.ones(4, requires_grad=True) for _ in range(2))
    for f, x in ((traced, ours), (fn, theirs)):
        found = f(x)
        assert [y.requires_grad for y in found] == [True, False, True]
        found[2].sum().backward()
    assert torch.equal(ours.grad, theirs.grad)
