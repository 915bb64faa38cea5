"""`tune=True` within a budget: kernels that run chunk by chunk, in a tiling that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen import machines, tuned
from lowtide.tile.target import BLOCK_TILINGS
from tests.blocks.stand_in import Gpu

TAKEN = "small products"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path) -> Iterator[None]:
    with config.override(cache_dir=str(tmp_path)):
        yield


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of the tilings of each measurement, of which one is always the fastest."""
    found: list[list[str]] = []

    def times(ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        found.append(list(ways))
        for way in ways.values():
            way()
        return {name: 1.0 if name == TAKEN else 2.0 for name in ways}

    monkeypatch.setattr(tuned, "_times", times)
    few = {name: BLOCK_TILINGS[name] for name in ("", TAKEN)}
    monkeypatch.setattr(machines, "BLOCK_TILINGS", few)
    return found


def rows(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    h = torch.cumsum(torch.relu(x @ w), 1)
    return (torch.exp(-h.abs()) @ v).sum(1)


def arguments(requires_grad: bool) -> list[Any]:
    torch.manual_seed(0)
    made = [torch.randn(s) * 0.1 for s in ((300, 40), (40, 96), (96, 40))]
    return [x.requires_grad_(requires_grad) for x in made]


def limited(requires_grad: bool) -> tuple[Any, int]:
    """Compiled within two thirds of what a call takes, and the bytes of that."""
    budget = 2 * lt.script(rows).memory(*arguments(requires_grad)).peak_bytes // 3
    return lt.script(rows, budget=budget, tune=True), budget


def check(compiled: Any, requires_grad: bool) -> None:
    given, same = arguments(requires_grad), arguments(requires_grad)
    found, want = compiled(*given), rows(*same)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    if requires_grad:
        found.square().sum().backward()
        want.square().sum().backward()
        for x, y in zip(given, same, strict=True):
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("requires_grad", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values(requires_grad: bool, measured: list[list[str]]) -> None:
    compiled, budget = limited(requires_grad)
    check(compiled, requires_grad)
    assert any(TAKEN in names for names in measured)
    count = len(measured)
    check(compiled, requires_grad)
    assert len(measured) == count  # chunks of a size are measured once
    plan = compiled.memory(*arguments(requires_grad))
    assert plan.peak_bytes <= budget
    assert f'tiling "{TAKEN}", by measurement' in str(compiled.explain(*arguments(requires_grad)))


def test_launches(gpu: Gpu, measured: list[list[str]]) -> None:
    """On a GPU's driver: later calls launch the kernels once for each chunk; none is compiled."""
    compiled, _ = limited(False)
    check(compiled, False)
    loaded, count = len(gpu.loaded), len(gpu.launched)
    check(compiled, False)
    names = [x.source.fn.__name__ for x in gpu.launched[count:]]
    chunks, rest = divmod(len(names), 3)
    assert len(gpu.loaded) == loaded
    assert chunks > 1
    assert rest == 0
    assert names == ["k0", "k0", "k1"] * chunks
