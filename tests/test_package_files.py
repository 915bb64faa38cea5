"""The files around the code: what a host of the repository and an installer read."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lowtide import __version__

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "packaging" / "conda" / "meta.yaml"
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    assert (ROOT / "lowtide" / "py.typed").read_bytes() == b""


def test_the_citation_names_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.*)$", text, re.MULTILINE) == [__version__]


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _recipe() -> str:
    """Return conda's recipe with the values of its variables, without comments."""
    text = RECIPE.read_text("utf-8")
    variables = dict(re.findall(r'^{% set (\w+) = "(.*)" %}$', text, re.MULTILINE))
    text = re.sub(r"{{ (\w+) }}", lambda m: variables.get(m[1], m[0]), text)
    return re.sub(r"\s*#.*$|^{%.*$", "", text, flags=re.MULTILINE)


def _listed(recipe: str, key: str) -> list[str]:
    """Return the items of the first list of this name."""
    found = re.search(rf"^ *{key}:\n((?: +- .*\n)+)", recipe, re.MULTILINE)
    assert found is not None, key
    return re.findall(r"- (.*)", found[1])


def test_the_recipe_of_conda_asks_for_what_the_package_does() -> None:
    project, recipe = _project(), _recipe()
    wanted = [
        re.sub("([<>=])", r" \1", d.replace("torch", "pytorch"), count=1)
        for d in project["dependencies"]
    ]
    python = f"python {project['requires-python']}"
    assert _listed(recipe, "run") == [python, *wanted, "gcc", "__linux"]
    assert f"version: {__version__}\n" in recipe
    assert "hatchling >=1.27" in _listed(recipe, "host")
    assert 'requires = ["hatchling>=1.27"]' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert _listed(recipe, "entry_points") == [
        f"{name} = {target}" for name, target in project["scripts"].items()
    ]
    assert f"summary: {project['description']}\n" in recipe
    assert f"license: {project['license']}\n" in recipe


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
