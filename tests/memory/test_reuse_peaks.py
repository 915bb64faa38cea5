"""What results over operands save, as it is predicted and as it is measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.search import path
from lowtide.execute.driver import Driver
from lowtide.runtime import ownership
from tests.memory.contract import requested_bytes

MB = 1 << 20
ROOM_BYTES = MB // 8  # of what is small


def measured(call: Any) -> int:
    call()
    return requested_bytes(call)


def forget_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is known to be ours."""
    monkeypatch.setattr(ownership, "is_alone", lambda *_: False)
    monkeypatch.setattr(ownership, "is_alone_in_backward", lambda *_: False)


def steps(x: Tensor, v: Tensor) -> Tensor:
    y = torch.relu(x * 2)
    v = torch.msort(v)  # PyTorch's
    y = torch.tanh(y * v)
    v = torch.msort(v + 1)
    return y * v + 1


def test_kernels_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, v = torch.randn(2 * MB), torch.randn(1)
    compiled: Any = lt.script(steps)
    plan = compiled.memory(x, v)
    assert plan.peak_bytes <= 8 * MB + ROOM_BYTES
    assert "over y" in str(compiled.explain(x, v))
    assert measured(lambda: compiled(x, v)) <= plan.peak_bytes
    forget_counts(monkeypatch)
    assert compiled.memory(x, v).peak_bytes >= 16 * MB
    assert measured(lambda: compiled(x, v)) >= 15 * MB


def residual(x: Tensor) -> Tensor:
    x = x + F.layer_norm(torch.special.i0e(x), (4096,))
    x = x + F.layer_norm(torch.special.i0e(x), (4096,))
    return x + F.layer_norm(torch.special.i0e(x), (4096,))


def test_a_budget_takes_what_pytorch_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(8, 64, 4096)
    compiled: Any = lt.script(residual)
    driver, values = compiled.resolve(compiled.bind((x,), {}))
    whole = list(itertools.islice(path(Driver(driver.function), values), 2))[1]
    limited: Any = lt.script(residual, budget=whole.peak_bytes)
    plan = limited.memory(x)
    assert plan.peak_bytes <= 16 * MB + ROOM_BYTES
    assert measured(lambda: limited(x)) <= plan.peak_bytes
    torch.testing.assert_close(limited(x), compiled(x), rtol=0, atol=0)
    forget_counts(monkeypatch)
    assert list(itertools.islice(path(driver, values), 2))[1].peak_bytes >= 24 * MB


class Twice(torch.autograd.Function):
    """A gradient that PyTorch makes, of nothing that it keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return cotangents[0] * 2


def point(x: Tensor) -> Tensor:
    return torch.tanh(x * 2)


def test_a_gradient_over_its_cotangent(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(10 * MB, requires_grad=True)  # 40 MB: not of the heap
    compiled: Any = lt.script(point)

    y = Twice.apply(compiled(x)).sum()

    def run() -> Tensor:
        return torch.autograd.grad(y, x, retain_graph=True)[0]

    torch.testing.assert_close(run(), torch.autograd.grad((point(x) * 2).sum(), x)[0])
    assert measured(run) <= 40 * MB + ROOM_BYTES
    forget_counts(monkeypatch)
    assert measured(run) >= 80 * MB
