"""`lowtide inspect` and `lowtide convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.cli import app
from tests.deploy.torchscript.old_net import X, archive, loaded_by_torch


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.pt"
    path.write_bytes(archive())
    return path


def test_inspect(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["inspect", str(old)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("tests.deploy.torchscript.old_net.Net: written by torch.jit, format ")
    assert "\n  info(more: Optional[int]=None) -> Dict[str, int]\n" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["encoder.fc.weight", "parameter", "6x4", "float32", "96", "B"] in rows
    assert ["state", "buffer", "2", "float32", "8", "B"] in rows
    assert "torch.batch_norm (1)" in shown
    assert app(["inspect", str(old), "--code"]) == 0
    code = capsys.readouterr().out
    assert code.startswith("code/__torch__/")
    assert "def reset_states(self" in code


def test_inspect_as_json(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["inspect", str(old), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["writer"] == "torch.jit"
    module = loaded_by_torch(old.read_bytes())
    for which, held in (("parameter", module.parameters()), ("buffer", module.buffers())):
        assert found[f"{which}_bytes"] == sum(t.nbytes for t in held)
    runs = {row["name"]: row["runs"] for row in found["operators"]}
    assert runs["torch.mean"] == "kernels"
    assert runs["torch.append"] == "Python"
    assert "code" not in found
    app(["inspect", str(old), "--json", "--code"])
    assert "code/__torch__" in "".join(json.loads(capsys.readouterr().out)["code"])


def test_operators_of_a_package_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = torch.library.Library("torchvision_old", "DEF")
    library.define("nms(Tensor x) -> Tensor")
    path = tmp_path / "old.pt"
    path.write_bytes(archive(UsesNms()))
    library._destroy()
    assert app(["inspect", str(path)]) == 1
    assert "ops.torchvision_old.nms is missing here" in capsys.readouterr().out


class UsesNms(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchvision_old.nms(x)


def test_convert(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new.lt"
    assert app(["convert", str(old), str(new), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"old": str(old), "new": str(new), "bytes": new.stat().st_size}
    wanted = loaded_by_torch(old.read_bytes()).eval()(X)
    torch.testing.assert_close(lt.load(new).eval()(X), wanted)
    assert app(["inspect", str(new)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Net: written by lowtide, format 1")
    assert "encoder.fc: Linear" in shown
    assert "torch.batch_norm" in shown


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_bad_files(
    command: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, text = tmp_path / "damaged.pt", tmp_path / "notes.txt"
    damaged.write_bytes(old.read_bytes()[:-100])
    text.write_text("no archive")
    new = tmp_path / "new.lt"
    new.write_text("as before")
    for path, status, words in (
        (tmp_path / "none.pt", 2, "No such file or directory"),
        (tmp_path, 2, "Is a directory"),
        (text, 1, "this is not a file of torch.jit.save or lt.save"),
        (damaged, 1, "the file is damaged"),
    ):
        arguments = [command, str(path), *([str(new)] if command == "convert" else [])]
        assert app(arguments) == status
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith(f"lowtide {command}: {path}: ")
        assert words in error
    assert new.read_text() == "as before"
