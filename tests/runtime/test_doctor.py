from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lowtide import config
from lowtide.runtime import doctor, launch, probe, toolchain


def test_a_good_machine(cache_dir: Path):
    found = {check.name: check for check in doctor.checks()}
    assert list(found) == [
        "settings", "torch", "compiler", "vector width", "kernel", "threads", "cache folder",
        "huge pages", "zig", "GPU",
    ]  # fmt: skip
    for name in ("settings", "compiler", "vector width", "kernel", "cache folder"):
        assert found[name].ok, found[name]
    assert all(check.ok or check.remedy for check in found.values())


def test_each_trouble_has_a_remedy(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "parallel_for_address", lambda: 0)
    monkeypatch.setattr(doctor, "_HUGE_PAGES", "/nowhere")
    with config.override(compiler="/nowhere/gcc", cache_dir="/proc"):
        found = {check.name: check for check in doctor.checks()}
    for name in ("compiler", "vector width", "kernel", "threads", "cache folder"):
        assert (found[name].ok, found[name].remedy != "") == (False, True), found[name]
    assert found["huge pages"].ok


def test_the_compilers_verdict_is_shown(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    found = {check.name: check for check in doctor.checks()}["compiler"]
    assert "\nkeeps the meaning of generated C" in found.detail
    monkeypatch.setattr(probe, "faults", lambda path: ("it adds wrongly",))
    monkeypatch.setattr(toolchain, "_MEANING", dict.fromkeys(toolchain._MEANING, ("-fwrapv",)))
    toolchain._compiler.cache_clear()
    found = {check.name: check for check in doctor.checks()}["compiler"]
    assert (found.ok, found.remedy) == (False, toolchain.OTHER)
    assert found.detail.endswith("does not compile kernels rightly: it adds wrongly")


def test_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    for fault in ("kernels need Triton", "its import fails (OSError: libcuda.so.1: not found)"):
        missing = f"{fault}: pip install triton"
        monkeypatch.setattr(doctor.block_kernels, "missing", lambda said=missing: said)
        found = doctor._gpu()
        assert (found.ok, found.remedy) == (False, "`pip install triton`")
        assert "Some GPU" in found.detail
        assert fault in found.detail


def test_what_others_raise_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    def version() -> str:
        raise AttributeError("no such thing")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(doctor.block_kernels, "missing", lambda: "")
    monkeypatch.setattr(doctor.block_kernels, "version", version)
    found = {check.name: check for check in doctor.checks()}["GPU"]
    assert (found.ok, found.detail) == (False, "AttributeError: no such thing")


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\n…")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "_GPU_DRIVER", str(tmp_path))
    found = doctor._gpu()
    assert not found.ok
    assert found.detail.endswith("CUDA 13.0: The NVIDIA driver on your system is too old "
                                 "(found version 11040).")  # fmt: skip
    assert "update NVIDIA's driver" in found.remedy


def test_a_gpu_and_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert doctor._gpu().ok
    monkeypatch.setattr(doctor, "_GPU_DRIVER", str(tmp_path))
    assert "build of PyTorch with CUDA" in doctor._gpu().remedy


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cu130", "3.0.0"])
def test_a_version_of_pytorch_that_is_not_supported(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    (found,) = (c for c in doctor.checks() if c.name == "torch")
    assert not found.ok
    assert found.remedy == "`pip install 'torch>=2.11,<2.15'`"
