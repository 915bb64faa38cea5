"""What a program on the GPU has on the CPU is not the GPU's memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOM_BYTES = 1 << 18  # an op's own, which is less for tensors of the CPU


def sorted_on_the_cpu(x: Tensor) -> Tensor:
    y = x.cumsum(0).cpu()
    return torch.sort(y).values.cumsum(0)


def there_and_back(x: Tensor) -> Tensor:
    y = x.cumsum(0).to("cpu")
    return y.cumsum(0).cuda().cumsum(0)


def made_on_the_cpu(x: Tensor) -> Tensor:
    y = torch.zeros(300_000, device="cpu").cumsum(0)
    return x.cumsum(0) + y.to(x.device)


def a_number_of_the_gpu(x: Tensor) -> Tensor:
    return torch.tensor(3.0, device="cuda") * x


PROGRAMS = (sorted_on_the_cpu, there_and_back, made_on_the_cpu, a_number_of_the_gpu)


@ON_CUDA
@pytest.mark.parametrize("entry", [lt.script, lt.compile], ids=["script", "compile"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_only_what_is_there_counts(entry: Any, fn: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    compiled = entry(fn)
    x = torch.zeros(300_000, device="cuda")
    plan = compiled.memory(x)
    assert not any("nothing after it is counted" in note for note in plan.notes)
    compiled(x)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    compiled(x)
    asked = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    assert asked <= plan.peak_bytes <= asked + ROOM_BYTES
