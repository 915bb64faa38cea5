"""`tune=True` on a GPU: measured once for a device and a version of Triton, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen import machines, tuned
from lowtide.codegen.executable import Executable
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime import block_kernels
from lowtide.tile.target import BLOCK_TILINGS
from tests.blocks.stand_in import Gpu

TAKEN = "many warps"


def kernel_sum(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def given() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(70, 3), torch.randn(90, 3), torch.randn(90, 40)


def check(compiled: Any) -> str:
    """Calls it; how its kernels are made then."""
    args = given()
    torch.testing.assert_close(compiled(*args), kernel_sum(*args), rtol=2e-4, atol=2e-4)
    return str(compiled.explain(*args))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    few = {name: BLOCK_TILINGS[name] for name in ("", TAKEN)}
    monkeypatch.setattr(machines, "BLOCK_TILINGS", few)
    with config.override(cache_dir=str(tmp_path / "lowtide")):
        yield


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of the tilings of each measurement, of which one is always the fastest."""
    found: list[list[str]] = []

    def times(ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        found.append(list(ways))
        for way in ways.values():
            assert way() < float("inf")
        return {name: 1.0 if name == TAKEN else 2.0 for name in ways}

    monkeypatch.setattr(tuned, "_times", times)
    return found


def test_each_device_is_measured_once(
    gpu: Gpu, measured: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("Some GPU", 1), ("Some GPU", 1), ("Another GPU", 2), ("Some GPU", 2)):
        monkeypatch.setattr(block_kernels, "identity", lambda _, name=name: f"{name} triton")
        how = check(lt.script(kernel_sum, tune=True))
        assert f'tiling "{TAKEN}", by measurement' in how
        assert len(measured) == count


def test_what_a_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of one name are one kind, whatever their index."""
    names = {0: "Some GPU", 1: "Another GPU", 2: "Some GPU"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index])
    found = [block_kernels.identity(torch.device("cuda", k)) for k in names]
    assert found[0] == found[2] != found[1]
    assert triton.__version__ in found[0]
    monkeypatch.setattr(triton, "__version__", "0.0")
    assert block_kernels.identity(torch.device("cuda", 0)) != found[0]


def test_within_a_users_graph_nothing_is_measured(gpu: Gpu, measured: list[list[str]]) -> None:
    compiled = lt.script(kernel_sum, tune=True)
    check(lt.script(kernel_sum))
    gpu.capturing = True
    with pytest.warns(RuntimeWarning, match="Call the program once before"):
        check(compiled)
    assert not measured
    gpu.capturing = False
    check(compiled)
    assert len(measured) == 1
    count = len(gpu.launched)
    gpu.capturing = True
    assert TAKEN in check(compiled)
    assert len(gpu.launched) > count


def test_what_finds_no_room_is_not_taken(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, made: list[BlockKernels]
) -> None:
    """Of one tiling it is no error of the call; where none finds any, nothing is remembered."""

    def full(self: Executable, *given: Any) -> Any:
        if is_full(self):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, *given)

    def is_full(one: Executable) -> bool:
        return room == "none" or (room == "one" and one.first is not made[0])

    real = Executable.__call__
    monkeypatch.setattr(Executable, "__call__", full)
    monkeypatch.setattr(block_kernels, "identity", lambda _: "Some GPU triton")
    compiled, room = lt.script(kernel_sum, tune=True), "none"
    with pytest.raises(torch.OutOfMemoryError):
        compiled(*given())
    room = "one"
    assert "by measurement" not in check(compiled)
    assert len(set(map(id, made))) == 2
    assert len(list(Path(config.current().cache_dir).rglob("tilings/*.json"))) == 1
