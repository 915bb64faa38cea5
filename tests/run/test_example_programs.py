"""The example programs compiled = eager, by float64: sizes, strides, dtypes, threads, NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.tools.programs import PROGRAMS, Program

F32 = torch.float32
# how far rounding may go, in units of the dtype's last bit at the result's largest magnitude:
# eager's own distance from float64 (times 4), and what a sum of some hundred rounded terms loses
UNITS = 32


def flat(out: object) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [t for part in out for t in flat(part)]  # type: ignore[union-attr]


def double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def check(program: Program, args: tuple[Tensor, ...], compiled: Any = None) -> None:
    got = flat((compiled or lt.script(program.function))(*args))
    eager = flat(program.function(*args))
    truth = flat(program.function(*map(double, args)))
    for g, e, t in zip(got, eager, truth, strict=True):
        assert g.dtype is e.dtype
        assert g.shape == e.shape
        if not g.is_floating_point():
            assert (g != e).sum() <= 1e-4 * g.numel()  # a comparison may fall on the other side
            continue
        assert torch.equal(g.isnan(), e.isnan())
        finite = t.isfinite() & g.isfinite()
        if not finite.any():
            continue
        scale = t[finite].abs().max().item()
        allowed = 4 * (double(e) - t)[finite].abs().max().item()
        allowed += UNITS * torch.finfo(g.dtype).eps * scale
        assert (double(g) - t)[finite].abs().max().item() <= allowed


def sizes_of(program: Program) -> Iterator[tuple[int, ...]]:
    yield tuple(min(n, 150 + 7 * k) for k, n in enumerate(program.quick))
    yield tuple(min(n, 33 + k) for k, n in enumerate(program.quick))
    yield tuple(min(n, 5 + k) for k, n in enumerate(program.quick))
    yield tuple(1 for _ in program.quick)


CASES = [(p, s) for p in PROGRAMS.values() for s in sizes_of(p)]


@pytest.mark.parametrize(("program", "sizes"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_like_eager(program: Program, sizes: tuple[int, ...]) -> None:
    check(program, program.make_inputs(*sizes))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda p: p.name)
def test_strided_and_offset(program: Program) -> None:
    sizes = next(sizes_of(program))

    def spread(t: Tensor) -> Tensor:
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)
        wide[..., 1::2] = t
        return wide[..., 1::2]

    check(program, tuple(spread(t) for t in program.make_inputs(*sizes)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["chamfer", "nearest_centre", "attention", "boxes", "gaussian"])
def test_special_numbers(name: str, value: float) -> None:
    program = PROGRAMS[name]
    args = tuple(t.clone() for t in program.make_inputs(*next(sizes_of(program))))
    args[0].view(-1)[::97] = value
    got, eager = flat(lt.script(program.function)(*args)), flat(program.function(*args))
    for g, e in zip(got, eager, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda p: p.name)
def test_threads_and_twice(program: Program) -> None:
    args = program.make_inputs(*next(sizes_of(program)))
    compiled = lt.script(program.function)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            check(program, args, compiled)
            first, second = flat(compiled(*args)), flat(compiled(*args))
            if program.name != "matmul":  # there, measuring picks one of two ways
                assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["boxes", "chamfer", "gaussian", "attention", "layer_norm"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    args = program.make_inputs(*(min(n, 40) for n in program.quick))
    args = tuple(t.to(dtype) if t.is_floating_point() else t for t in args)
    got = flat(lt.script(program.function)(*args))
    truth = flat(program.function(*map(double, args)))
    for g, t in zip(got, truth, strict=True):
        assert g.dtype is dtype
        eps = torch.finfo(dtype).eps
        largest = t.abs().max().item()
        torch.testing.assert_close(g.double(), t, rtol=64 * eps, atol=64 * eps * largest)
