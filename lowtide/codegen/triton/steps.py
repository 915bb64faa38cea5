"""All steps of a program of blocks, launched one after another.

In: a `StepRun`, its kernels and their texts. Out: nothing; the steps have been launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lowtide.codegen.stepwise import Row, StepRun
from lowtide.codegen.triton.kernel import BlockText
from lowtide.runtime.blocks import BlockKernel, power
from lowtide.runtime.steps import Moving
from lowtide.texpr.sizes import evaluate


def run_blocks(
    run: StepRun,
    kernels: Mapping[str, BlockKernel],
    texts: Sequence[BlockText],
    trips: int,
    reverse: bool,
) -> None:
    """Launches the kernels of a step, in order, for every step."""
    places = {n: run.place(n) for text in texts for n in text.tensors}
    sizes = {n: run.size(n) for text in texts for n in text.sizes}
    for k in range(trips):
        t = trips - 1 - k if reverse else k
        now = {n: _at(x, k, t) for n, x in sizes.items()}
        known = {**run.sizes, **now}
        for text in texts:
            given = [
                *(_row(places[n], k, t) for n in text.tensors),
                *(now[n] for n in text.sizes),
                *(run.numbers[n] for n in text.numbers),
            ]
            widths = {w: power(evaluate(n, known)) for w, n in text.widths.items()}
            kernels[text.name](evaluate(text.programs, known), *given, **widths)


def _row(place: Tensor | Row, k: int, t: int) -> Tensor:
    if isinstance(place, Tensor):
        return place
    return place.first if k == 0 else place.stack[(t + place.shift) % len(place.stack)]


def _at(size: int | Moving, k: int, t: int) -> int:
    if isinstance(size, int):
        return size
    if k == 0:
        return size.first
    return size.base + size.stride * ((t + size.shift) % size.rows)
