"""`python -m benchmarks.gpu` without a GPU: order, shares, judgements, faults, reports."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
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
emit(kind="hello", machine={"gpu": "A GPU, CUDA 13"})
for line in sys.stdin:
    if "job" not in json.loads(line):
        emit(kind="check", name="compiler", ok=True, detail="gcc", remedy="")
        emit(kind="done")
        continue
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


# Of each job, the first child's variant ends it by a fault, the second one without an answer.
ONCE = """
import json, os, sys, time
def emit(**event): print(json.dumps(event), flush=True)
emit(kind="hello", machine={})
skip = json.loads(sys.stdin.readline())["skip"]
emit(kind="stage", variant="lowtide", stage="values" if skip else "first call")
if skip:
    os._exit(7)
emit(kind="variant", name="lowtide", error="first call: CUDA error")
os._exit(70)
"""


def report() -> Report:
    return Report(settings={"minutes": 1}, commit="abc")


def a_child(text: str, folder: Path) -> Child:
    return Child([sys.executable, "-c", text], folder / "log", dict(os.environ))


def test_order() -> None:
    jobs = all_jobs()
    assert [job.program for job in jobs[:3]] == ["boxes", "similarity", "nearest_centre"]
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
    child = a_child(CHILD, tmp_path)
    found = report()
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
    child, found = a_child("", tmp_path), report()
    run_all(child, found, [JOB], Limits(end_s=0.0), tmp_path)
    assert found.missing == [JOB]
    assert "Not reached in 1 minutes" in found.to_markdown()
    assert child.starts == 0


def test_what_takes_too_long_is_left_out_of_the_next_job(tmp_path: Path) -> None:
    child, found = a_child(CHILD, tmp_path), report()
    jobs = [dataclasses.replace(JOB, precision=x) for x in ("float32", "bfloat16")]
    try:
        run_all(child, found, jobs, Limits(compile_s=0.2), tmp_path)
    finally:
        child.stop()
    first, second = (x.variants["torch.compile"]["error"] for x in found.measured)
    assert first == "first call: skipped, as it took more than 0.2 s"
    assert second == f"{first} in {JOB.name}"
    assert child.starts == 4  # lowtide's crash is tried again


def test_the_first_fault_is_not_lost(tmp_path: Path) -> None:
    child = a_child(ONCE, tmp_path)
    measured = child.measure(JOB, 60.0, Limits())
    assert child.starts == 2
    assert measured.variants[LOWTIDE]["error"] == (
        "first call: CUDA error; then values: ended with status 7"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise SystemExit('no GPU today')", "ended with status 1; no GPU today"),
        ("import time; time.sleep(60)", "no answer in"),
    ],
)
def test_no_child_starts(text: str, says: str, tmp_path: Path) -> None:
    """Two tries, within the time; all that is known is written."""
    child, found = a_child(text, tmp_path), report()
    begin_s = time.monotonic()
    run_all(child, found, [JOB, JOB], Limits(end_s=begin_s + 3.0), tmp_path)
    assert time.monotonic() - begin_s < 6.0
    assert child.starts == 2
    assert found.missing == [JOB, JOB]
    assert says in found.faults()[0]
    assert found.write(tmp_path).read_text().count(says) >= 1


def test_the_time_ends_during_a_stage(tmp_path: Path) -> None:
    child, found = a_child(CHILD, tmp_path), report()
    assert child.start(Limits()) == ""
    measured = child.measure(JOB, 60.0, Limits(end_s=time.monotonic() + 3.0))
    found.measured.append(measured)
    assert measured.variants["torch.compile"]["error"] == "first call: the time was over"
    assert found.peers_faults() == []
    assert "Not reached in 1 minutes" in found.to_markdown()


def test_a_report_is_written_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, and also where the folder cannot be made."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def fails(*_: object) -> list[Job]:
        raise RuntimeError("a fault of this command")

    monkeypatch.setattr(command, "all_jobs", fails)
    assert main(["--out", str(tmp_path / "file" / "results")]) == 1
    (table,) = tmp_path.glob("*-no-gpu-gpu.md")
    assert "a fault of this command" in table.read_text()


def test_caches_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {"TRITON_CACHE_DIR": str(tmp_path / "file"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert command.caches(env, tmp_path) == {"TRITON_CACHE_DIR": f"{tmp_path}/triton_cache_dir"}


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
