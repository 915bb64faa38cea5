"""The programs of `benchmarks.gpu`: values in Triton's interpreter, kernels at full sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks.gpu.child import Measured
from benchmarks.gpu.jobs import FORWARD, TRAINING, Job
from benchmarks.gpu.measure import LOWTIDE, Run, tensors
from benchmarks.gpu.programs import GPU_PROGRAMS, PRECISIONS, GpuProgram
from lowtide.runtime import block_kernels
from tests.blocks.cubins import kernels_of
from tests.blocks.programs import Case

CASES = [(name, p) for name, program in GPU_PROGRAMS.items() for p in program.precisions]


@pytest.mark.long
@pytest.mark.parametrize(("name", "precision"), [x for x in CASES if x[1] != "tf32"])
def test_values(name: str, precision: str) -> None:
    mode = TRAINING if GPU_PROGRAMS[name].differentiable else FORWARD
    job = Job(program=name, precision=precision, mode=mode)
    measured = Measured(job=job)
    Run(job=job, device=torch.device("cpu"), emit=measured.take, is_small=True).measure()
    ours = measured.variants[LOWTIDE]
    assert "error" not in ours
    assert ours["left"] == []
    assert [v for v in ours["verdicts"] if v["note"]] == []


def _uninitialised(program: GpuProgram, precision: str) -> list[Any]:
    """Arguments of the benchmark's size, whose pages nobody touches."""
    dtype = PRECISIONS[precision]
    shapes = program.make_inputs(*program.full)
    return [
        torch.empty(x.shape, dtype=dtype) if x.is_floating_point() else torch.ones_like(x)
        for x in shapes
    ]


def _backward(found: Sequence[torch.Tensor]) -> None:
    torch.autograd.backward(list(found), [torch.empty_like(x) for x in found])


@pytest.mark.long
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_kernels_at_full_size(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned for the benchmark's sizes, they compile for an H200, within its shared memory."""
    program = GPU_PROGRAMS[name]
    if precision == "tf32":
        monkeypatch.setattr(block_kernels, "precision", lambda: "tf32")
    monkeypatch.setattr("tests.blocks.cubins.backward", _backward)
    monkeypatch.setattr("tests.blocks.cubins.results", tensors)
    case = Case(
        fn=program.function,
        more=lambda: tuple(_uninitialised(program, precision)),
        grad=program.differentiable,
    )
    seen: set[object] = set()
    for kernel in kernels_of(case, 90):
        if kernel.key not in seen:
            seen.add(kernel.key)
            kernel.compiled(90)
    assert seen
