"""Kernels for GPUs, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from lowtide import config
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.specialise.abstract import Abs
from lowtide.specialise.signature import Binding
from lowtide.texpr.build import Builder

if TYPE_CHECKING:
    from tests.blocks.stand_in import Gpu

pytest.importorskip("triton")

DEVICES = [
    "interpreter",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture(autouse=True, scope="module")
def _quickly_interpreted() -> Iterator[None]:
    from tests.blocks.quick_interpreter import quicken  # needs Triton

    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with config.override(interpret_blocks=True):
        yield


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors of a test are: kernels run in Triton's interpreter, and on a GPU."""
    return torch.device("cpu" if request.param == "interpreter" else request.param)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    """The machine of all programs of the test."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from tests.blocks.stand_in import Gpu  # needs Triton

    found = Gpu()
    found.install(monkeypatch)
    yield found
    found.remove()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BlockKernels]:
    """Every executable of blocks that the test has made."""
    found: list[BlockKernels] = []
    real = BlockKernels.bound

    def bound(self: BlockKernels) -> object:
        found.append(self)
        return real(self)

    monkeypatch.setattr(BlockKernels, "bound", bound)
    return found


@pytest.fixture
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are lowered as for tensors of a GPU, wherever these are."""
    real = Binding.abstract

    def abstract(self: Binding) -> tuple[Builder, list[Abs]]:
        builder, live = real(self)
        builder.device = torch.device("cuda", 0)
        return builder, live

    monkeypatch.setattr(Binding, "abstract", abstract)
