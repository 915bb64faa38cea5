"""Kernels for GPUs are compiled for sm_80, sm_90 and sm_100; no GPU is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide.codegen.triton.executable import BlockExecutable
from lowtide.runtime import blocks
from tests.blocks.programs import CASES
from tests.blocks.test_values import backward, leaves, results

# one of each kind of kernel
NAMES = ("scaled-bf16", "rows-long", "attention", "conv", "lstm", "looked-up", "integers")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def without_running(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Kernels are made, and leave only indices that are in bounds."""

    def call(self: blocks.BlockKernel, programs: int, *given: object, **widths: int) -> None:
        for x in given:
            if isinstance(x, torch.Tensor) and not x.is_floating_point():
                x.fill_(1)  # a check has held

    monkeypatch.setattr(blocks.BlockKernel, "__call__", call)
    return call


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", NAMES)
def test_cubins(
    name: str,
    capability: int,
    made: list[BlockExecutable],
    without_running: Callable[..., None],
) -> None:
    case = CASES[name]
    found = results(lt.script(case.fn)(*leaves(case)))
    if case.grad:
        backward(found)
    seen: set[str] = set()
    for executable in made:
        if executable.source in seen:
            continue
        seen.add(executable.source)
        for kernel in executable.cubins(capability):
            assert kernel.code[:4] == b"\x7fELF"
            assert kernel.shared_bytes <= blocks.SHARED_BYTES[capability]
    assert seen
