"""The launches of a step on the CPU.

In: a `StepRun`, its compiled kernels, their texts and plans. Out: `Launch`es, for `runtime/steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lowtide.codegen.c.kernel import BEGUN, KernelText
from lowtide.codegen.stepwise import StepRun
from lowtide.runtime import arena, launch
from lowtide.runtime.steps import Launch, Moving, Slot
from lowtide.texpr.sizes import evaluate
from lowtide.tile.ir import Kernel


def host_launches(
    run: StepRun,
    kernels: Mapping[str, launch.Kernel],
    texts: Sequence[KernelText],
    plans: Sequence[Kernel],
) -> list[Launch]:
    """A launch of each kernel, in order."""
    threads = torch.get_num_threads()
    work = _work(run, texts, plans, threads)
    made: list[Launch] = []
    for text in texts:
        kernel = kernels[text.name]
        slots: list[float | Slot] = [
            launch.parallel_for_address(),
            threads,
            work[text.name].address,
            *(run.pointer(n) for n in text.tensors),
            *(_size(run, n) for n in text.sizes),
            *(run.numbers[n] for n in text.numbers),
        ]
        held = work[text.name]
        made.append(Launch(function=kernel.function, layout=kernel.layout, slots=slots, keeps=held))
    return made


def _work(
    run: StepRun, texts: Sequence[KernelText], plans: Sequence[Kernel], threads: int
) -> dict[str, arena.Scratch]:
    """Work memory by kernel: its own if it is to find there what an earlier step left."""
    bytes_of = {t.name: evaluate(t.thread_bytes, run.sizes) for t in texts}
    own = {p.name for p in plans if p.prologue}
    others = bytes_of.keys() - own
    work = {n: arena.scratch(threads * bytes_of[n]) for n in sorted(own)}
    if others:
        shared = arena.scratch(threads * max(bytes_of[n] for n in others))
        work |= dict.fromkeys(others, shared)
    return work


def _size(run: StepRun, name: str) -> Slot:
    if name == BEGUN:
        return Moving(first=0, base=1, stride=0, shift=0, rows=1, level=run.level)
    return run.size(name)
