"""Compares random programs with loops, results and gradients, and makes failing ones small.

In: a `LoopProgram`. Out: "" or what is wrong. `exact` is the program in float64; a result or a
gradient `got` is right where

    |got - exact| <= 1e-8 * the largest                                    in float64
    |got - exact| <= 20 * max |eager32 - exact| + 1e-5 * the largest       in float32

An element beyond this limit is right, too, where it is at most 4 times as far off as eager runs
with other roundings (`rounding`): a loop may multiply the rounding of its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import lowtide as lt
from lowtide.diagnostics import faults, stats
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, python_function, threads
from tests.fuzz.loops import LoopProgram, Node, Sizes
from tests.fuzz.rounding import Rounding
from tests.run.guarded import Guard, guarded_calls

NOISY_RUNS = 16
Named = dict[str, torch.Tensor | None]


def check(program: LoopProgram, tally: Tally | None = None) -> str:
    """Runs a program at its sizes, forward and backward, in float64 and then in float32."""
    tally = tally or Tally()
    eager = python_function(program)
    try:
        compiled = lt.script(eager)
    except CompileError as error:
        tally.refused[str(error).splitlines()[0][:100]] += 1
        return ""
    guard = Guard.AFTER if program.seed % 2 else Guard.BEFORE
    with faults.strict(), guarded_calls(guard):
        for k, sizes in enumerate(program.runs):
            with threads(1 + k % 2):
                dtype = torch.float32 if k else torch.float64
                wrong = _run(program, (eager, compiled), sizes, dtype, tally)
            if wrong:
                return f"run {k} at {dict(sizes)}: {wrong}"
    return ""


def _run(
    program: LoopProgram, both: tuple[Any, Any], sizes: Sizes, dtype: torch.dtype, tally: Tally
) -> str:
    tally.runs += 1
    eager, compiled = both
    try:
        exact = found(program, eager, sizes, torch.float64)
        rounded = found(program, eager, sizes, dtype)
    except Exception:  # eager's own, and there is nothing to compare
        tally.rejected += 1
        return ""
    before = stats.cache_stats()
    got = found(program, compiled, sizes, dtype)
    for name, want in exact.items():
        wrong = difference(got[name], want, rounded[name])
        if wrong and want is not None:
            away = _furthest(program, eager, sizes, dtype, name, want)
            wrong = difference(got[name], want, rounded[name], away)
        if wrong:
            return f"{name} in {dtype}: {wrong}"
    since = stats.cache_stats() - before
    tally.compiled += not since.calls_eager and not since.regions_eager
    return ""


def _furthest(
    program: LoopProgram, f: Callable[..., Any], sizes: Sizes, dtype: torch.dtype, name: str,
    want: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """How far each element is off in eager runs with other roundings."""
    away = torch.zeros_like(want)
    for seed in range(NOISY_RUNS):
        with Rounding(seed):
            noisy = found(program, f, sizes, dtype)[name]
        if noisy is not None and noisy.shape == want.shape:
            away = torch.maximum(away, (noisy.to(want.dtype) - want).abs())
    return away


def found(program: LoopProgram, f: Callable[..., Any], sizes: Sizes, dtype: torch.dtype) -> Named:
    """Results and the gradients of all inputs, for seeded cotangents."""
    given = program.arguments(sizes, dtype)
    leaves = {n: x.requires_grad_() for n, x in given.items() if x.is_floating_point()}
    kept = {n: x.detach().clone() for n, x in given.items()}
    out: dict[str, Any] = dict(zip(program.outputs, f(*given.values()), strict=True))
    generator = torch.Generator().manual_seed(5)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for y in out.values():
        if isinstance(y, torch.Tensor):
            g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
            pairs += [(y, g.to(y.dtype))] * y.requires_grad
    gradients: tuple[torch.Tensor | None, ...] = tuple(None for _ in leaves)
    if pairs:
        ys, gs = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(ys, list(leaves.values()), gs, allow_unused=True)
    for name, x in given.items():
        assert torch.equal(x.detach(), kept[name]), f"the input {name} was changed"
    named: Named = {n: _as_tensor(y) for n, y in out.items()}
    return named | {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True)}


def _as_tensor(y: torch.Tensor | float) -> torch.Tensor:
    """A result; a number as a vector of one, for a tensor of no dims is something else."""
    return y.detach() if isinstance(y, torch.Tensor) else torch.tensor([y], dtype=torch.float64)


def difference(
    got: torch.Tensor | None,
    want: torch.Tensor | None,
    rounded: torch.Tensor | None,
    away: torch.Tensor | float = 0.0,
) -> str:
    """What is wrong with `got`, beside the exact and eager's own result; None is zero. `away`: how
    far elements are off by rounding alone."""
    if got is None or want is None:
        one = got if want is None else want
        return "" if one is None or not one.any() else f"{'none' if got is None else 'one'} given"
    if got.shape != want.shape:
        return f"is {list(got.shape)}, not {list(want.shape)}"
    finite = want[want.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    limit = 1e-8 * scale + 1e-12
    if got.dtype is not want.dtype:
        known = rounded is not None and bool(rounded.isfinite().all())
        theirs = float((rounded - want).abs().max()) if known and want.numel() else torch.inf
        limit = 20 * theirs + 1e-5 * scale
    off = (got.to(want.dtype) - want).abs()
    wrong = ~((off <= limit) | (off <= 4 * away)) & want.isfinite()
    if limit == torch.inf:  # eager's own float32 says nothing
        return ""
    if not bool(wrong.any()):
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {list(at)}"
    return f"{text}: {got[at].item()!r}, exact {want[at].item()!r}, limit {limit:.3g}"


def failure(program: LoopProgram) -> str:
    """As `check`, with exceptions as text."""
    try:
        return check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(program: LoopProgram, fails: Callable[[LoopProgram], str] = failure) -> LoopProgram:
    """Drops runs, outputs and statements as long as it fails, and eager does not."""
    changed = True
    while changed:
        changed = False
        for candidate in _with_less(program):
            if _valid(candidate) and fails(candidate):
                program, changed = candidate, True
                break
    return program


def _valid(program: LoopProgram) -> bool:
    try:
        f = python_function(program)
        for sizes in program.runs:
            found(program, f, sizes, torch.float64)
    except Exception:
        return False
    return True


def _with_less(program: LoopProgram) -> Iterator[LoopProgram]:
    for k in range(len(program.runs) if len(program.runs) > 1 else 0):
        yield replace(program, runs=program.runs[:k] + program.runs[k + 1 :])
    for k in range(len(program.outputs) if len(program.outputs) > 1 else 0):
        yield replace(program, outputs=program.outputs[:k] + program.outputs[k + 1 :])
    for body in without_one(program.body):
        yield replace(program, body=body)


def without_one(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    for k, node in enumerate(nodes):
        before, after = nodes[:k], nodes[k + 1 :]
        yield before + after
        for inside in without_one(node.inside):
            yield (*before, replace(node, inside=inside), *after) if inside else before + after
