"""`lowtide export`: a C library from a name or a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide.cli import app


def test_a_file_and_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "m.lt", tmp_path / "out"
    lt.save(lt.script(torch.nn.Linear(40, 3)), saved)
    assert app(["export", str(saved), str(out), "--shape", "50x40"]) == 0
    assert "model_forward()" in capsys.readouterr().out
    assert (out / "libmodel.so").exists()
    target = "lowtide.tools.programs:chamfer"
    arguments = ["export", target, str(out), "--shape", "50x3,40x3", "--json", "--name", "pairs"]
    assert app(arguments) == 0
    assert json.loads(capsys.readouterr().out)["functions"] == ["pairs_chamfer"]


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert app(["export", "none.pt", out, "--shape", "3"]) == 2
    assert "no file" in capsys.readouterr().err
    assert app(["export", "torch:topk", out, "--shape", "40"]) in (1, 2)
    assert capsys.readouterr().err
    assert app(["export", "lowtide.tools.programs:chamfer", out]) == 2
    assert "--shape gives 0 tensors" in capsys.readouterr().err
