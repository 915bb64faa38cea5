"""`torch.autocast` inside a traced function is part of the program."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt


class Mixed(nn.Module):
    """Nested blocks, values and sizes that leave them, a write, and `no_grad` inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def cast(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = self.project(x)
            width = x.shape[1]
            with torch.autocast("cpu", enabled=False):
                b = self.project(a.float()) * width
            with torch.no_grad():
                c = self.project(x) + 1
            low = a @ b.t()
            low[0] = 1.0
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
            half = self.project(x)
        return a, b, c, low, half, self.cast(x) * width, self.norm(a.float())


def _run(fn: Any, model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    results = list(fn(x))
    sum(r.float().square().sum() for r in results if r.requires_grad).backward()
    return results, [x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("rows", [3, 5])
def test_values_and_gradients(rows: int) -> None:
    torch.manual_seed(0)
    model = Mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("error", lt.TracerWarning)
        traced = lt.trace(model, torch.randn(3, 4))
    x = torch.randn(rows, 4)
    results, gradients = _run(traced, model, x)
    expected, by_eager = _run(model, model, x)
    for a, b in zip(results, expected, strict=True):
        assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad)
        torch.testing.assert_close(a, b)
    for a, b in zip(gradients, by_eager, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)  # sums of bfloat16


def test_a_saved_trace(tmp_path: Path) -> None:
    model = Mixed()
    x = torch.randn(3, 4)
    traced = lt.trace(model, x)
    lt.save(traced, tmp_path / "mixed.lt")
    loaded = lt.load(tmp_path / "mixed.lt")
    assert [r.dtype for r in loaded(x)] == [r.dtype for r in model(x)]


def test_a_scripted_function_within() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    scripted = lt.script(product)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = scripted(x)
        return low, scripted(x)

    x = torch.randn(4, 4)
    assert [r.dtype for r in lt.trace(fn, x)(x)] == [torch.bfloat16, torch.float32]


def test_the_state_at_the_start_is_that_of_the_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = lt.trace(fn, x)
        assert traced(x).dtype == torch.bfloat16
    assert traced(x).dtype == torch.float32
