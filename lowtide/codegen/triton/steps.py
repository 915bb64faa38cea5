"""All steps of a program of blocks, launched one after another.

In: a `StepRun`, its kernels and their texts. Out: nothing; the steps have been launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from lowtide.codegen.stepwise import Row, StepRun
from lowtide.codegen.triton.kernel import BlockText
from lowtide.runtime.blocks import BlockKernel, power
from lowtide.runtime.steps import Moving
from lowtide.texpr.sizes import evaluate

Launch = Callable[[int, int], None]  # of a kernel at the k-th step that runs, which is step t


def run_blocks(
    run: StepRun,
    kernels: Mapping[str, BlockKernel],
    texts: Sequence[BlockText],
    trips: int,
    reverse: bool,
) -> None:
    """Launches the kernels of a step, in order, for every step."""
    launches = [_launch(run, kernels[t.name], t) for t in texts]
    for k in range(trips):
        for launch in launches:
            launch(k, trips - 1 - k if reverse else k)


def _launch(run: StepRun, kernel: BlockKernel, text: BlockText) -> Launch:
    """What differs from step to step is looked up at each, all else once."""
    places = [run.place(n) for n in text.tensors]
    sizes = {n: run.size(n) for n in text.sizes}
    given = [*places, *sizes.values(), *(run.numbers[n] for n in text.numbers)]
    moving = [i for i, x in enumerate(given) if isinstance(x, Row | Moving)]
    grows = any(isinstance(x, Moving) for x in sizes.values())
    first = _grid(text, run.sizes)

    def launch(k: int, t: int) -> None:
        now: list[Any] = list(given)
        for i in moving:
            now[i] = _at(now[i], k, t)
        programs, widths = first
        if grows:
            known = dict(zip(sizes, now[len(places) :], strict=False))
            programs, widths = _grid(text, {**run.sizes, **known})
        kernel(programs, *now, **widths)

    return launch


def _grid(text: BlockText, sizes: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    widths = {w: power(evaluate(n, sizes)) for w, n in text.widths.items()}
    return evaluate(text.programs, sizes), widths


def _at(x: Row | Moving, k: int, t: int) -> Tensor | int:
    if isinstance(x, Row):
        return x.first if k == 0 else x.stack[(t + x.shift) % len(x.stack)]
    return x.first if k == 0 else x.base + x.stride * ((t + x.shift) % x.rows)
