"""What happens where kernels for GPUs cannot run."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.driver import BlockDialect
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.errors import BackendError
from lowtide.execute.driver import NO_MEMORY
from lowtide.runtime import block_kernels, cubins, doctor
from lowtide.specialise.signature import Binding, Ineligible
from tests.blocks.stand_in import Gpu


def f(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(x[:, None] - y[None]).sum(1)


class Refused:
    """A function that the compiler does not take."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*_: object, **__: object) -> None:
            raise RuntimeError("out of resource: shared memory\nand a long text")

        return launch


def test_a_refused_kernel_is_pytorchs(made: list[BlockKernels]) -> None:
    compiled = lt.script(f)
    x, y = torch.randn(40), torch.randn(50)
    compiled(x, y)
    for kernel in made[0].bound().values():
        kernel.function = Refused()
    with pytest.warns(RuntimeWarning, match="is refused: RuntimeError: out of resource"):
        found = compiled(x, y)
    torch.testing.assert_close(found, f(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        torch.testing.assert_close(compiled(x, y), f(x, y))
    assert "is refused: RuntimeError: out of resource" in str(compiled.explain(x, y))
    assert any("is refused" in n for n in compiled.memory(x, y).notes)


def test_a_refused_backward_pass_is_pytorchs(made: list[BlockKernels]) -> None:
    compiled = lt.script(f)
    x, y = torch.randn(40, requires_grad=True), torch.randn(50)
    compiled(x, y).sum().backward()
    want = x.grad
    for executable in made[1:]:
        for kernel in executable.bound().values():
            kernel.function = Refused()
    x.grad = None
    assert "is refused" not in str(compiled.explain(x, y))
    with pytest.warns(RuntimeWarning, match="PyTorch runs it instead"):
        compiled(x, y).sum().backward()
    torch.testing.assert_close(x.grad, want)
    assert "is refused: RuntimeError: out of resource" in str(compiled.explain(x, y))


def test_out_of_memory_is_pytorchs_own_error(made: list[BlockKernels]) -> None:
    class Full(Refused):
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    compiled = lt.script(f)
    x, y = torch.randn(40), torch.randn(50)
    compiled(x, y)
    for kernel in made[0].bound().values():
        kernel.function = Full()
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as fault:
        compiled(x, y)
    assert fault.value.__notes__ == [NO_MEMORY]


def test_no_memory_for_a_result(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a call: what is there already is let go, and later calls are as ever."""

    def g(x: Tensor, y: Tensor) -> Tensor:
        return torch.cumsum(torch.exp(x[:, None] - y[None]), 1) * 2

    class Free:
        left = 1

        def empty(self, *given: Any, **named: Any) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
            made.append(weakref.ref(found := torch.empty(*given, **named)))
            return found

    made: list[weakref.ref[Tensor]] = []
    real = BlockDialect.scope
    free = Free()
    monkeypatch.setattr(BlockDialect, "scope", lambda *x: {**real(*x), "empty": free.empty})
    compiled = lt.script(g)
    x, y = torch.randn(40), torch.randn(50)
    with pytest.raises(torch.OutOfMemoryError) as fault:
        compiled(x, y)
    assert fault.value.__notes__ == [NO_MEMORY]
    del fault
    gc.collect()
    assert len(made) == 1
    assert made[0]() is None
    free.left = 100
    torch.testing.assert_close(compiled(x, y), g(x, y))


C_FAULT = subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"])


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (RuntimeError("Failed to find C compiler. Specify …"), "apt install gcc python3-dev"),
        (C_FAULT, "apt install gcc python3-dev"),
        (AssertionError("libcuda.so cannot found!"), "ldconfig"),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), "update NVIDIA's"),
        (RuntimeError("something else"), "`lowtide doctor` tests driver and Triton"),
    ],
)
def test_a_refusal_says_what_to_do(
    error: Exception, remedy: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_form(*_: object) -> Any:
        raise error

    monkeypatch.setattr(cubins, "compile_form", compile_form)
    x, y = torch.randn(40), torch.randn(50)
    with pytest.warns(RuntimeWarning, match=f"PyTorch runs it instead. .*{remedy}"):
        torch.testing.assert_close(lt.script(f)(x, y), f(x, y))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    real = doctor.blocks_fault
    monkeypatch.setattr(doctor, "blocks_fault", lambda _: real("cpu"))
    found = {c.name: c for c in doctor.checks()}["GPU"]
    assert not found.ok
    assert remedy in found.remedy or "triton" in found.remedy


def test_more_programs_than_a_grid_has(made: list[BlockKernels]) -> None:
    """It is no fault of the form: what is smaller is launched."""
    compiled = lt.script(f)
    x, y = torch.randn(40), torch.randn(50)
    compiled(x, y)
    (kernel,) = made[0].bound().values()
    form = kernel.form(x.device, True, [], ())
    with (
        pytest.warns(RuntimeWarning, match=r"2147483648 programs.*PyTorch runs it instead"),
        pytest.raises(block_kernels.KernelFault),
    ):
        kernel.launch(1 << 31, form, [])
    assert not kernel.faults


def test_no_room_for_code_is_not_for_ever(made: list[BlockKernels]) -> None:
    class Full(Refused):
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise RuntimeError("Triton Error [CUDA]: out of memory")

    compiled = lt.script(f)
    x, y = torch.randn(40), torch.randn(50)
    compiled(x, y)
    (kernel,) = made[0].bound().values()
    real, kernel.function = kernel.function, Full()
    with pytest.warns(RuntimeWarning, match="out of memory; PyTorch runs it instead"):
        torch.testing.assert_close(compiled(x, y), f(x, y))
    kernel.function = real
    assert not kernel.faults
    torch.testing.assert_close(compiled(x, y), f(x, y))


@pytest.fixture
def triton_again() -> Iterator[None]:
    """What a test has found out of Triton is forgotten afterwards."""
    yield
    for found in (block_kernels.missing, block_kernels.warn_missing, block_kernels._loaded):
        found.cache_clear()
    block_kernels._refused.clear()


@pytest.mark.usefixtures("triton_again")
def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    block_kernels.missing.cache_clear()
    with pytest.raises(BackendError, match="pip install triton"):
        block_kernels.load("", interpreted=True)

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)  # type: ignore[assignment]

    x = torch.zeros(40).as_subclass(OnGpu)
    block_kernels.warn_missing.cache_clear()
    with (
        pytest.raises(Ineligible, match="need Triton: pip install triton"),
        pytest.warns(RuntimeWarning, match="pip install triton. PyTorch runs calls with"),
    ):
        Binding([x], {}, False)
    with (
        pytest.raises(Ineligible, match="need Triton: pip install triton"),
        warnings.catch_warnings(action="error"),  # it is said once
    ):
        Binding([x], {}, False)


@pytest.mark.usefixtures("triton_again")
def test_a_triton_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise OSError('libcuda.so.1: not found')")
    monkeypatch.syspath_prepend(tmp_path)
    block_kernels.missing.cache_clear()
    remedy = r"cannot be imported \(OSError: libcuda.so.1: not found\): pip install"
    with pytest.raises(BackendError, match=remedy):
        block_kernels.load("", interpreted=True)


@pytest.mark.usefixtures("triton_again")
def test_a_triton_of_another_time_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.language as tl

    block_kernels._loaded.cache_clear()
    monkeypatch.delattr(tl, "range")
    compiled = lt.script(f)
    x, y = torch.randn(40, requires_grad=True), torch.randn(50)
    with pytest.warns(RuntimeWarning, match="cannot load.*: AttributeError.*`lowtide doctor`"):
        found = compiled(x, y)
    torch.testing.assert_close(found, f(x, y))
    found.sum().backward()
    assert x.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        torch.testing.assert_close(compiled(x, y), f(x, y))


def test_the_device_of_a_region() -> None:
    with pytest.raises(Ineligible, match="several devices"):
        Binding(
            [torch.zeros(40, device="meta"), torch.zeros(40)], {}, False, torch.device("cuda", 0)
        )
    binding = Binding([torch.zeros(40, device="meta")], {}, False, torch.device("cuda", 0))
    assert (binding.device, binding.machine) == (torch.device("cuda", 0), "cuda:0")


def test_the_doctor_runs_a_kernel(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.blocks_fault("cpu") == ""
    assert [x.source.fn.__name__ for x in gpu.launched] == ["lowtide_doctor"]

    def compile_form(*_: object) -> Any:
        raise RuntimeError("Triton Error [CUDA]: device kernel image is invalid")

    monkeypatch.setattr(cubins, "compile_form", compile_form)
    assert "device kernel image is invalid" in doctor.blocks_fault("cpu")


def test_the_doctor_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(doctor, "requires", lambda _: ["numpy", "triton==9.9.9; linux"])
    monkeypatch.setattr(doctor, "blocks_fault", lambda _: "a kernel is refused")
    found = {c.name: c for c in doctor.checks()}["GPU"]
    assert not found.ok
    assert "a kernel is refused" in found.detail
    assert "'triton==9.9.9'" in found.remedy
    monkeypatch.setattr(doctor, "blocks_fault", lambda _: "")
    assert {c.name: c for c in doctor.checks()}["GPU"].ok
