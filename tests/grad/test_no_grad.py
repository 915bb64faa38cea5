"""`with torch.no_grad()` inside a compiled function: gradients are eager's, and it is one region
where the block only computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import close, randn


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


def soft_targets(x: Tensor, w: Tensor):
    with torch.no_grad():
        targets = F.softmax(x.flip(0) @ w.t(), -1)
    return -(targets * F.log_softmax(x @ w.t(), -1)).sum(-1).mean()


def a_name_and_a_view_inside(x: Tensor, w: Tensor):
    with torch.no_grad():
        same, gram = x, x.t() @ x
    return gram.sum() * x.sum() + same.sum() + w.sum()


def views_that_leave(x: Tensor, w: Tensor):
    """To PyTorch, a view of a leaf wants gradients even so."""
    with torch.no_grad():
        columns, rows = x.t(), x.reshape(x.shape)
    return (columns @ x).sum() + (x * rows).sum() + w.sum()


def one_manager(x: Tensor, w: Tensor):
    manager = torch.no_grad()
    with manager:
        a = x * 2
    with manager:
        b = a * x
    return (x * a * b).sum() + w.sum()


def joined(x: Tensor, w: Tensor):
    with torch.no_grad():
        mean = torch.cat([x, w]).mean(0)
    return (x * mean).sum() + w.sum()


def branches(x: Tensor, w: Tensor):
    with torch.no_grad():
        norm = x.square().sum(1, keepdim=True)
        scale = norm * 2 if x.shape[0] > 5 else norm
    return (x / scale).sum() + w.sum()


def a_loop_of_its_own(x: Tensor, w: Tensor):
    with torch.no_grad():
        h = torch.zeros(x.shape[1], dtype=x.dtype)
        for i in range(x.shape[0]):
            h = torch.tanh(h + x[i])
    return (x * h).sum() + w.sum()


@torch.no_grad()
def weights_of(x: Tensor):
    return x.softmax(-1)


def decorated(x: Tensor, w: Tensor):
    return (weights_of(x) * x).sum() + w.sum()


def what_is_handed_on(x: Tensor, w: Tensor):
    with torch.no_grad():
        same, also = x.double(), w.contiguous()
    return (same * same).sum() + also.sum()


def in_a_list(x: Tensor, w: Tensor):
    with torch.no_grad():
        both = [x, w]
    return (both[0] * both[0]).sum() + both[1].sum()


def carried_through_a_loop(x: Tensor, w: Tensor):
    h = x[0] * 2
    with torch.no_grad():
        for i in range(w.shape[0] - 20):
            h = torch.tanh(h + x[i])
    return (x * h).sum() + w.sum()


def changed_in_place(x: Tensor, w: Tensor):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
        b = y + 1
    return (y * b).sum() + w.sum()


def gradients_on_again(x: Tensor, w: Tensor):
    with torch.no_grad(), torch.enable_grad():
        y = x * 2
    return (y * y).sum() + w.sum()


def a_leaf(x: Tensor, w: Tensor):
    with torch.no_grad():
        z = torch.ones(x.shape[1], dtype=x.dtype, requires_grad=True)
        y = z * 2
    return (x * y).sum() + w.sum() + z.sum()


INLINED = [
    soft_targets,
    a_name_and_a_view_inside,
    one_manager,
    joined,
    branches,
    a_loop_of_its_own,
    decorated,
]
LEFT = [
    views_that_leave,
    what_is_handed_on,
    in_a_list,
    carried_through_a_loop,
    changed_in_place,
    gradients_on_again,
    a_leaf,
]


@pytest.mark.parametrize("fn", [*INLINED, *LEFT], ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_eager(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = lt.script(fn)
    found: list[tuple[Tensor, ...]] = []
    for run in (compiled, fn):
        x, w = randn(12, 7).requires_grad_(), randn(20, 7, seed=1).requires_grad_()
        y = run(x, w)
        found.append((y, *torch.autograd.grad(y, [x, w])))
        assert y.requires_grad
    for got, want in zip(*found, strict=True):
        close(got, want)
    report = compiled.explain(randn(12, 7).requires_grad_(), randn(20, 7).requires_grad_())
    left = [x.op for x in report.torch_ops]
    assert ("no_grad" in left) is (fn in LEFT), str(report)
    assert len(report.regions) == 1 or fn in (*LEFT, a_loop_of_its_own), str(report)
