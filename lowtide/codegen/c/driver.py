"""The lines of a driver that differ on the CPU: allocations and launches. See `host/python`.

t3 = empty((N, M), torch.float32)
k0_work = scratch(threads * (64*M))
run_k0(pack_k0(pool, threads, k0_work.address, x.data_ptr(), t3.data_ptr(), N, M))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.codegen.host.program import HostProgram, Launch, Over, Take, Tensor
from lowtide.codegen.host.python import (
    Dialect,
    name_of,
    product_text,
    python_tuple,
    whole_name,
)
from lowtide.ir.dtypes import DType
from lowtide.runtime import arena, blas, launch, ownership
from lowtide.runtime.arena import SMALL_SCRATCH_BYTES
from lowtide.runtime.steps import run_steps
from lowtide.texpr.index import Index
from lowtide.tile.matmul import Matmul
from lowtide.torch_private import torch_state

_SMALL_BYTES: Final = 4096
_small_scratch = arena.SmallScratch()


class HostDialect(Dialect):
    """See the module's text."""

    def opening(self, program: HostProgram) -> Iterator[str]:
        yield "threads = threads_now()"

    def take(self, name: str, statement: Take) -> str:
        tensor = statement.tensor
        if small_shape(tensor) is not None:
            return f"empty_like(like_{name})"
        return f"empty({python_tuple(tensor.shape)}, {tensor.dtype.torch})"

    def over(self, statement: Over, of: str, is_input: bool) -> str:
        return f"over({of}, {python_tuple(statement.tensor.shape)})" if is_input else of

    def work(self, found: Sequence[Index], in_loop: bool) -> str:
        if len(found) > 1:
            return f"scratch(threads * max({', '.join(map(str, found))}))"
        thread_bytes = found[0]
        block = f"scratch(threads * ({thread_bytes}))"
        is_small = thread_bytes.const is not None and thread_bytes.const <= SMALL_SCRATCH_BYTES
        if in_loop or not is_small:
            return block
        most = SMALL_SCRATCH_BYTES // (thread_bytes.const or 1)
        return f"small_scratch if threads <= {most} else {block}"

    def launch(self, launch: Launch, name: str, work: str) -> str:
        pointers = [f"{whole_name(x)}.data_ptr()" for x in launch.tensors]
        address = f"{work}.address" if work else "0"
        slots = ", ".join(["pool", "threads", address, *pointers, *launch.sizes, *launch.numbers])
        return f"run_{name}(pack_{name}({slots}))"

    def product(self, m: Matmul, dtypes: Mapping[str, DType]) -> str:
        """Return the call of BLAS, and that of PyTorch for what BLAS refuses."""
        by_torch, dtype = product_text(m), dtypes[m.result.source]
        if m.bias is not None or dtype.name not in blas.DTYPES:
            return by_torch
        parts, rank = (m.left, m.right, m.result), len(m.left.sizes) - 2
        numbers = [m.left.sizes[-2], m.right.sizes[-1], m.left.sizes[-1]]
        numbers += [step for x in parts for step in x.strides[-2:]]
        slots = [f"product_{dtype.name}.one", f"product_{dtype.name}.batch"]
        for x in parts:
            offset = f" + {x.offset * dtype.itemsize}" if x.offset.const != 0 else ""
            slots.append(f"{name_of(x.source)}.data_ptr(){offset}")
        slots += [*map(str, numbers), str(rank)]
        for d in range(rank):
            slots += [str(m.left.sizes[d]), *(str(x.strides[d]) for x in parts)]
        packed = f"pack_product_{rank}({', '.join(slots)})"
        refused = f"product_{dtype.name}.run({packed})"
        if dtype.name == "f32":
            refused = f"(may_round_operands() or {refused})"
        return f"{refused} and {by_torch}"

    def step(self, launch: Launch, name: str, work: str, slots: str, sizes: str) -> str:
        address = f"{work}.address" if work else "0"
        return (
            f"Launch(function=run_{name}, layout=layout_{name}, "
            f"slots=[pool, threads, {address}, {slots}])"
        )

    def run(self, steps: str, tensors: str) -> str:
        return f"run_steps({steps})"

    def own(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return arena.empty(tuple(shape), like.dtype)

    def scope(self, program: HostProgram) -> dict[str, Any]:
        scope: dict[str, Any] = {
            "empty": arena.empty,
            "over": ownership.in_memory_of,
            "scratch": arena.scratch,
            "small_scratch": _small_scratch,
            "threads_now": torch.get_num_threads,
            "pool": launch.parallel_for_address(),
            "empty_like": torch.empty_like,
            "run_steps": run_steps,
        }
        for statement in program.body:
            if isinstance(statement, Matmul):
                scope["may_round_operands"] = torch_state.may_round_operands
                rank = len(statement.left.sizes) - 2
                scope[f"pack_product_{rank}"] = blas.packer(rank)
                scope |= {f"product_{name}": blas.blas(name) for name in blas.DTYPES}
            if isinstance(statement, Take) and (shape := small_shape(statement.tensor)) is not None:
                made = torch.empty(shape, dtype=statement.tensor.dtype.torch, device="cpu")
                scope[f"like_{name_of(statement.name)}"] = made
        return scope


def small_shape(x: Tensor) -> tuple[int, ...] | None:
    """Return the constant shape of a tensor of at most `_SMALL_BYTES`, else None. The driver makes
    such a tensor from a template: `torch.empty_like` takes half the time of `torch.empty`."""
    sizes = [size.const for size in x.shape]
    known = tuple(size for size in sizes if size is not None)
    is_small = math.prod(known) * x.dtype.itemsize <= _SMALL_BYTES
    return known if is_small and len(known) == len(sizes) else None
