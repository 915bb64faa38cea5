"""The driver of a program: Python source that allocates and launches, nothing else.

def run(tensors, sizes, numbers):
    (x, y), (N, M), () = tensors, sizes, numbers
    t3 = empty((N, M), float32)
    run_k0(pack_k0(pool, threads, work, x.data_ptr(), y.data_ptr(), t3.data_ptr(), N, M))
    return [t3]
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from lowtide.codegen.c.kernel import KernelText
from lowtide.codegen.choices import choice_lines
from lowtide.codegen.drivers import dies, opening
from lowtide.runtime.arena import SMALL_SCRATCH_BYTES
from lowtide.texpr.expr import Def, Program
from lowtide.texpr.index import Index
from lowtide.tile.ir import Kernel
from lowtide.tile.matmul import Matmul

_SMALL_BYTES = 4096


def driver_text(
    program: Program,
    shaped: Mapping[str, Def],
    inputs: Sequence[str],
    symbols: Sequence[str],
    scalars: Sequence[str],
    texts: Sequence[KernelText],
    kernels: Sequence[Kernel],
    products: Mapping[str, Matmul],
    placed: Mapping[str, str],
) -> str:
    """Python source of `run(tensors, sizes, numbers) -> list[Tensor]`. `shaped`: each definition
    with the dims that its tensor has. `placed`: results in the memory of another tensor."""
    lines = opening(inputs, symbols, scalars)
    lines.append("    threads = threads_now()")
    for k, (text, kernel) in enumerate(zip(texts, kernels, strict=True)):
        for name in kernel.outputs:
            lines.append(f"    {name} = {_allocation(name, shaped[name], placed, inputs)}")
        work = "0"
        if text.thread_bytes.const != 0:
            lines.append(f"    work = {_work(text.thread_bytes)}")
            work = "work.address"
        pointers = [f"{name}.data_ptr()" for name in text.tensors]
        slots = ", ".join(["pool", "threads", work, *pointers, *text.sizes, *text.numbers])
        launch = f"run_{text.name}(pack_{text.name}({slots}))"
        lines.extend(choice_lines(text.name, products[text.name], launch) if text.name in products
                     else [f"    {launch}"])  # fmt: skip
        dead = [n for n in text.tensors if n in program.defs and dies(n, k, texts, program)]
        if text.thread_bytes.const != 0:
            dead.append("work")
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    lines.append(f"    return [{', '.join([*program.outputs, *program.checks])}]")
    return "\n".join(lines) + "\n"


def small_shape(d: Def) -> tuple[int, ...] | None:
    """The sizes of a result that is constant and so small that a tensor like it is kept at hand:
    `torch.empty_like` takes half the time of `torch.empty`. None for any other."""
    sizes = [size.const for size in d.shape]
    known = tuple(size for size in sizes if size is not None)
    is_small = math.prod(known) * d.dtype.itemsize <= _SMALL_BYTES
    return known if is_small and len(known) == len(sizes) else None


def _allocation(name: str, d: Def, placed: Mapping[str, str], inputs: Container[str]) -> str:
    of = placed.get(name)
    if of is not None and of not in inputs:
        return of
    if of is not None:
        return f"over({of}, ({_sizes(d)}))"
    if small_shape(d) is not None:
        return f"empty_like(like_{name})"
    return f"empty(({_sizes(d)}), torch.{str(d.dtype.torch)[6:]})"


def _sizes(d: Def) -> str:
    return "".join(f"{size}, " for size in d.shape)


def _work(thread_bytes: Index) -> str:
    """Work memory for all threads."""
    block = f"scratch(threads * ({thread_bytes}))"
    if thread_bytes.const is None or thread_bytes.const > SMALL_SCRATCH_BYTES:
        return block
    return f"small_scratch if threads <= {SMALL_SCRATCH_BYTES // thread_bytes.const} else {block}"
