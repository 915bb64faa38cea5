"""Predicted peaks of random programs against what PyTorch's allocator and the arena hand out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.errors import CompileError
from lowtide.memory.measure import measure_peak
from lowtide.runtime import arena
from tests.fuzz.check import python_function
from tests.fuzz.generate import generate


def asked_for(call: Any) -> int:
    """The most that was held of what the call asked for; each allocator at its own peak."""
    arena.reset_peak()
    before = arena.stats().in_use_bytes
    peak, result = measure_peak(call, release=lt.empty_cache, allocations_only=True)
    del result
    return max(peak.peak_bytes, arena.stats().peak_in_use_bytes - before)


SEEDS = [*range(200, 208), *(pytest.param(s, marks=pytest.mark.slow) for s in range(208, 260))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_a_random_program_takes_what_is_predicted(seed: int, grad: bool) -> None:
    program = generate(seed)
    compiled: Any = lt.script(python_function(program))
    for sizes in program.runs[:2]:
        args = [x.requires_grad_(grad and x.is_floating_point()) for x in
                program.arguments(sizes).values()]  # fmt: skip

        def call(args: list[torch.Tensor] = args) -> object:
            result = compiled(*args)
            carrying = [x for x in result if x.requires_grad]
            if carrying:
                torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
            return result

        try:
            call()
        except (CompileError, RuntimeError, ValueError, IndexError):
            continue  # eager refuses it as well; test_fuzz compares that
        for x in args:
            x.grad = None
        plan = compiled.memory(*args)
        if any("nothing after it is counted" in n for n in plan.notes):
            continue
        measured = asked_for(call)
        assert measured <= plan.peak_bytes, f"{sizes}: {measured}\n{plan}\n{program}"
        assert plan.peak_bytes <= 1.1 * measured + 8_000_000, f"{sizes}\n{plan}\n{program}"
