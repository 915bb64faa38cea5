"""Measures the speed of matrix products by the library and by C kernels, for `runtime/rates`.

Out: for each dtype and shape of `rates.SHAPES` the operations per nanosecond of `torch.bmm` and of
     a kernel, and the bytes per nanosecond of a copy.
The measurement takes about two seconds, most of them for a C compiler. It runs once for a machine.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import torch

from lowtide.codegen.executable import compile_program
from lowtide.errors import LowtideError
from lowtide.ir.dtypes import BY_NAME
from lowtide.runtime import rates
from lowtide.texpr.parser import parse_program

Tensor = torch.Tensor
_LEAST_S: Final = 0.05  # seconds of calls for each measurement, and …
_FEWEST: Final = 6  # … calls of each
# A product by the library and by a kernel; else the machine was busy. Intel's AMX: 7 in bf16.
_MOST_APART: Final = 20.0
_COPIED_BYTES: Final = 32 << 20
_lock = threading.Lock()
_PROGRAM = """\
input x: {dtype}[B, M, K] strides (K*M, K, 1)
input w: {dtype}[B, K, N] strides (N*K, N, 1)
t[b:B, i:M, j:N]: {wide} = sum[k:K](mul({x}, {w}))
y[b:B, i:M, j:N]: {dtype} = {y}
output y
"""


def ensure_measured(dtypes: Iterable[str]) -> None:
    """Measures products of these dtypes where that has not been done on this machine."""
    for dtype in sorted(dtypes):
        if rates.is_measured(dtype):
            continue
        with _lock:
            if rates.is_measured(dtype):
                continue
            known = rates.current()
            # products that are compiled meanwhile are kernels
            rates.use(replace(known, kernels={**known.kernels, f"{dtype} large": 1.0}))
            # A thread of its own has no modes: a dry run's tensors have no memory.
            worker = threading.Thread(target=_keep_measured, args=(dtype, known))
            worker.start()
            worker.join()


def _keep_measured(dtype: str, known: rates.Rates) -> None:
    with contextlib.suppress(LowtideError):  # without a compiler no kernel runs
        found, is_sure = _measured(dtype, known)
        (rates.keep if is_sure else rates.use)(found)


def _measured(dtype: str, known: rates.Rates) -> tuple[rates.Rates, bool]:
    """Return the table with rows for a dtype, and whether the machine had time to measure them.
    Where it had not, a row has equal rates."""
    library, kernels, is_sure = {**known.library}, {**known.kernels}, True
    for name, sizes in rates.SHAPES.items():
        kind = f"{dtype} {name}"
        found = _of_product(dtype, *sizes)
        if max(found) > _MOST_APART * min(found):
            found, is_sure = (max(found), max(found)), False
        library[kind], kernels[kind] = found
    copied, other = (_unseen(_COPIED_BYTES // 4, dtype=torch.float32) for _ in range(2))
    (copy_ns,) = _least_ns(lambda: other.copy_(copied))
    rate = 2.0 * _COPIED_BYTES / copy_ns
    return rates.Rates(library=library, kernels=kernels, bytes_per_ns=rate), is_sure


def _unseen(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return ones in memory that PyTorch's allocator does not know: the call in which this is
    measured holds no more by its profilers than later calls do."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape).fill_(1)


def _of_product(dtype: str, batch: int, rows: int, columns: int, terms: int) -> tuple[float, float]:
    """Return the operations per nanosecond of the library and of a kernel."""
    hints = {"B": batch, "M": rows, "K": terms, "N": columns}
    wide = BY_NAME[dtype].compute
    x, w, y = "x[b, i, k]", "w[b, k, j]", "t[b, i, j]"
    if wide != dtype:
        x, w, y = f"{wide}({x})", f"{wide}({w})", f"{dtype}({y})"
    program = parse_program(_PROGRAM.format(dtype=dtype, wide=wide, x=x, w=w, y=y))
    run = compile_program(program, symbols=list(hints), scalars=[], hints=hints)
    shapes = (batch, rows, terms), (batch, terms, columns), (batch, rows, columns)
    x, w, out = (_unseen(*shape, dtype=BY_NAME[dtype].torch) for shape in shapes)
    operations = 2.0 * batch * rows * columns * terms
    with torch.no_grad():
        library_ns, kernel_ns = _least_ns(
            lambda: torch.bmm(x, w, out=out), lambda: run([x, w], [*hints.values()], [])
        )
    return operations / library_ns, operations / kernel_ns


def _least_ns(*calls: Callable[[], object]) -> list[float]:
    """Return the time of each one's fastest call, made in turns; the first calls are not timed."""
    for call in calls:
        call()
    least = [float("inf")] * len(calls)
    # processor time: other work on the machine changes it less
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    begun, turns = time.perf_counter(), 0
    while turns < _FEWEST or time.perf_counter() - begun < _LEAST_S * len(calls):
        for k, call in enumerate(calls):
            start = clock()
            call()
            least[k] = min(least[k], max(clock() - start, 1))
        turns += 1
    return least
