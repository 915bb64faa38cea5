"""Which machine a program is compiled for: what differs between them, in one table.

cpu           C                      groups may keep values from tile to tile
cuda          Triton                 programs of blocks are independent of each other
interpreter   Triton's interpreter   the same kernels on CPU tensors, to check their values
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from lowtide.codegen.c.executable import HostExecutable
from lowtide.codegen.executable import Executable, Fusion
from lowtide.texpr.expr import Program
from lowtide.texpr.long_folds import in_two_steps
from lowtide.texpr.normalise import normalise
from lowtide.tile.group import group

CPU, CUDA, INTERPRETER = "cpu", "cuda", "interpreter"


def fused(program: Program, hints: Mapping[str, int], machine: str) -> Fusion:
    """A Program in groups, not planned yet; `hints` are likely sizes."""
    normal = normalise(program, hints)
    if machine != CPU:
        normal = in_two_steps(normal, hints)
    groups = group(normal, hints, torch.get_num_threads(), apart=machine != CPU)
    return Fusion(program=program, normal=normal, groups=groups)


def executable(
    fusion: Fusion,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str,
    moving: Iterable[str] = (),
    updated: Mapping[str, str] | None = None,
) -> Executable:
    """A fused Program for a machine; see `Executable`."""
    if machine == CPU:
        return HostExecutable(fusion, symbols, scalars, hints, moving, updated)
    from lowtide.codegen.triton.executable import BlockExecutable  # few programs need it

    return BlockExecutable(fusion, symbols, scalars, hints, machine, moving)
