"""All steps of a program of blocks, launched one after another.

In: the launches of a step (`BlockLaunch`), the tensors in whose memory their slots lie.
Out: nothing; the steps have been launched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lowtide.codegen.stepwise import Room, StepRun
from lowtide.codegen.triton.kernel import BlockText
from lowtide.ir.dtypes import DType
from lowtide.runtime.blocks import BlockKernel, power
from lowtide.runtime.steps import Launch, Moving, Slot, Steps
from lowtide.texpr.sizes import evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLaunch:
    """What the slots of a launch are for: addresses of `dtypes`, then sizes, then numbers.

    `sizes`: those that no step changes, too."""

    kernel: BlockKernel
    text: BlockText
    dtypes: Sequence[DType]
    sizes: Mapping[str, int]


def block_launches(
    run: StepRun,
    kernels: Mapping[str, BlockKernel],
    texts: Sequence[BlockText],
    memory: Mapping[str, DType],
) -> list[Launch]:
    """A launch of each kernel, in order."""
    return [
        Launch(
            function=BlockLaunch(
                kernel=kernels[text.name],
                text=text,
                dtypes=[memory[n] for n in text.tensors],
                sizes=run.sizes,
            ),
            layout="",
            slots=[
                *map(run.pointer, text.tensors),
                *map(run.size, text.sizes),
                *(run.numbers[n] for n in text.numbers),
            ],
        )
        for text in texts
    ]


def run_blocks(steps: Steps, room: Room) -> None:
    """Launches the kernels of all steps, those of loops within steps among them."""
    _Runner(room).loop(steps)


class _Runner:
    def __init__(self, room: Room) -> None:
        storages = {x.untyped_storage().data_ptr(): x for x in room.tensors}
        self.begins = sorted(storages)
        self.storages = storages
        self.now: dict[int, tuple[int, int]] = {}  # by level: which step it is, the k-th that runs

    def loop(self, steps: Steps) -> None:
        for k in range(steps.trips):
            self.now[steps.level] = steps.trips - 1 - k if steps.reverse else k, k
            for launch in steps.launches:
                if isinstance(launch, Steps):
                    self.loop(launch)
                else:
                    self.launch(launch)

    def launch(self, launch: Launch) -> None:
        made: BlockLaunch = launch.function
        count = len(made.dtypes)
        values = [self.value(x) for x in launch.slots]
        tensors = map(self.tensor, map(int, values[:count]), made.dtypes)
        names = made.text.sizes
        sizes = {**made.sizes, **dict(zip(names, map(int, values[count:]), strict=False))}
        widths = {w: power(evaluate(n, sizes)) for w, n in made.text.widths.items()}
        programs = evaluate(made.text.programs, sizes)
        reach = max((evaluate(n, sizes) for n in made.text.reach), default=0)
        made.kernel(programs, reach, *tensors, *values[count:], **widths)

    def value(self, slot: float | Slot) -> float:
        """What a slot holds at this step."""
        if not isinstance(slot, Moving):
            return slot
        t, k = self.now[slot.level]
        if k == 0:
            return self.value(slot.first)
        return self.value(slot.base) + slot.stride * ((t + slot.shift) % slot.rows)

    def tensor(self, address: int, dtype: DType) -> Tensor:
        """The memory from an address on."""
        begin = self.begins[bisect_right(self.begins, address) - 1]
        storage = self.storages[begin].untyped_storage()
        offset = (address - begin) // dtype.itemsize
        room = storage.nbytes() // dtype.itemsize - offset
        made = torch.empty(0, dtype=dtype.torch, device=storage.device)
        return made.set_(storage, offset, (room,), (1,))
