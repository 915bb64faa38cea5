"""Kernels for GPUs are compiled for sm_80, sm_90 and sm_100; no GPU is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.codegen.triton.executable import BlockExecutable
from lowtide.runtime import blocks
from tests.blocks.programs import CASES
from tests.blocks.test_values import backward, leaves, results


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def without_running(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Kernels are made, and do nothing."""

    def call(self: blocks.BlockKernel, programs: int, *given: object, **widths: int) -> None:
        pass

    monkeypatch.setattr(blocks.BlockKernel, "__call__", call)
    return call


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", [n for n in CASES if n not in ("looked-up",)])
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
        for kernel in executable.compiled_for(capability):
            assert kernel.cubin[:4] == b"\x7fELF"
            assert kernel.shared_bytes <= blocks.SHARED_BYTES[capability]
    assert seen
