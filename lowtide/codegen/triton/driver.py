"""The lines of a driver that differ on a GPU: allocations and launches. See `host/python`.

t3 = empty((N, M), dtype=torch.float32, device=device)
launch_k0(programs, reach, x, y, t3, N, M, W_c=power(C))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from lowtide.codegen.host.program import HostProgram, Launch, Over, Take
from lowtide.codegen.host.python import Dialect, name_of, python_tuple, whole_name
from lowtide.codegen.triton.kernel import BlockText
from lowtide.codegen.triton.steps import run_blocks
from lowtide.runtime import block_kernels
from lowtide.runtime.graphs import GRAPHS
from lowtide.runtime.steps import Steps
from lowtide.texpr.index import Index


class BlockDialect(Dialect):
    """See the module's text. `texts`: the kernels, by their names in the driver. `home`: the
    device of a program without inputs."""

    def __init__(
        self, texts: Mapping[str, BlockText], home: torch.device, interpreted: bool
    ) -> None:
        self.texts = texts
        self.home = home
        self.interpreted = interpreted
        self.chooses = not interpreted

    def opening(self, program: HostProgram) -> Iterator[str]:
        first = next(iter(program.inputs), None)
        yield f"device = {'home' if first is None else f'{name_of(first)}.device'}"

    def take(self, name: str, statement: Take) -> str:
        tensor = statement.tensor
        shape = python_tuple(tensor.shape)
        return f"empty({shape}, dtype={tensor.dtype.torch}, device=device)"

    def over(self, statement: Over, of: str, is_input: bool) -> str:
        raise AssertionError("kernels of blocks do not write in place")

    def work(self, found: Sequence[Index], in_loop: bool) -> str:
        raise AssertionError("kernels of blocks have no work memory")

    def launch(self, launch: Launch, name: str, work: str) -> str:
        text = self.texts[launch.kernel]
        given = [*map(whole_name, launch.tensors), *launch.sizes, *launch.numbers]
        given += [f"{w}=power({extent})" for w, extent in text.widths.items()]
        head = [str(text.programs), f"max([{', '.join(map(str, (0, *text.reach)))}])"]
        return f"launch_{name}({', '.join([*head, *given])})"

    def step(self, launch: Launch, name: str, work: str, slots: str, sizes: str) -> str:
        return f"Launch(function=step_{name}(sizes={sizes}), layout='', slots=[{slots}])"

    def run(self, steps: str, tensors: str) -> str:
        return f"run_steps({steps}, device, {tensors})"

    def own(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(tuple(shape))

    def scope(self, program: HostProgram) -> dict[str, Any]:
        graphs = None if self.interpreted else GRAPHS

        def run_steps(steps: Steps, device: torch.device, tensors: Sequence[torch.Tensor]) -> int:
            run_blocks(steps, device, tensors, graphs)
            return steps.trips

        return {
            "empty": torch.empty,
            "power": block_kernels.power,
            "home": self.home,
            "run_steps": run_steps,
        }
