"""`lt.save(…, kernels=True)`: machines of the same kind run the program without a C compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide.errors import BackendError
from lowtide.runtime import cache, packed, toolchain

# In a process of its own, whose kernels all have one compiler's flags.
_WRITER = """
import sys, torch, lowtide as lt
from tests.deploy.test_saved_kernels import Net
folder = sys.argv[1]
m, x = lt.script(Net()), torch.rand(70, 16, requires_grad=True)
y = m(x)
y.sum().backward()
lt.save(m, folder + "/m.lt", kernels=True)
torch.save(x.detach(), folder + "/x.pt")
torch.save((y.detach(), x.grad), folder + "/expected.pt")
"""

_READER = """
import sys, torch, lowtide as lt
from lowtide.runtime import cache
folder = sys.argv[1]
x = torch.load(folder + "/x.pt").requires_grad_()
m = lt.load(folder + "/m.lt", kernels=True)
y = m(x)
y.sum().backward()
torch.save((y.detach(), x.grad), folder + "/y.pt")
assert cache.stats().compiles == 0
try:
    m(x.detach()[:5])
except lt.BackendError as fault:
    assert "no kernel for this call" in str(fault), fault
else:
    raise AssertionError
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.norm(torch.nn.functional.gelu(self.linear(x.float())) + x)
        return x


def _saved(folder: Path) -> tuple[Path, torch.Tensor, torch.Tensor, torch.Tensor]:
    m, x = lt.script(Net()), torch.rand(70, 16, requires_grad=True)
    y = m(x)
    y.sum().backward()
    lt.save(m, folder / "m.lt", kernels=True)
    assert x.grad is not None
    return folder / "m.lt", x.detach(), y.detach(), x.grad


def _run(program: str, folder: Path, **environment: str) -> None:
    root = str(Path(__file__).parents[2])
    threads = str(torch.get_num_threads())
    given = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": root, **environment}
    command = [sys.executable, "-c", program, str(folder)]
    ran = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_machine_without_a_compiler_runs_them(tmp_path: Path) -> None:
    _run(_WRITER, tmp_path)
    empty = str(tmp_path / "cache")
    _run(_READER, tmp_path, LOWTIDE_CC="/nonexistent", LOWTIDE_CACHE_DIR=empty)
    found, expected = (torch.load(tmp_path / name) for name in ("y.pt", "expected.pt"))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_without_asking_no_code_of_the_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x, y, _ = _saved(tmp_path)
    monkeypatch.setattr(packed, "unpack", lambda _files: pytest.fail("unpacked"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    torch.testing.assert_close(lt.load(path)(x), y)


def _changed(path: Path, name: str, data: bytes) -> Path:
    """Copy the file; the first entry whose name begins so has other contents."""
    other = path.with_name("other.lt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            is_it = info.filename.startswith(name)
            new.writestr(info, data if is_it else old.read(info))
    return other


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("cpu", "a Z80", "another CPU"), ("lowtide", "0.0.1", "of lowtide 0.0.1")],
)
def test_kernels_of_another_machine_are_refused(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    path, x, y, _ = _saved(tmp_path)
    with zipfile.ZipFile(path) as file:
        machine = json.loads(file.read("kernels/machine.json"))
    machine[name] = value
    other = _changed(path, "kernels/machine.json", json.dumps(machine).encode())
    with pytest.raises(lt.LoadError, match=message):
        lt.load(other, kernels=True)
    torch.testing.assert_close(lt.load(other)(x), y)


@pytest.mark.parametrize("name", ["kernels/machine.json", "kernels/kernel"])
def test_damaged_kernels_are_refused(tmp_path: Path, name: str) -> None:
    path = _saved(tmp_path)[0]
    with pytest.raises(lt.LoadError, match=r"damaged|cannot be read"):
        lt.load(_changed(path, name, b"[1]"), kernels=True)


def test_files_without_kernels_are_refused(tmp_path: Path) -> None:
    lt.save(lt.script(Net()), tmp_path / "m.lt")
    with pytest.raises(lt.LoadError, match="has no kernels"):
        lt.load(tmp_path / "m.lt", kernels=True)


def test_a_name_that_leaves_the_folder_is_refused() -> None:
    with pytest.raises(lt.LoadError, match="damaged"):
        cache.store("../evil.so", b"")


def test_there_must_be_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_loaded", {})
    with pytest.raises(BackendError, match="there are no kernels yet"):
        lt.save(lt.script(Net()), tmp_path / "m.lt", kernels=True)
    assert not (tmp_path / "m.lt").exists()


def test_a_compiler_of_this_machine_stays(tmp_path: Path) -> None:
    own = toolchain.compiler()
    lt.load(_saved(tmp_path)[0], kernels=True)
    assert toolchain.compiler() is own
