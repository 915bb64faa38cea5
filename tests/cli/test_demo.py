"""The demo's worker in this process, with a stand-in for the compilers, and its printed tables."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.cli import app
from lowtide.errors import LowtideError
from lowtide.tools import demo, demo_worker
from lowtide.tools.demo_worker import Worker
from lowtide.tools.programs import PROGRAMS

CHAMFER = PROGRAMS["chamfer"]


class Compiled:
    """Calls the plain function, and foretells a peak."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def memory(self, *args: Any) -> SimpleNamespace:
        return SimpleNamespace(peak_bytes=12345)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(demo_worker, "_compiled", lambda variant, function: Compiled(function))
    return monkeypatch


def final_rows(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Run a worker; the last row that it reported of each variant."""
    Worker(CHAMFER, CHAMFER.quick, torch.device("cpu")).run()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {event["variant"]: event for event in events if event["event"] == "row"}


def test_all_variants_are_measured(
    compiled: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = final_rows(capsys)
    assert list(rows) == ["eager", "torch.compile", "lowtide"]
    for row in rows.values():
        assert not row["error"]
        assert row["min_ms"] > 0
        assert row["peak_bytes"] >= row["extra_bytes"]
    assert rows["lowtide"]["agrees"] is True
    assert rows["lowtide"]["predicted_bytes"] == 12345
    assert demo._is_good(list(rows.values()))


def test_eager_is_skipped_where_memory_is_short(
    compiled: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled.setattr(demo_worker, "available_bytes", lambda: 10 << 20)
    rows = final_rows(capsys)
    assert rows["eager"]["error"] == "skipped: needs 22.9 MiB, 10.0 MiB are free"
    assert rows["eager"]["min_ms"] is None
    assert rows["lowtide"]["agrees"] is True
    assert rows["lowtide"]["note"] == "checked at N=1000, M=1000"


def test_one_variant_that_fails_does_not_stop_the_others(
    compiled: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(variant: str, function: Any) -> Any:
        if variant == "torch.compile":
            raise RuntimeError("backend raised:\nNo C++ compiler")
        return Compiled(function)

    compiled.setattr(demo_worker, "_compiled", make)
    rows = final_rows(capsys)
    assert rows["torch.compile"]["error"] == "RuntimeError: backend raised: No C++ compiler"
    assert rows["lowtide"]["min_ms"] > 0


def test_a_wrong_result_is_said_and_counts(
    compiled: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(variant: str, function: Any) -> Any:
        return Compiled(lambda a, b: function(a + 1, b))

    compiled.setattr(demo_worker, "_compiled", make)
    row = final_rows(capsys)["lowtide"]
    assert row["agrees"] is False
    assert demo._cells(row)[-1].startswith("INCORRECT [0]: ")
    assert not demo._is_good([row])


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [(5 << 20, 1 << 20, "4.00 MiB less"), (0, 4 << 20, "4.00 MiB more"), (0, 9, "the same")],
)
def test_verdict(theirs: int, ours: int, text: str) -> None:
    rows = [
        {"variant": "eager", "min_ms": 4.0, "extra_bytes": theirs},
        {"variant": "lowtide", "min_ms": 2.0, "extra_bytes": ours},
    ]
    assert demo._verdict(rows) == f"Lowtide: 2.0× the speed of eager with {text} memory"


def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LowtideError, match="no cuda device that PyTorch"):
        demo.run_demo(device="cuda")
    assert app(["demo", "--device", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("lowtide: there is no cuda device")


def test_without_rich(compiled: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What no terminal shows needs nothing but PyTorch."""
    compiled.setattr(demo, "DEMO_PROGRAMS", ("chamfer",))
    row = {"event": "row", "variant": "lowtide", "agrees": True, "min_ms": 2.0}
    compiled.setattr(demo, "_measure", lambda *_: [row])
    compiled.setitem(sys.modules, "rich", None)
    assert demo.run_demo(is_quick=True) == 0
    assert "correct" in capsys.readouterr().out
