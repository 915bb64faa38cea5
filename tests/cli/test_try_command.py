"""`lowtide try`: eager PyTorch against Lowtide on a function of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.cli import app
from lowtide.tools.try_command import Trial, try_target

SOURCE = """\
import torch

import lowtide as lt


def overlaps(a, b):
    low = torch.max(a[:, None, :2], b[:, :2])
    high = torch.min(a[:, None, 2:], b[:, 2:])
    return (high - low).clamp(min=0).prod(-1)


def nearest(x, y):
    return torch.cdist(x, y).topk(3, largest=False)


def guarded(x):
    try:
        return x * 2
    finally:
        pass


def counted(x):
    return x.long() + 1


def wrong(x):
    return x + float("inf") if torch.jit.is_scripting() else x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.linear(x).softmax(-1)


captured = lt.compile(overlaps)
scripted = lt.script(Net())
"""


@pytest.fixture(autouse=True)
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried_module.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def tried(name: str, shapes: str, *, backward: bool = False) -> Trial:
    return try_target(f"tried_module:{name}", shapes, "float32", backward)


def test_it_compares_with_eager() -> None:
    found = tried("overlaps", "3000x4,50x4")
    eager, ours = found.comparison.rows
    assert found.works
    assert ours.agrees
    assert ours.peak_bytes is not None
    assert eager.peak_bytes is not None
    assert ours.peak_bytes < eager.peak_bytes / 4
    assert found.predicted_bytes is not None
    assert found.predicted_bytes >= ours.peak_bytes
    assert "its memory. The results agree." in str(found)


def test_gradients_of_arguments_and_parameters_are_compared() -> None:
    for name, shapes in (("overlaps", "40x4,50x4"), ("Net", "64x16")):
        found = tried(name, shapes, backward=True)
        assert found.comparison["lowtide"].agrees, found


def test_a_run_in_float64_is_the_judge() -> None:
    found = tried("nearest", "2000x3,1000x3")  # PyTorch's cdist rounds more than the kernel
    assert found.comparison["lowtide"].agrees is False
    assert found.errors is not None
    assert found.errors["lowtide"] < found.errors["eager"]
    assert found.works
    assert "differ by rounding" in str(found)
    assert any("topk" in line for line in found.left)


def test_a_wrong_result_is_told() -> None:
    found = tried("wrong", "8")
    assert not found.works
    assert "THE RESULTS DIFFER" in str(found)


def test_what_script_refuses_is_compiled_by_graph_capture() -> None:
    found = tried("guarded", "100x4")
    assert found.works
    assert "`try` is not compiled" in found.refused
    assert "lt.compile ran instead" in str(found)


def test_a_function_that_is_compiled_already() -> None:
    found = tried("captured", "3000x4,50x4")
    eager, ours = found.comparison.rows
    assert found.works
    assert found.predicted_bytes is not None
    assert ours.peak_bytes is not None
    assert eager.peak_bytes is not None
    assert ours.peak_bytes < eager.peak_bytes / 4


def test_what_does_not_fit_fails_in_its_row() -> None:
    found = tried("overlaps", "3000000x4,3000000x4")
    assert [row.error[:13] for row in found.comparison.rows] == ["out of memory"] * 2
    assert "Neither ran." in str(found)


@pytest.mark.parametrize(
    ("target", "more", "said"),
    [
        ("tried_module:overlap", [], "did you mean 'overlaps'?"),
        ("tried_module:scripted", ["--shape", "8x16"], "is compiled already"),
        ("tried_modul:overlaps", [], "did you mean 'tried_module'?"),
        ("tried_module:overlaps", [], "takes (a, b); --shape gives 0 tensors"),
        ("tried_module:overlaps", ["--shape", "9999999999999x4,1x4"], "no memory for an argument"),
        ("tried_module:counted", ["--shape", "4", "--dtype", "int64", "--backward"], "--backward:"),
        ("tried_module:counted", ["--shape", "4", "--backward"], "no result has a gradient"),
    ],
)
def test_wrong_arguments(
    target: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app(["try", target, *more]) != 0
    printed = capsys.readouterr()
    assert said in printed.err + printed.out


REFUSED_LATER = """
def late(x):
    for kind in (int, float):
        if issubclass(kind, type(x.item())):
            return x + 1
    return x
"""


def test_what_the_first_call_refuses_is_compiled_by_graph_capture(tmp_path: Path) -> None:
    (tmp_path / "late_module.py").write_text(REFUSED_LATER)
    found = try_target("late_module:late", "scalar", "float32")
    assert "write instead: isinstance()" in found.refused
    assert found.works


def test_shapes_that_pytorch_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["try", "tried_module:nearest", "--shape", "8x3,8x4"]) == 2
    said = capsys.readouterr()
    assert "write other shapes than 8x3,8x4; eager PyTorch refuses them, too:" in said.err
    assert "tried_module.py:13: RuntimeError: " in said.err
    assert not said.out


def test_an_error_is_below_the_table() -> None:
    text = str(tried("overlaps", "3000000x4,3000000x4"))
    assert "\neager: out of memory" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["try", "tried_module:overlaps", "--shape", "40x4,50x4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["eager", "lowtide"]
    assert found["refused"] == ""
