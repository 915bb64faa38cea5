"""The files around the code: what a host of the repository and an installer read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lowtide import __version__

ROOT = Path(__file__).parents[1]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    assert (ROOT / "lowtide" / "py.typed").read_bytes() == b""


def test_the_citation_names_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.*)$", text, re.MULTILINE) == [__version__]


def test_the_hosts_tests_are_those_of_the_script() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (command,) = re.findall(r"- run: (.*)", workflow)
    assert os.access(ROOT / command, os.X_OK)


@pytest.mark.parametrize("name", ["fault.yml", "slow.yml"])
def test_reports_ask_for_the_machine(name: str) -> None:
    assert "`lowtide doctor --json`" in (FORMS / name).read_text("utf-8")


@pytest.mark.parametrize("path", sorted(FORMS.glob("*.yml")), ids=lambda path: path.name)
def test_a_form_has_what_the_host_needs(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])
