"""The kernels of the programs of `programs`, compiled for GPUs; none is needed for that.

python -m tests.blocks.cubins [NAME …]    each kernel for sm_80, sm_90 and sm_100: minutes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide import config
from lowtide.codegen.triton import kernels as triton_kernels
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime import block_kernels
from lowtide.runtime.cubins import SHARED_BYTES, Cubin
from lowtide.tile.gpu import gpu_like
from tests.blocks.programs import CASES, Case
from tests.blocks.test_values import backward, leaves, results


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One of a program's kernels: a function, by name."""

    executable: BlockKernels
    name: str

    @property
    def text(self) -> str:
        """What stands behind its name."""
        _, _, rest = self.executable.source.partition(f"def {self.name}(")
        return rest.partition("@jit")[0]

    @property
    def key(self) -> object:
        """Kernels of one key are the same but for their names."""
        return self.text, self.executable.parameters()[self.name]

    def compiled(self, capability: int) -> Cubin:
        """Raises AssertionError for one that such a GPU cannot run."""
        made = self.executable.cubin(self.name, capability)
        assert made.code[:4] == b"\x7fELF"
        assert made.shared_bytes <= SHARED_BYTES[capability]
        return made


def kernels_of(case: Case, capability: int) -> Iterator[Kernel]:
    """Those of a program and its gradient, planned for such a GPU, of which none is run."""
    found: dict[str, BlockKernels] = {}
    bound = BlockKernels.bound

    def noted(self: BlockKernels) -> Any:
        found[self.source] = self
        return bound(self)

    def unrun(
        self: block_kernels.BlockKernel, programs: int, reach: int, *given: Any, **_: int
    ) -> None:
        for x in given:
            if isinstance(x, torch.Tensor) and not x.is_floating_point():
                x.fill_(1)  # indices in bounds, checks that hold

    with pytest.MonkeyPatch.context() as patch, config.override(interpret_blocks=True):
        patch.setattr(BlockKernels, "bound", noted)
        patch.setattr(triton_kernels, "gpu", lambda _: gpu_like(capability))
        patch.setattr(block_kernels.BlockKernel, "__call__", unrun)
        patch.setattr(block_kernels.BlockKernel, "launch", lambda *_: None)
        given = results(lt.script(case.fn)(*leaves(case)))
        if case.grad:
            backward(given)
    for executable in found.values():
        for name in executable.parameters():
            yield Kernel(executable=executable, name=name)


def main(names: list[str]) -> None:
    """Compiles the kernels of these programs, or of all; a line each."""
    seen: set[object] = set()
    for name in names or CASES:
        for capability in SHARED_BYTES:
            for kernel in kernels_of(CASES[name], capability):
                if (kernel.key, capability) in seen:
                    continue
                seen.add((kernel.key, capability))
                start = time.perf_counter()
                made = kernel.compiled(capability)
                seconds = time.perf_counter() - start
                head = f"{name:16}{kernel.name:9}sm_{capability:<5}"
                print(f"{head}{made.shared_bytes:7} B shared  {seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
