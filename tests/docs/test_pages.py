"""The pages of docs/: their examples run, and their lists are those of the compiler's tables."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.frontend import reference
from lowtide.frontend.torchscript.operators import operator
from tests.docs import notebooks
from tests.docs.blocks import run_page
from tests.docs.site import dead_links
from tests.quickly import compile_quickly

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = sorted(DOCS.glob("api/*.md"))
BOOKS = notebooks.pages()
PAGES = [*sorted(DOCS.glob("*.md")), *REFERENCE, *BOOKS]
NOTES = sorted(DOCS.glob("decisions/*.md"))
NAMES = DOCS / "migrating-from-torch-jit.md"
NEEDS = {"old-archives.md": "silero_vad", **notebooks.NEEDS}  # packages; CI has the first
SITE = ROOT / "zensical.toml"
NOT_YET = "(not yet)"


@pytest.fixture(scope="module")
def fresh() -> BaseContext:
    """Makes processes that have imported what examples do, once for all, and have done no more."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lowtide.api.script"])
    return context


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _groups() -> list[Any]:
    """Pages that run in one process: the reference, whose examples are small; else each page.
    The full tier runs the notebooks."""
    alone = [p for p in PAGES if p not in REFERENCE]
    found = [pytest.param([p], id=_id(p), marks=[pytest.mark.long] * (p in BOOKS)) for p in alone]
    return [*found, pytest.param(REFERENCE, id="docs/api")]


@pytest.mark.parametrize("pages", _groups())
def test_examples_run(pages: list[Path], tmp_path: Path, fresh: BaseContext) -> None:
    """In a process of their own: examples may leave things behind."""
    path = pages[0]
    needed = NEEDS.get(path.name)
    may_lack = "CI" not in os.environ or path in BOOKS
    if needed is not None and may_lack and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install -e '.[dev,dask,cubed]'")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        pool.submit(_run, pages, tmp_path).result()


def _run(pages: list[Path], folder: Path) -> None:
    compile_quickly()
    os.chdir(folder)  # pages write files
    for path in pages:
        run_page(path, folder)


def test_the_language_page_is_what_the_tables_say(request: pytest.FixtureRequest) -> None:
    assert operator("torch.relu", 3)  # what the code of old archives calls is not on the page
    text = reference.page()
    if request.config.getoption("--update-golden"):
        reference.PAGE.write_text(text, encoding="utf-8")
    assert reference.PAGE.read_text(encoding="utf-8") == text, (
        "run python -m lowtide.frontend.reference --write, or pytest --update-golden"
    )


def test_the_command_prints_the_page() -> None:
    command = [sys.executable, "-m", "lowtide.frontend.reference"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == reference.page()
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True, cwd=ROOT)
    assert wrong.returncode == 2
    assert "usage" in wrong.stderr


def _marked(text: str) -> str:
    """The rows of the table of names, each `lt.NAME` marked where Lowtide has no such name."""

    def mark(found: re.Match[str]) -> str:
        return found[1] if hasattr(lt, found[2]) else f"{found[1]} {NOT_YET}"

    pattern = rf"(`lt\.(\w+)[^`]*`)(?: {re.escape(NOT_YET)})?"
    rows = [
        re.sub(pattern, mark, line) if line.startswith("|") else line for line in text.split("\n")
    ]
    return "\n".join(rows)


@pytest.mark.parametrize("path", [DOCS / "ARCHITECTURE.md", *NOTES], ids=lambda path: path.stem)
def test_the_files_that_a_note_names_exist(path: Path) -> None:
    """`texpr/autodiff` is a file or folder; in `tile/group.INLINE_COST` the file has that name."""
    for name in re.findall(r"`(\w+(?:/\w+)+(?:\.\w+)?)/?`", path.read_text("utf-8")):
        if (ROOT / name).exists() or (DOCS / name).exists():
            continue
        file, _, word = name.removesuffix(".py").partition(".")
        top = "." if file.startswith("tests/") else "lowtide/**"
        found = [*ROOT.glob(f"{top}/{file}.py"), *ROOT.glob(f"{top}/{file}/__init__.py")]
        assert found, f"{path.name}: there is no file {file}"
        assert any(word in p.read_text("utf-8") for p in found), name


def test_names_that_are_not_there_yet_are_marked(request: pytest.FixtureRequest) -> None:
    text = NAMES.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        NAMES.write_text(_marked(text), encoding="utf-8")
        text = _marked(text)
    assert text == _marked(text), "run pytest --update-golden tests/docs"


def test_every_page_is_on_the_site_and_in_its_index() -> None:
    groups = tomllib.loads(SITE.read_text("utf-8"))["project"]["nav"]
    listed = [page for group in groups for pages in group.values() for page in pages]
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in [*PAGES, *NOTES])
    index = (DOCS / "index.md").read_text("utf-8")
    pages = [str(p.relative_to(DOCS)) for p in PAGES if p.name != "index.md"]
    assert [p for p in pages if f"({p})" not in index] == []


def test_every_public_name_is_in_the_reference_once() -> None:
    text = "\n".join(p.read_text("utf-8") for p in DOCS.glob("api/*.md"))
    names = re.findall(r"^(?:::: |### .* \{ #)lowtide\.(\w+)(?: \})?$", text, re.MULTILINE)
    assert sorted(names) == sorted(lt.__all__)


@pytest.mark.parametrize("page", notebooks.pages(), ids=_id)
def test_notebooks_are_their_pages(page: Path, request: pytest.FixtureRequest) -> None:
    made, path = notebooks.notebook_text(page.read_text("utf-8")), page.with_suffix(".ipynb")
    if request.config.getoption("--update-golden"):
        path.write_text(made, encoding="utf-8")
    assert path.read_text("utf-8") == made, "run python -m tests.docs.notebooks --write"


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    text = '<h1 id="top"></h1><a href="b.html#x"></a><a href="#top"></a><img src="no.svg">'
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b.html").write_text('<a href="a.html#top">a</a><a href="https://pytorch.org">')
    assert dead_links(tmp_path) == ["a.html: b.html#x", "a.html: no.svg"]


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.stem)
def test_a_decision_fits_on_a_page(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 60


@pytest.mark.parametrize("path", [*PAGES, *NOTES, ROOT / "README.md"], ids=_id)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link
