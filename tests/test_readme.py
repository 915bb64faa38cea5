"""What the README promises to a fresh checkout: two commands, which the CI uses too."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import torch

from tests.docs.blocks import blocks, run_page

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def sh_blocks() -> list[str]:
    """The text of every fenced block marked `sh`, in order."""
    return [block.text for block in blocks(README.read_text(), "sh")]


def test_the_first_two_sh_blocks_are_one_line_each() -> None:
    demo, test = sh_blocks()[:2]
    assert demo == "./dev demo\n"
    assert test == "./dev test\n"


def test_ci_runs_the_second_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert f"{sh_blocks()[1].strip()} </dev/null" in lines


def test_scripts_are_executable_and_parse() -> None:
    for script in (ROOT / "dev", ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK), script
        subprocess.run(["bash", "-n", script], check=True)


def test_dev_lists_its_commands_and_refuses_others() -> None:
    listed = subprocess.run([ROOT / "dev"], capture_output=True, text=True, check=True).stdout
    for command in ("demo", "test", "bench", "docs", "fix", "setup"):
        assert f"./dev {command}" in listed
    assert subprocess.run([ROOT / "dev", "nonsense"], capture_output=True).returncode == 2


def test_torch_is_pinned_to_one_version_everywhere() -> None:
    """But for the build with CUDA, which is the oldest that is supported."""
    project, dev = (ROOT / "pyproject.toml").read_text(), (ROOT / "dev").read_text()
    pins = re.findall(r"torch==[\d.]+", project + dev)
    (oldest,) = re.findall(r'"torch>=([\d.]+)[",]', project)
    (with_cuda,) = re.findall(r'CUDA_PACKAGES=\("(torch==[\d.]+)"', dev)
    assert with_cuda == f"torch=={oldest}.0"
    pins.remove(with_cuda)
    assert len({*pins}) == 1, pins


def test_the_benchmark_markers_stand_once_each() -> None:
    from benchmarks.report import MEASURED, MODELS_BLOCK, PROGRAMS_BLOCK, block_marks

    for page, block in (
        (README, PROGRAMS_BLOCK), (README, MODELS_BLOCK), (MEASURED, PROGRAMS_BLOCK),
        (MEASURED, MODELS_BLOCK),
    ):  # fmt: skip
        text = page.read_text()
        begin, end = block_marks(block)
        assert text.count(begin) == text.count(end) == 1
        assert text.index(begin) < text.index(end)


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_python_examples_of_the_readme_run(tmp_path: Path) -> None:
    boxes = {"boxes1": torch.rand(100, 4), "boxes2": torch.rand(50, 4)}
    assert run_page(README, tmp_path, given=boxes) == len(blocks(README.read_text(), "python"))
