"""How pairs of Python and PyTorch are found, tried and told of; the full tier runs them."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import versions
from tests.versions import Failed, NotToBeHad, Outcome


def test_this_python_is_found_and_an_unknown_one_is_not() -> None:
    own = "{}.{}".format(*sys.version_info)
    assert versions.interpreter(own) == sys.executable
    assert versions.interpreter("3.99") is None


def test_the_pairs_are_those_that_the_package_allows() -> None:
    project = tomllib.loads((versions.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={versions.PYTHONS[0]}"
    (torch,) = [d for d in project["dependencies"] if d.startswith("torch")]
    assert torch.startswith(f"torch>={versions.TORCHES[0]}")
    own = re.search(r"torch==(\d+\.\d+)", " ".join(project["optional-dependencies"]["dev"]))
    assert own is not None
    assert own[1] in versions.TORCHES


def test_a_pytorch_that_pip_cannot_install_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(command: list[object], folder: Path) -> str:
        if "install" in command:
            raise Failed("Looking in indexes\nERROR: No matching distribution found for torch")
        return ""

    monkeypatch.setattr(versions, "run", refuse)
    with pytest.raises(NotToBeHad, match="No matching distribution"):
        versions.install("python", "2.11", tmp_path / "a.whl", tmp_path)


def test_a_pair_fails_where_a_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise Failed("wrong values")

    monkeypatch.setattr(versions, "install", lambda *_: Path())
    monkeypatch.setattr(versions, "try_out", fail)
    own = "{}.{}".format(*sys.version_info)
    assert versions.of_pair(own, "2.11", Path("a.whl")).state == "failed"
    assert versions.of_pair("3.99", "2.11", Path("a.whl")).state == "not to be had"


def test_the_last_line_names_all_pairs() -> None:
    states = [("3.11", "ran"), ("3.12", "failed"), ("3.14", "not to be had")]
    found = [Outcome(python=p, torch="2.11", state=s, note="") for p, s in states]
    assert versions.summary(found) == (
        "1 ran (3.11/2.11) · 1 failed (3.12/2.11) · 1 not to be had (3.14/2.11)"
    )


def test_commands_run_without_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(versions.ROOT))
    found = versions.run([sys.executable, "-c", "import os; print(dict(os.environ))"], tmp_path)
    assert "PYTHONPATH" not in found
    with pytest.raises(Failed, match="no such thing"):
        versions.run([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path)


def test_wheels_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    for name, text in [("a", "1"), ("b", "1"), ("c", "2")]:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.py", text)
    a, b, c = (versions._contents(tmp_path / name) for name in "abc")
    assert a == b != c
