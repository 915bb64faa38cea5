"""Files of torch.jit.save are loaded, run, saved and inspected without a call of torch.jit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.deploy.inspection import inspect
from tests.deploy.torchscript.old_net import Net, X, archive, loaded_by_torch

RAW = archive(Net())
ASKED_BY_PYTORCH = {"is_scripting", "is_tracing"}  # by torch.compiler and torch.nn.functional


def _fails(name: str) -> Any:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"torch.jit.{name} is called")

    return fail


def _whole(raw: bytes, path: Path) -> torch.Tensor:
    path.write_bytes(raw)
    assert inspect(path).writer == "torch.jit"
    m = lt.load(path).eval()
    result = m(X)
    m.reset_states()
    file = io.BytesIO()
    lt.save(m, file)
    torch.testing.assert_close(lt.load(file.getvalue())(X), result)
    return result


def test_every_public_name_of_torch_jit_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = loaded_by_torch(RAW).eval()(X)
    _whole(archive(), tmp_path / "first.pt")  # modules of Lowtide's are imported when needed
    names = [n for n, v in vars(torch.jit).items() if n[0] != "_" and callable(v)]
    assert {"load", "save", "script", "trace", "ScriptModule", *ASKED_BY_PYTORCH} < set(names)
    for name in set(names) - ASKED_BY_PYTORCH:
        monkeypatch.setattr(torch.jit, name, _fails(name))
    torch.testing.assert_close(_whole(RAW, tmp_path / "second.pt"), wanted)
