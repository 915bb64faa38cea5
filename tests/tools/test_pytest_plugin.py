"""The markers of the pytest plugin, in one session of pytest beside this one."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "lowtide.tools.pytest_plugin"
TESTS = """
import pytest, torch
import lowtide as lt

@lt.script
def ranked(x):
    best = torch.sort(x * 2, -1).values
    return torch.cumsum(best, 1) + x

compiled = lt.compile(lambda x: torch.cumsum(x.exp(), 0) * 2)

@pytest.mark.lowtide_peak("2 MB")
@pytest.mark.lowtide_limit("2 MB")
def test_small():
    ranked(torch.rand(100, 50))

@pytest.mark.lowtide_peak("200 kB")
def test_predicted():
    ranked(torch.rand(10, 10))
    ranked(torch.rand(300, 400))
    ranked(torch.rand(10, 20))

@pytest.mark.lowtide_limit("1 MB")
def test_measured():
    x = torch.rand(1000, 1000)
    x.exp()

@pytest.mark.lowtide_limit("1 MB")
@pytest.mark.lowtide_peak(1_000_000)
def test_both():
    compiled(torch.rand(600, 600))

@pytest.mark.lowtide_peak("1 kB")
@pytest.mark.lowtide_limit("1 kB")
def test_raises():
    ranked(torch.rand(300, 400))
    raise ValueError("own")

@pytest.mark.lowtide_peak("1 kB")
def test_skipped():
    pytest.skip("not here")

@pytest.mark.lowtide_peak("1 kB")
def test_calls_nothing():
    pass
"""
SENSELESS = """
import pytest

@pytest.mark.{0}
def test_x(): pass
"""


def run(folder: Path, text: str) -> str:
    """What pytest prints for a file of tests."""
    (folder / "test_limits.py").write_text(text)
    is_installed = importlib.metadata.entry_points(group="pytest11", name="lowtide")
    options = () if is_installed else ("-p", PLUGIN)
    command = [sys.executable, "-m", "pytest", "--strict-markers", *options, "test_limits.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The report of each test that fails, by its name; `""`: the whole output."""
    text = run(tmp_path_factory.mktemp("limits"), TESTS)
    parts = re.split(r"^_+ (test_\w+) _+$", text, flags=re.MULTILINE)
    return {"": text, **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_which_tests_fail(reports: dict[str, str]) -> None:
    failed = {"test_predicted", "test_measured", "test_both", "test_raises", "test_calls_nothing"}
    assert reports.keys() == {"", *failed}
    assert "5 failed, 1 passed, 1 skipped" in reports[""]


def test_a_predicted_peak_above_the_limit_names_the_lines(reports: dict[str, str]) -> None:
    found = reports["test_predicted"]
    assert re.search(
        r"lowtide_peak: a call of ranked\(\) has a predicted peak of [\d,]+ bytes, "
        r"the limit is 200,000\n",
        found,
    )
    assert re.search(r"480,000  output .*test_limits\.py:7\n", found)


def test_a_measured_peak_above_the_limit_names_the_lines(reports: dict[str, str]) -> None:
    found = reports["test_measured"]
    assert "the test allocates 8,000,000 bytes at its peak, the limit is 1,000,000\n" in found
    assert re.search(r"3\.81 MiB  aten::\w+  \S*test_limits\.py:26 ", found)
    assert "pytest_plugin.py" not in found


def test_both_limits_and_graphs_of_compile(reports: dict[str, str]) -> None:
    assert "lowtide_peak: a call of " in reports["test_both"]
    assert "lowtide_limit: the test allocates " in reports["test_both"]


def test_a_test_that_fails_by_itself_says_only_that(reports: dict[str, str]) -> None:
    assert "ValueError: own" in reports["test_raises"]
    assert "the limit is" not in reports["test_raises"]


def test_a_limit_on_no_call_fails(reports: dict[str, str]) -> None:
    assert "called no function that Lowtide compiles" in reports["test_calls_nothing"]


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('lowtide_peak("24 Mb?")', "test_x: lowtide_peak='24 Mb?' is not a limit; write a number"),
        ("lowtide_limit", "test_x: lowtide_limit takes one argument, a number of bytes: @pytest."),
        ("lowtide_limit(None)", "test_x: lowtide_limit=None is not a number of bytes; write"),
        ("lowtide_peak('1MB', '2MB')", "test_x: lowtide_peak takes one argument"),
    ],
)
def test_a_marker_that_makes_no_sense(tmp_path: Path, mark: str, said: str) -> None:
    text = run(tmp_path, SENSELESS.format(mark))
    assert f"test_limits.py::{said}" in text
    assert "1 error" in text


def test_the_plugin_is_an_entry_point_that_loads_nothing_heavy() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'[project.entry-points.pytest11]\nlowtide = "{PLUGIN}"\n' in project
    code = f"import {PLUGIN}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
