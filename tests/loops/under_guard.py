"""Runs loops and windows whose tensors and work memory end, and begin, at forbidden pages.

python -m tests.loops.under_guard windows FIRST COUNT | lifted | kept | branches | scans | empties

What touches memory that is not its own kills this process; the last line says which program it was.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import lowtide as lt
from lowtide.diagnostics import faults
from tests.loops import (
    branching,
    empties,
    growing_slices,
    test_lifted,
    test_not_lifted,
    test_scans,
    windows,
)
from tests.quickly import compile_quickly
from tests.run.guarded import Guard, guarded, guarded_memory

Run = tuple[Callable[..., Any], list[Any]]


def of_windows(first: int, count: int) -> Iterator[Run]:
    """Four programs for each of some sizes."""
    for seed in range(first, first + count):
        for n, c, o, k, s, d, p, height, width in windows.cases(seed, 1):
            x = torch.randn(n, c, height, width)
            if seed % 5 == 4:
                x = torch.randn(n, c, width, height).transpose(2, 3)
            w = torch.randn(o, c, k, k)
            if seed % 7 == 6:
                x, w = x.double(), w.double()
            for fn in random.Random(seed).sample(windows.PROGRAMS, 4):
                yield fn, [x, w, k, s, d, p]


def of_rows(
    programs: list[Callable[..., Any]],
    sizes: Sequence[tuple[int, int]] = ((33, 5), (50, 40), (2, 17)),
) -> Iterator[Run]:
    """Programs of one matrix."""
    for fn in programs:
        for n, m in sizes:
            yield fn, [torch.rand(n, m)]


def of_empties() -> Iterator[Run]:
    """Slices of no rows and of some."""
    for fn in empties.PROGRAMS:
        for rows, n in ((0, 0), (40, 12), (0, 20), (12, 0)):
            yield fn, [torch.rand(50, 40), torch.rand(rows, 40), n]


def of_scans() -> Iterator[Run]:
    """A recurrent layer."""
    for n in (1, 33):
        w, u, b = torch.randn(40, 160) * 0.1, torch.randn(40, 160) * 0.1, torch.randn(160)
        yield test_scans.lstm, [torch.randn(n, 6, 40), w, u, b]


def runs(kind: str, numbers: list[int]) -> Iterator[Run]:
    """The programs of one kind."""
    if kind == "windows":
        return of_windows(*numbers)
    if kind == "scans":
        return of_scans()
    if kind == "empties":
        return of_empties()
    if kind == "branches":
        programs = [*branching.BY_NUMBER, *branching.BY_DATA, *growing_slices.PROGRAMS]
        return of_rows(programs, [(37, 2)])
    return of_rows({"lifted": test_lifted, "kept": test_not_lifted}[kind].PROGRAMS)


def check(fn: Callable[..., Any], args: list[Any]) -> None:
    """Like PyTorch, on both sides, by one thread and by two."""
    plain = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    want = fn(*plain)
    with faults.strict(), guarded_memory() as memory:
        compiled = lt.script(fn)
        for guard in Guard:
            memory.guard = guard
            for threads in (1, 2):
                torch.set_num_threads(threads)
                given = [guarded(a, guard) if isinstance(a, torch.Tensor) else a for a in args]
                got = compiled(*given)
                memory.check()
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def main() -> None:
    """Prints each program before it runs."""
    faulthandler.enable()
    compile_quickly()  # as the tests of the same programs do: their kernels are in the cache
    kind, *numbers = sys.argv[1:]
    for fn, args in runs(kind, list(map(int, numbers))):
        shown = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
        print(fn.__name__, *shown, flush=True)
        torch.manual_seed(0)
        check(fn, args)


if __name__ == "__main__":
    main()
