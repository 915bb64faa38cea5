"""`python -m benchmarks.gpu` without a GPU: order, shares, judgements, faults, reports."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import line_of, main, run_all
from benchmarks.gpu.child import Child, Limits, Measured
from benchmarks.gpu.jobs import FORWARD, TRAINING, Job, all_jobs, share_s
from benchmarks.gpu.judge import judge
from benchmarks.gpu.measure import EAGER, LOWTIDE, Run
from benchmarks.gpu.programs import GPU_PROGRAMS
from benchmarks.gpu.report import Report

JOB = Job(program="layer_norm", precision="float32", mode=TRAINING)
# Answers as `benchmarks.gpu.worker` does: one variant crashes, another never ends.
CHILD = """
import json, os, sys, time
def emit(**event): print(json.dumps(event), flush=True)
emit(kind="hello", machine={"gpu": "A GPU, CUDA 13"}, checks=[])
for line in sys.stdin:
    skip = json.loads(line)["skip"]
    emit(kind="job", sizes="N=1", checked="N=1")
    for name in ("eager", "lowtide", "torch.compile"):
        if name in skip:
            emit(kind="variant", name=name, error=skip[name])
            continue
        emit(kind="stage", variant=name, stage="first call")
        if name == "lowtide":
            emit(kind="variant", name=name, first_call_s=0.5)
            sys.stderr.write("an illegal memory access\\n"), sys.stderr.flush(), os._exit(9)
        if name == "torch.compile":
            time.sleep(60)
        emit(kind="variant", name=name, times_ms=[2.0, 4.0, 3.0])
    emit(kind="done")
"""


def report() -> Report:
    return Report(settings={"minutes": 1}, commit="abc")


def test_order() -> None:
    jobs = all_jobs()
    assert [job.program for job in jobs[:3]] == ["intersection", "similarity", "nearest_centre"]
    assert {job.program for job in jobs} == set(GPU_PROGRAMS)
    assert len(set(jobs)) == len(jobs)
    places = {job: place for place, job in enumerate(jobs)}
    for program in GPU_PROGRAMS.values():
        if program.differentiable:  # gradients in float32 before anything in another precision
            place = places[Job(program=program.name, precision="float32", mode=TRAINING)]
            assert all(job.precision == "float32" for job in jobs[:place])
    assert {job.name for job in all_jobs(["attention:float16"])} == {
        "attention, float16, forward",
        "attention, float16, training",
    }


def test_shares_use_up_the_time() -> None:
    jobs, left_s = all_jobs(), 700.0
    for place in range(len(jobs)):
        share = share_s(jobs[place:], left_s)
        assert 0 < share <= left_s
        left_s -= share
    assert left_s == pytest.approx(0.0)


def test_judgements() -> None:
    truth = torch.tensor([1.0, 2.0, 100.0, float("inf")], dtype=torch.float64)
    eager = truth.float() + torch.tensor([0.0, 0.0, 1e-4, 0.0])

    def wrong(got: torch.Tensor, own: torch.Tensor = eager) -> int:
        return judge("", truth, own, got, torch.finfo(torch.float32).eps).wrong

    assert wrong(eager) == 0
    assert wrong(truth.float() + 3e-4) == 0
    assert wrong(truth.float() + torch.tensor([6e-4, 0.0, 0.0, 0.0])) == 1
    assert wrong(torch.tensor([1.0, 2.0, float("nan"), 5.0])) == 2
    assert wrong(eager.double()) == 1
    overflown = torch.tensor([1.0, 2.0, float("inf"), float("inf")])
    assert wrong(overflown, overflown) == 0
    assert wrong(overflown) == 1
    counts = torch.tensor([3, 4])
    assert judge("", counts.double(), counts, counts + torch.tensor([0, 1]), 0.0).wrong == 1


@pytest.mark.parametrize("name", ["chamfer", "nearest_centre", "layer_norm"])
def test_a_job_on_the_cpu(name: str) -> None:
    """All stages, but for what a GPU alone has."""
    mode = TRAINING if GPU_PROGRAMS[name].differentiable else FORWARD
    job = Job(program=name, precision="float32", mode=mode)
    measured, device = Measured(job=job), torch.device("cpu")
    Run(job=job, device=device, emit=measured.take, is_small=True).measure()
    assert "error" not in measured.facts
    assert set(measured.variants) >= {EAGER, LOWTIDE}
    for known in measured.variants.values():
        assert "error" not in known
        assert len(known["times_ms"]) == 1
    ours = measured.variants[LOWTIDE]
    assert [v["note"] for v in ours["verdicts"]] == [""] * len(ours["verdicts"])
    assert ours["left"] == []
    assert ours["predicted_bytes"] > 0
    assert "values right" in line_of(measured)


def test_children_that_fail(tmp_path: Path) -> None:
    """What they were doing is left out by the next one; all else is measured and written."""
    child = Child([sys.executable, "-c", CHILD], tmp_path / "log", dict(os.environ))
    found = report()
    assert child.start() == ""
    found.hello = child.hello
    try:
        run_all(child, found, [JOB], Limits(compile_s=0.2, end_s=float("inf")), tmp_path)
    finally:
        child.stop()
    variants = found.measured[0].variants
    assert child.starts == 3
    assert variants[EAGER]["times_ms"] == [2.0, 4.0, 3.0]
    assert variants[LOWTIDE]["first_call_s"] == 0.5
    assert "status 9; an illegal memory access" in variants[LOWTIDE]["error"]
    assert "more than 0.2 s" in variants["torch.compile"]["error"]
    assert len(found.faults()) == 1
    assert len(found.peers_faults()) == 1
    (table,) = tmp_path.glob("*-a-gpu-gpu.md")
    assert "| 3.00 ms | skipped |" in table.read_text()
    (raw,) = tmp_path.glob("*-a-gpu-gpu.json")
    assert json.loads(raw.read_text())["faults"] == found.faults()


def test_no_time_left(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", ""], tmp_path / "log", dict(os.environ))
    found = report()
    run_all(child, found, [JOB], Limits(end_s=0.0), tmp_path)
    assert found.missing == [JOB]
    assert "Not reached in 1 minutes" in found.to_markdown()
    assert child.starts == 0


def test_wrong_values_are_faults() -> None:
    verdict = {"name": "output 0", "error": 1.0, "eager_error": 0.1, "scale": 2.0, "note": "1 of 9"}
    measured = Measured(job=JOB, variants={LOWTIDE: {"verdicts": [verdict]}})
    found = report()
    found.measured.append(measured)
    assert found.faults() == [
        f"{JOB.name}: lowtide is WRONG: output 0: 1 of 9, error 1, eager's 0.1, values up to 2"
    ]
    assert "WRONG, 10" in found.to_markdown()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "There is no GPU that PyTorch" in capsys.readouterr().err
