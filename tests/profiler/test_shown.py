"""How a profile is shown: text, data frame, picture, trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.tools.profiler.profile import Profile
from lowtide.tools.profiler.rows import SORTS
from tests.profiler.programs import Block, similarity


@pytest.fixture(scope="module")
def prof() -> Profile:
    model = Block()
    with lt.profile() as made:
        for _ in range(2):
            model(torch.rand(10, 32)).sum().backward()
            made.step()
        similarity(torch.rand(8, 20), torch.rand(8, 20))
    return made


def test_the_table(prof: Profile) -> None:
    lines = prof.table(row_limit=3).splitlines()
    assert lines[0].startswith("peak ")
    assert lines[1].split()[:2] == ["op", "phase"]
    assert len(lines) == 1 + 2 + 3 + 1
    assert lines[-1].startswith("… and ")
    assert "programs.py:" in prof.table()
    assert len(prof.table(row_limit=-1).splitlines()) == 3 + len(prof.rows())
    assert str(prof) == prof.table()


@pytest.mark.parametrize("sort_by", SORTS)
def test_rows_are_sorted(prof: Profile, sort_by: str) -> None:
    rows = prof.rows(sort_by)
    key = {"self_time": "self_time_ns"}.get(sort_by, sort_by)
    values: list[Any] = [getattr(row, key) for row in rows]
    if sort_by == "source":
        values = [(row.file, row.line) for row in rows]
    assert values == sorted(values, reverse=sort_by not in ("op", "source", "module"))


def test_an_unknown_column_is_named(prof: Profile) -> None:
    with pytest.raises(lt.LowtideError, match=r"'cuda_time'.*self_bytes"):
        prof.table(sort_by="cuda_time")


@pytest.mark.parametrize("row_limit", ["10", None, 2.5, -2, True])
def test_what_is_no_number_of_rows_is_named(prof: Profile, row_limit: Any) -> None:
    for show in (prof.table, prof.to_dict):
        with pytest.raises(lt.LowtideError, match=r"row_limit=.* is not a number of rows"):
            show(row_limit=row_limit)


def test_the_data_frame(prof: Profile) -> None:
    pytest.importorskip("pandas")
    frame = prof.to_pandas()
    assert list(frame.columns) == [
        "op", "calls", "self_time_ns", "self_bytes", "freed_bytes", "peak_bytes", "file", "line",
        "source", "module", "phase",
    ]  # fmt: skip
    assert len(frame) == len(prof.rows())
    assert frame["self_bytes"].sum() == sum(row.self_bytes for row in prof.rows())


def test_json(prof: Profile) -> None:
    found = json.loads(json.dumps(prof.to_dict()))
    assert found["peak_bytes"] == prof.peak_bytes
    assert len(found["rows"]) == len(prof.rows())
    assert sum(one["nbytes"] for one in found["live_at_peak"]) == prof.peak_bytes


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture(prof: Profile, tmp_path: Path, ending: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory.{ending}"
    prof.plot(path)
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 5000


def test_the_picture_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with lt.profile() as empty:
        pass
    empty.plot(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


@pytest.mark.parametrize("name", ["memory.xyz", "memory", ""])
def test_a_picture_of_no_format(prof: Profile, tmp_path: Path, name: str) -> None:
    with pytest.raises(lt.LowtideError, match=r"must end in \.png"):
        prof.plot(tmp_path / name)
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))


def test_the_trace(prof: Profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    by_kind = {kind: [e for e in events if e["ph"] == kind] for kind in "XCMi"}
    assert len(by_kind["X"]) == sum(row.calls for row in prof.rows())
    assert max(e["args"]["bytes"] for e in by_kind["C"]) == prof.peak_bytes
    assert len(by_kind["i"]) == 2
    assert {e["cat"] for e in by_kind["X"]} == {"forward", "backward"}
    for event in by_kind["X"]:
        assert event["dur"] >= 0
        assert {"pid", "tid", "ts", "name"} <= set(event)
        assert "source" in event["args"]
    assert by_kind["M"][0]["args"]["name"] == "MainThread"


def test_an_extra_that_is_missing(prof: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(lt.LowtideError, match=r"pip install 'lowtide\[profile\]'"):
        prof.to_pandas()
