"""One library for all machines, which chooses among instruction sets; its symbols and libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.c_library.sets import SETS
from lowtide.runtime import toolchain

STRICT = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
MEANING = [
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-delete-null-pointer-checks",
]
IS_X86 = toolchain.compiler().target.arch == "x86_64"
pytestmark = pytest.mark.skipif(not IS_X86, reason="these are the instruction sets of x86-64")


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(40, 8), nn.LayerNorm(8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.norm(self.inner(a)), self.norm(self.inner(b)).tanh()
        return (a[:, None] - b).square().sum(-1).exp().sum(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    found = tmp_path_factory.mktemp("sets")
    lt.export_c(lt.script(Pairs().eval()), found, (torch.rand(50, 40), torch.rand(60, 40)))
    return found


def _run(folder: Path, *row: str) -> str:
    made = subprocess.run(row, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.long)])
def test_one_library_for_all_machines(compiler: str, folder: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    build = folder / compiler
    build.mkdir()
    objects: list[str] = []
    for name, words in {**SETS, "dispatch": ()}.items():
        macro = "MODEL_DISPATCH" if name == "dispatch" else f"MODEL_SET={name}"
        flags = [*STRICT, *MEANING, *(f"-m{w}" for w in words), f"-D{macro}"]
        objects.append(str(build / f"{name}.o"))
        _run(folder, compiler, *flags, "-fPIC", "-c", "model.c", "-o", objects[-1])
    library = str(build / "libmodel.so")
    _run(folder, compiler, "-shared", "-o", library, *objects, "-lm")
    _run(folder, compiler, "model_selftest.c", library, "-lm", "-o", str(build / "test"),
         f"-Wl,-rpath,{build}")  # fmt: skip
    assert "largest difference" in _run(folder, str(build / "test"))
    if shutil.which("nm"):
        shown = _run(folder, "nm", "-D", "--defined-only", library)
        assert all(line.split()[-1].startswith("model_") for line in shown.splitlines())
        assert not any(name in shown for name in SETS)
    if shutil.which("ldd"):
        needed = [line.split()[0] for line in _run(folder, "ldd", library).splitlines()]
        allowed = ("linux-vdso", "libm.", "libc.", "/lib", "statically")
        assert all(n.startswith(allowed) for n in needed), needed


@pytest.mark.parametrize("name", SETS)
def test_each_set_gives_the_results(name: str, folder: Path) -> None:
    features = toolchain.target().features
    if not {w for w in SETS[name] if w.startswith("avx")} <= features:
        pytest.skip(f"this machine has no {name}")
    program = str(folder / f"test_{name}")
    flags = [*MEANING, *(f"-m{w}" for w in SETS[name])]
    compiler = [*toolchain.compiler().command]
    _run(folder, *compiler, *STRICT, *flags, "-c", "model.c", "-o", f"{program}.o")
    _run(folder, *compiler, "model_selftest.c", f"{program}.o", "-lm", "-o", program)
    assert "largest difference" in _run(folder, program)


@pytest.mark.long
def test_cmake_builds_and_installs_it(folder: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    _run(folder, "cmake", "-S", ".", "-B", "build", "-DCMAKE_INSTALL_PREFIX=installed")
    _run(folder, "cmake", "--build", "build")
    _run(folder, "cmake", "--install", "build")
    assert (folder / "build" / "libmodel.a").exists()
    shutil.copy(folder / "model_selftest.bin", folder / "build")
    assert "largest difference" in _run(folder / "build", "./model_selftest")
    assert list((folder / "installed").rglob("modelConfig.cmake"))
