"""Steps that read their neighbours, one after another: what each step makes is stored where to
compute it at every place that reads it would cost more; a value of pairs never is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

import lowtide as lt


def around(x):
    for _ in range(4):
        x = torch.tanh(torch.roll(x, 1, 0) * 0.5 + x * 0.3 + torch.roll(x, -1, 0) * 0.2)
    return x


def heat(x):
    for _ in range(5):
        x = x[1:-1] + 0.1 * (x[2:] - 2 * x[1:-1] + x[:-2])
    return x


def heat_on_a_ring(u):
    for _ in range(3):
        to_sides = torch.roll(u, 1, 1) + torch.roll(u, -1, 1)
        u = u + 0.1 * (torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + to_sides - 4 * u)
    return u


def jacobi(u):
    u = u.clone()
    for _ in range(3):
        u[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    return u


def wave(u):
    v = torch.zeros_like(u)
    for _ in range(3):
        v = v + 0.1 * (torch.nn.functional.pad(u[1:], (0, 0, 0, 1)) - u)
        u = u + torch.sin(v)
    return u


LINE, PLANE = (70,), (34, 37)
CHAINS = [(around, LINE), (heat, LINE), (heat_on_a_ring, PLANE), (jacobi, PLANE), (wave, PLANE)]


@pytest.mark.parametrize(("chain", "shape"), CHAINS)
def test_chains_of_stencils(chain: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    x, y = (torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape) for _ in range(2))
    x.requires_grad_()
    y.requires_grad_()
    compiled = lt.script(chain)
    found, expected = compiled(x), chain(y)
    assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(x.grad, y.grad)
    sizes = [len(text) for stage, text in compiled.stages(x) if "normal form" in stage]
    assert max(sizes) < 4500  # each step once: it would be ten times that, and more with every step


def differences_of_pairs(x):
    d = torch.tanh(x[:, None] - x[None])
    e = torch.tanh(d[1:] - d[:-1] * 2)
    return (e[:, 1:] - e[:, :-1]).abs().sum(1)


def test_pairs_are_not_stored() -> None:
    x = torch.linspace(-1, 1, 300)
    compiled = lt.script(differences_of_pairs)
    assert_close(compiled(x), differences_of_pairs(x))
    assert compiled.memory(x).peak_bytes < 300 * 300


def rolled_sides(x, a: int, b: int):
    return torch.roll(x, a, -1) - torch.roll(x, b, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_lanes_that_begin_again(dtype: torch.dtype) -> None:
    compiled = lt.script(rolled_sides)
    for n in (1, 2, 7, 15, 16, 17, 31, 32, 33, 34, 47, 100):
        x = torch.arange(3 * n).reshape(3, n).to(dtype)
        for a, b in ((1, -1), (5, n), (-17, 16)):
            assert torch.equal(compiled(x, a, b), rolled_sides(x, a, b)), (n, a, b)


def gated(x):
    a, b = x.chunk(2, 1)
    return a * torch.sigmoid(b)


def test_halves_of_a_gradient_are_read_along_lines() -> None:
    """Lanes along the rows of memory, though each half of them reads beyond the other's end."""
    compiled = lt.script(gated)
    for n in (2, 34, 40, 66):
        x = torch.linspace(-1, 1, 64 * n).reshape(64, n).requires_grad_()
        y = x.detach().clone().requires_grad_()
        compiled(x).square().sum().backward()
        gated(y).square().sum().backward()
        assert_close(x.grad, y.grad)
    plan = dict(compiled.stages(x))["backward tile program"]
    assert "nest (y0, y1 vector" in plan
