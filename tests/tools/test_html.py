"""The HTML that notebooks show: whole, escaped, and with the lines that hold the memory."""

from __future__ import annotations

import html
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.budget.memory import Buffer, MemoryPlan
from lowtide.errors import Loc
from lowtide.tools.comparison import Comparison, ComparisonRow
from lowtide.tools.try_command import Trial

ODD = '<script>alert("&")</script>'
VOID = {"br", "meta"}


class Reader(HTMLParser):
    """Checks that tags are balanced; `seen`: how many of each; `words`: the text."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.stack: list[str] = []
        self.words = ""
        self.widths: list[float] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        style = dict(attrs).get("style") or ""
        self.widths += map(float, re.findall(r"width:([\d.]+)%", style))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack[-1:] != ["style"]:
            self.words += f" {data}"


def read(shown: Any) -> Reader:
    """Reads the HTML of an object, which loads nothing and runs no script."""
    text: str = shown._repr_html_()
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.stack
    assert not reader.seen.keys() & {"script", "link", "img"}
    assert not re.search(r"https?:|url\(|@import|\son\w+=", text)
    assert "prefers-color-scheme: dark" in text
    return reader


def test_a_plan_is_a_bar_of_source_lines() -> None:
    near, far = Loc(file="a.py", line=3), Loc(file=f"{ODD}.py", line=9)
    buffers = (
        Buffer(name="t1", nbytes=100, kind="output", loc=near),
        Buffer(name=ODD, nbytes=600, kind="PyTorch", loc=far),
        Buffer(name="t3", nbytes=300, kind="PyTorch", loc=near),
    )
    plan = MemoryPlan(
        peak_bytes=1000, formula="s0 < 3", buffers=buffers, notes=(ODD,), fails=f"no {ODD}"
    )
    found = read(plan)
    assert found.widths == [60.0, 40.0]
    assert "peak 0.98 KiB (1,000 bytes)" in found.words
    assert "output t1, PyTorch t3" in found.words
    assert found.words.count(ODD) == 4
    assert "Such a call fails: no" in found.words


def test_a_plan_of_nothing_has_no_bar() -> None:
    found = read(MemoryPlan(peak_bytes=0, formula="0", buffers=()))
    assert found.widths == []
    assert "table" not in found.seen


def ranked(x: torch.Tensor) -> torch.Tensor:
    best = torch.sort(x * 2, -1).values
    for _ in range(4):
        best = torch.cumsum(best.exp(), 1)
    return best * x


def test_an_explanation_has_a_card_for_each_kernel_and_op() -> None:
    explanation = lt.script(ranked).explain(torch.rand(300, 400, requires_grad=True))
    found = read(explanation)
    assert f"ranked: {len(explanation.kernels)} kernels, " in found.words
    assert f"test_html.py:{ranked.__code__.co_firstlineno + 1}" in found.words
    assert "aten" not in found.words
    assert "sort" in found.words
    assert "backward: " in found.words
    assert explanation.torch_ops[0].reason in found.words
    assert len(found.widths) >= 2


def test_explanations_of_graphs() -> None:
    compiled = lt.compile(lambda x: x.exp() + 1)
    assert "1 kernel, 0 ops left to PyTorch" in read(compiled.explain(torch.rand(40))).words


def test_a_comparison_and_a_trial() -> None:
    rows = (
        ComparisonRow(name="eager", min_ms=8.0, median_ms=9.0, peak_bytes=2000, first_call_ms=10),
        ComparisonRow(name="lowtide", error=f"ValueError: {ODD}"),
    )
    comparison = Comparison(rows)
    found = read(comparison)
    assert found.seen["tr"] == 3
    assert found.words.count(ODD) == 1
    trial = Trial(
        target=ODD, comparison=comparison, predicted_bytes=2000, left=("sort at a.py:3",),
        refused="", errors=None,
    )  # fmt: skip
    text = read(trial).words
    assert text.count(ODD) == 2
    assert "Lowtide failed, eager PyTorch did not" in text
    assert "sort at a.py:3" in text


def test_a_profile_is_its_page_in_a_frame_of_its_own() -> None:
    with lt.profile() as prof:
        torch.rand(300, 400).exp()
    text = prof._repr_html_()
    (document,) = re.findall(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" ', text)
    page = html.unescape(document)
    assert page.startswith("<!doctype html>")
    assert "aten::exp" in page
    assert page.rstrip().endswith("</html>")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(theme: str) -> None:
    style = lt.MemoryPlan(peak_bytes=0, formula="0", buffers=())._repr_html_()
    light, dark = style.split("@media")
    part = light if theme == "light" else dark
    paper = re.search(r"background: (#\w+)", part)
    assert paper is not None
    for name in ("ink", "faint", "p4"):
        colour = re.search(rf"--{name}: (#\w+)", part)
        assert colour is not None
        high, low = sorted((luminance(colour[1]), luminance(paper[1])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def luminance(colour: str) -> float:
    """The relative luminance of `#rrggbb`, by WCAG."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
