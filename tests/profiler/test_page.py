"""The page of `prof.html()`: by itself one file, and rendered by a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import lowtide as lt
from tests.profiler.programs import Block

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1300,1400", "--virtual-time-budget=3000",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of three steps, as a page."""
    model, odd = Block(), type("</script>", (Block,), {})()
    optimizer = torch.optim.Adam(model.parameters())
    with lt.profile() as prof:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(2000, 32)).sum().backward()
            optimizer.step()
            prof.step()
            odd(torch.rand(2, 32))
    path = tmp_path_factory.mktemp("page") / "profile.html"
    prof.html(path)
    return path


def browse(page: Path, folder: Path, *options: str) -> str:
    """What a browser prints for the page; skips where there is none."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    command = [browser, *OPTIONS, f"--user-data-dir={folder}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def body_of(dom: str, table: str) -> str:
    found = re.search(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', dom, re.DOTALL)
    assert found, f"no table {table}"
    return found[1]


def test_it_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert not re.search(r"<(script|img|link|iframe)[^>]*\s(src|href)=", text)
    assert "@import" not in text
    assert "url(" not in text
    assert "{{" not in text


def test_a_browser_fills_the_tables(page: Path, tmp_path: Path) -> None:
    dom = browse(page, tmp_path, "--dump-dom")
    rows = body_of(dom, "rows")
    assert rows.count("<tr>") > 15
    assert "AddmmBackward0" in rows
    assert "Block.inner.0" in rows
    assert "programs.py:" in rows
    live = body_of(dom, "live")
    assert live.count("<tr>") > 5
    assert "float32[2000, 64]" in live
    assert f'id="live-note">{live.count("<tr>")} pieces</small>' in dom
    figures = re.search(r'id="figures">(.*?)</div>\s*<div class="controls"', dom, re.DOTALL)
    assert figures
    assert "peak<b>" in figures[1]
    assert "steps<b>3</b>" in figures[1]


def test_sorting_filtering_hovering_and_zooming(page: Path, tmp_path: Path) -> None:
    steps = """<script>
      const click = (table, key) => document.querySelector(`#${table} th[data-key=${key}]`).click();
      click("rows", "calls");
      const first = () => document.querySelector("#rows tbody tr").cells[2].textContent;
      const most = first();
      click("rows", "calls");
      document.body.dataset.sorted = `${most},${first()}`;
      byId("filter").value = "backward relu";
      byId("filter").oninput();
      document.body.dataset.filtered = document.querySelectorAll("#rows tbody tr").length;
      const whole = view[1] - view[0], p = plot(), r = canvas.getBoundingClientRect();
      const at = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
        { clientX: r.left + x, clientY: r.top + y, pointerId: 1, bubbles: true }));
      canvas.setPointerCapture = () => {};
      const { peak_ns: peakNs } = current();
      at("pointermove", toX(peakNs, p) + 1, p.y + p.height - 20);
      document.body.dataset.tip = tip.hidden ? "hidden" : tip.textContent;
      at("pointerdown", p.x + 100, 100); at("pointermove", p.x + 300, 100);
      at("pointerup", p.x + 300, 100);
      document.body.dataset.dragged = (view[1] - view[0]) < whole / 2;
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: 400, clientX: r.left + 300 }));
      const wheeled = view[1] - view[0];
      canvas.dispatchEvent(new MouseEvent("dblclick"));
      document.body.dataset.reset = wheeled < whole && view[1] - view[0] === whole;
      byId("theme").click();
      document.body.dataset.drawn = pen.getImageData(0, 0, canvas.width, canvas.height).data
        .some((value) => value > 0);
    </script></body>"""
    driven = tmp_path / "driven.html"
    driven.write_text(page.read_text().replace("</body>", steps))
    dom = browse(driven, tmp_path / "user", "--dump-dom")
    body = re.search(r"<body ([^>]*)>", dom)
    assert body, "the page has thrown before its end"
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', body[1]))
    most, least = map(int, found["sorted"].split(","))
    assert most > least
    assert int(found["filtered"]) == 1
    assert re.search(r"(programs|test_page)\.py:\d+", found["tip"])  # whichever is drawn there
    assert "live at" in found["tip"]
    assert found["dragged"] == found["reset"] == found["drawn"] == "true"
    assert re.search(r'<html[^>]* data-theme="(dark|light)"', dom)


def test_a_screenshot(page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    browse(page, tmp_path / "user", f"--screenshot={shot}")
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 20_000


def test_a_page_of_nothing(tmp_path: Path) -> None:
    with lt.profile() as prof:
        pass
    path = tmp_path / "empty.html"
    prof.html(path)
    drawn = "<script>document.body.dataset.end = 'reached';refresh()</script></body>"
    path.write_text(path.read_text().replace("</body>", drawn))
    dom = browse(path, tmp_path / "user", "--dump-dom")
    assert 'data-end="reached"' in dom
    assert "peak<b>0 B</b>" in dom
    assert "operators<b>0</b>" in dom
