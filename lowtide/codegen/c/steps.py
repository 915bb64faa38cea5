"""All steps of a program on the CPU in one foreign call.

In: a `StepRun`, its compiled kernels and their texts. Out: nothing; the steps have run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lowtide.codegen.c.kernel import BEGUN, KernelText
from lowtide.codegen.stepwise import Row, StepRun
from lowtide.runtime import arena, launch
from lowtide.runtime.steps import Launch, Moving, run_steps
from lowtide.texpr.sizes import evaluate
from lowtide.tile.ir import Kernel


def run_on_host(
    run: StepRun,
    kernels: Mapping[str, launch.Kernel],
    texts: Sequence[KernelText],
    plans: Sequence[Kernel],
    trips: int,
    reverse: bool,
) -> None:
    """Launches the kernels of a step, in order, for every step."""
    threads = torch.get_num_threads()
    work = _work(run, texts, plans, threads)
    launches: list[Launch] = []
    for text in texts:
        kernel = kernels[text.name]
        slots = [
            launch.parallel_for_address(),
            threads,
            work[text.name].address,
            *(_pointer(run.place(n)) for n in text.tensors),
            *(_size(run, n) for n in text.sizes),
            *(run.numbers[n] for n in text.numbers),
        ]
        launches.append(Launch(function=kernel.function, layout=kernel.layout, slots=slots))
    run_steps(launches, trips, reverse)


def _work(
    run: StepRun, texts: Sequence[KernelText], plans: Sequence[Kernel], threads: int
) -> dict[str, arena.Scratch]:
    """Work memory by kernel: its own if it is to find there what an earlier step left."""
    bytes_of = {t.name: evaluate(t.thread_bytes, run.sizes) for t in texts}
    own = {p.name for p in plans if p.prologue}
    shared = arena.scratch(threads * max((bytes_of[n] for n in bytes_of.keys() - own), default=0))
    return {n: arena.scratch(threads * bytes_of[n]) if n in own else shared for n in bytes_of}


def _pointer(place: Tensor | Row) -> int | Moving:
    if isinstance(place, Tensor):
        return place.data_ptr()
    stack = place.stack
    return Moving(
        first=place.first.data_ptr(),
        base=stack.data_ptr(),
        stride=stack.stride(0) * stack.element_size(),
        shift=place.shift,
        rows=len(stack),
    )


def _size(run: StepRun, name: str) -> int | Moving:
    if name == BEGUN:
        return Moving(first=0, base=1, stride=0, shift=0, rows=1)
    return run.size(name)
