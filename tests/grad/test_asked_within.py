"""A program that asks for gradients of what it has computed itself gets those of eager mode."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

import lowtide as lt


def edge_forces(x: Tensor):
    edges = x[1:] - x[:-1]
    energy = (edges**2).sum()
    return torch.autograd.grad([energy], [edges], create_graph=True)[0]


def of_a_view(x: Tensor):
    first = x[:, 0]
    return grad((first**3).sum(), first)[0]


def pieces(x: Tensor):
    a, b = torch.split(x, 2)
    found = grad([(a * b).sum()], [a, b])
    return found[0], found[1]


def rows(x: Tensor):
    parts = x.unbind(0)
    found = grad([parts[0].sum() * parts[1].exp().sum()], [parts[0], parts[1]])
    return found[0], found[1]


def steps(x: Tensor):
    h, states = x, []
    for _ in range(3):
        h = torch.tanh(h * 1.5)
        states.append(h)
    found = grad([h.sum()], states, create_graph=True)
    return found[0], found[1], found[2]


def laplacian(x: Tensor):
    at = x * 1.0
    slope = grad(torch.sin(at).sum(), at, create_graph=True)[0]
    total = torch.zeros(x.shape[0])
    for i in range(x.shape[1]):
        total = total + grad(slope[:, i].sum(), at, create_graph=True)[0][:, i]
    return total


def the_same_by_another_name(x: Tensor):
    v = x * 2
    energy = v.sum()
    w = v.float()
    return grad(energy + (w**2).sum(), w)[0]


def under_a_condition(x: Tensor):
    v = x * 2
    energy = (v**2).sum()
    found = x
    if bool(x.sum() > -1e9):
        found = grad(energy, v)[0]
    return found


def changed_before(x: Tensor):
    v = x * 2
    v.add_(1)
    return grad((v**2).sum(), v)[0]


def retained(x: Tensor):
    v = x * 2
    energy = (v**2).sum()
    v.retain_grad()
    energy.backward(retain_graph=True)
    return v.grad


PROGRAMS = [
    *(edge_forces, of_a_view, pieces, rows, steps, laplacian, the_same_by_another_name),
    *(under_a_condition, changed_before, retained),
]


def _agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        for a, b in zip(found, wanted, strict=True):
            _agree(a, b)
        return
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad == wanted.requires_grad


def _points() -> Tensor:
    return torch.linspace(-1, 2, 12).reshape(4, 3).requires_grad_()


@pytest.mark.filterwarnings("ignore:.*is frozen as")
@pytest.mark.parametrize("fn", PROGRAMS)
def test_in_programs_and_their_files(fn: Any) -> None:
    wanted = fn(_points())
    scripted = lt.script(fn)
    file = io.BytesIO()
    for call in (scripted, lt.trace(fn, (_points(),), check_trace=False)):
        _agree(call(_points()), wanted)
    lt.save(scripted, file)
    file.seek(0)
    _agree(lt.load(file)(_points()), wanted)


@pytest.mark.parametrize("fn", [edge_forces, pieces, retained])
def test_where_a_captured_graph_ends(fn: Any) -> None:
    _agree(lt.compile(fn)(_points()), fn(_points()))


def test_none_where_eager_gives_none() -> None:
    def fn(x):
        v, w = x * 2, x * 2
        return grad([(w**2).sum()], [v], allow_unused=True)[0] is None

    assert lt.script(fn)(_points())


def test_a_function_left_to_python_may_ask() -> None:
    @lt.ignore
    def slope(y: Tensor, x: Tensor) -> Tensor:
        return torch.autograd.grad(y, x)[0]

    def fn(x):
        v = x * 2
        return slope((v**2).sum(), v)

    _agree(lt.script(fn)(_points()), fn(_points()))
