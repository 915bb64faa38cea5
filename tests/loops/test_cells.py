"""Loops over PyTorch's own cells: the ops that they are, so that such a loop is a scan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide as lt

B, D, H = 3, 5, 36


class OverSteps(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x):
        h = x.new_zeros(x.shape[1], self.cell.hidden_size)
        outputs = []
        for t in range(x.shape[0]):
            h = self.cell(x[t], h)
            outputs.append(h)
        return torch.stack(outputs), h


class OverStepsOfTwo(OverSteps):
    def forward(self, x):
        h = x.new_zeros(x.shape[1], self.cell.hidden_size)
        c = torch.zeros_like(h)
        outputs = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            outputs.append(h)
        return torch.stack(outputs), c


CELLS = {
    "lstm": lambda: OverStepsOfTwo(nn.LSTMCell(D, H)),
    "lstm_plain": lambda: OverStepsOfTwo(nn.LSTMCell(D, H, bias=False)),
    "gru": lambda: OverSteps(nn.GRUCell(D, H)),
    "gru_plain": lambda: OverSteps(nn.GRUCell(D, H, bias=False)),
    "tanh": lambda: OverSteps(nn.RNNCell(D, H)),
    "relu": lambda: OverSteps(nn.RNNCell(D, H, nonlinearity="relu")),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CELLS[name]().double()


def gradients(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    found = module(x)
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape) for y in found]
    return (*found, *torch.autograd.grad(found, [x, *module.parameters()], weights))


@pytest.mark.parametrize("name", CELLS)
def test_a_loop_over_a_cell_is_a_scan(name: str) -> None:
    module = made(name)
    f = lt.script(made(name))
    for n in (40, 3):
        x = torch.randn(n, B, D, dtype=torch.float64)
        got, want = gradients(f, x), gradients(module, x)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    told = str(f.explain(torch.randn(40, B, D, dtype=torch.float64)))
    assert "once for each of" in told
    assert ", 0 ops left to PyTorch" in told


@pytest.mark.parametrize("name", CELLS)
def test_one_step(name: str) -> None:
    cell = made(name).cell
    x, h = torch.randn(B, D, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64)
    state = (h, h * 2) if name.startswith("lstm") else h
    f = lt.script(cell)
    torch.testing.assert_close(f(x, state), cell(x, state))
    torch.testing.assert_close(f(x), cell(x))
    one = (h[0], h[1]) if name.startswith("lstm") else h[0]
    torch.testing.assert_close(f(x[0], one), cell(x[0], one))


@pytest.mark.parametrize("name", ["lstm", "gru", "tanh"])
def test_sizes_that_do_not_fit(name: str) -> None:
    f = lt.script(made(name).cell)
    h = torch.randn(B, H + 1, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        f(torch.randn(B, D, dtype=torch.float64), (h, h) if name == "lstm" else h)
    with pytest.raises(RuntimeError):
        f(torch.randn(B, D + 1, dtype=torch.float64))


def test_second_gradients() -> None:
    f, module = lt.script(made("lstm")), made("lstm")
    found = []
    for m in (f, module):
        x = torch.linspace(-1, 1, 34 * B * D, dtype=torch.float64).reshape(34, B, D)
        x.requires_grad_()
        (g,) = torch.autograd.grad(m(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
    torch.testing.assert_close(*found)
