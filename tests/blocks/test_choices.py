"""Which tiles, warps and stages the cost model takes: legal on every GPU, enough programs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.machines import CUDA, Kind, kernels_of
from lowtide.codegen.triton import kernels
from lowtide.codegen.triton import kernels as triton_kernels
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.compiler import fused
from lowtide.runtime.block_kernels import BlockKernel
from lowtide.runtime.gpus import Properties
from lowtide.texpr.build import Builder
from lowtide.tile.block_arrangement import BlockArrangement, Choice
from lowtide.tile.gpu import GPUS, USUAL, Gpu, gpu_like, gpu_of
from lowtide.tile.predict import Part, Product, Shape, predict
from tests.blocks.programs import CASES, kernel_sum, scaled
from tests.emit.test_kernels import HINTS, PROGRAMS


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """All choices that the test has made."""
    found: list[Choice] = []
    real = BlockArrangement._chosen  # pyright: ignore[reportPrivateUsage]

    def noted(self: BlockArrangement) -> Choice:
        found.append(real(self))
        return found[-1]

    monkeypatch.setattr(BlockArrangement, "_chosen", noted)
    return found


def on(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    monkeypatch.setattr(triton_kernels, "gpu", lambda _: gpu)


def made(name: str, tiling: str = "", hints: dict[str, int] = HINTS) -> BlockKernels:
    b = Builder()
    b.program.outputs = [v.name for v in PROGRAMS[name](b)]
    kind = Kind(machine=CUDA, tiling=tiling)
    found = kernels_of(fused(b.program, hints, blocks=True), list(hints), [], hints, kind)
    assert isinstance(found, BlockKernels)
    return found


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name", ["kernel-sum", "attention-bf16", "rows", "boxes", "loss"])
def test_what_is_taken_is_legal(
    capability: int, name: str, chosen: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GPUS[capability]
    on(monkeypatch, gpu)
    monkeypatch.setattr(BlockKernel, "__call__", lambda *_, **__: None)
    lt.script(CASES[name].fn)(*CASES[name].arguments())
    assert chosen
    for choice in chosen:
        assert choice.found.resident
        assert choice.found.shared_bytes <= gpu.shared_bytes
        assert choice.found.registers <= 255


def test_small_launches_have_small_tiles() -> None:
    few, many = (_programs(*sizes) for sizes in (((70, 40), (40,)), ((4096, 2048), (2048,))))
    assert few >= 8
    assert many >= 2 * USUAL.sms


def _programs(*sizes: tuple[int, ...]) -> int:
    launched: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockKernel, "__call__", lambda _, n, *__, **___: launched.append(n))
        lt.script(scaled)(*(torch.empty(s) for s in sizes))
    return launched[0]


def test_the_choice_depends_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of few multiprocessors takes larger tiles for the same sizes."""
    found: dict[int, str] = {}
    for sms in (4, 132):
        on(monkeypatch, gpu_of("", 90, **{**TOLD, "sms": sms}))
        found[sms] = str(made("chamfer").plans[0])
    assert found[4] != found[132]


TOLD = {
    "sms": 0, "shared_sm_bytes": 0, "threads": 0, "clock_khz": 0,
    "memory_clock_khz": 0, "memory_bus_bits": 0,
}  # fmt: skip


def test_what_a_device_tells() -> None:
    assert gpu_of("H100", 90, **TOLD) == USUAL
    told = {**TOLD, "sms": 100, "shared_sm_bytes": 100 << 10}
    found = gpu_of("a part", 86, **told)
    assert (found.sms, found.shared_bytes, found.threads) == (100, 99 << 10, 1536)
    memory = {**TOLD, "memory_clock_khz": 2_619_000, "memory_bus_bits": 5120}
    assert round(gpu_of("H100", 90, **memory).gigabytes_per_second) == 3352


@pytest.mark.parametrize(("capability", "like"), [(70, 75), (87, 86), (103, 100), (121, 120)])
def test_capabilities_that_are_in_no_table(capability: int, like: int) -> None:
    assert gpu_like(capability).sms == GPUS[like].sms
    assert gpu_like(capability).capability == capability


def test_the_gpu_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Properties(name="small", capability=86, **{**TOLD, "sms": 3})
    monkeypatch.setattr(kernels, "properties", lambda index: told if index == 1 else None)
    kernels.gpu.cache_clear()
    assert kernels.gpu("cuda:1").sms == 3
    assert kernels.gpu("cuda:0") == kernels.gpu("cuda") == kernels.gpu("interpreter") == USUAL
    kernels.gpu.cache_clear()


def test_the_text_names_the_choice() -> None:
    """So that what is kept by text is kept by this, too, and each row of tilings is measured."""
    few, many = made("chamfer", "few warps"), made("chamfer", "many warps")
    assert few.source != many.source
    for found in (few, many):
        text, kernel = found.texts[0], found.plans[0]
        assert f"# {kernel.warps} warps, {kernel.stages} stages\n@jit" in text.text
        assert (found.parameters()["k0"].warps, found.parameters()["k0"].stages) == (
            text.warps,
            text.stages,
        )
    assert many.plans[0].warps >= 8 > few.plans[0].warps


def test_explain_shows_the_choice() -> None:
    x, y, b = torch.randn(70, 3), torch.randn(90, 3), torch.randn(90, 40)
    assert " warps, " in str(lt.script(kernel_sum).explain(x, y, b))


def shape(programs: int, product: Product | None = None, held: int = 1024) -> Shape:
    part = Part(visits=8, layers=((1024, 4.0),), live_words=1024, read_bytes=4096, product=product)
    return Shape(
        programs=programs, parts=(part,), held_words=held, folds=0, moved_bytes=programs * 4096
    )


def test_predictions() -> None:
    """Whole waves of programs; what does not fit; units for products."""
    alone, full, more = (predict(shape(n), USUAL, 4, 3).time_ns for n in (1, 132, 100_000))
    assert alone <= full < more / 10
    assert predict(shape(1, held=1 << 16), USUAL, 4, 3).resident == 0
    sides = {"rows": 64, "columns": 64, "inner": 32, "made_bytes": 0}
    half = Product(dtype="bf16", read_bytes=8192, **sides)
    single = Product(dtype="f32", read_bytes=16384, **sides)
    times = [predict(shape(4096, p), USUAL, 4, 3).time_ns for p in (half, single)]
    assert times[0] < times[1]
    on_turing = [predict(shape(4096, p), GPUS[75], 4, 3).shared_bytes for p in (half, single)]
    assert on_turing == [64 * 64 * 4] * 2
    large = Product(dtype="f32", read_bytes=60_000, **sides)
    assert predict(shape(1, large), GPUS[86], 4, 4).resident == 0
    assert predict(shape(1, large), USUAL, 4, 4).resident


def looped(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
    return h


def test_small_states_stay_in_one_program(chosen: list[Choice]) -> None:
    """So that one launch goes through all steps."""
    x, w = torch.randn(33, 1, 36), torch.randn(36, 36) * 0.1
    torch.testing.assert_close(lt.script(looped)(x, w), looped(x, w), rtol=1e-4, atol=1e-4)
    assert any(c.shape.programs == 1 for c in chosen)
