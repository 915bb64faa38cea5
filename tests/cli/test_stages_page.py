"""`lowtide explain --html`: which lines of which stage come from a source line; the page itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide.cli import app
from lowtide.tools.stages_page import Pane, page_text, panes, places_in

FILE = Path(__file__).name


def chamfer(a, b):
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    return d.amin(1).mean() + d.amin(0).mean()


D = chamfer.__code__.co_firstlineno + 1
RESULT = D + 1


@pytest.fixture(scope="module")
def made() -> dict[str, Pane]:
    compiled = lt.script(chamfer)
    args = (torch.empty(500, 3), torch.empty(400, 3))
    stages = compiled.stages(*args)
    return {pane.title: pane for pane in panes(places_in(compiled.program()), stages)}


def lines(pane: Pane, number: int) -> list[str]:
    return [text for text, tags in pane.lines if (FILE, number) in tags]


def test_the_source_has_the_lines_of_the_program_and_those_around(made: dict[str, Pane]) -> None:
    texts = [text for text, _ in made[FILE].lines]
    assert any("return d.amin(1).mean()" in text for text in texts)
    assert len(lines(made[FILE], D)) == len(lines(made[FILE], RESULT)) == 1


def test_every_stage_has_lines_of_both(made: dict[str, Pane]) -> None:
    for title in ("ir", "tensor expressions", "normal form", "groups", "tile program", "C"):
        assert lines(made[title], D), title
        assert lines(made[title], RESULT), title


def test_registers_of_c_belong_to_what_is_stored(made: dict[str, Pane]) -> None:
    found = lines(made["C"], RESULT)
    assert any(re.search(r"\br\d+ = .* - ", text) for text in found)  # a difference of points
    assert not any(text.startswith("typedef") for text in found)


def test_the_page_is_one_file(made: dict[str, Pane]) -> None:
    text = page_text("chamfer", "3 kernels", [*made.values()])
    assert not re.search(r"(src|href)=|https?:", text)
    assert text.count('<section class="pane"') == text.count("<button aria-pressed")
    assert "{{" not in re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>", "", text)
    assert re.search(r'data-of="[\d ]+"', text)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    target = ["explain", f"{__name__}:chamfer", "--shape", "50x3,40x3"]
    assert app([*target, "--html", str(path)]) == 0
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert "0 ops left to PyTorch" in capsys.readouterr().out
    assert app([*target, "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
