"""Compares gradients of random programs with eager PyTorch, both in float64.

In: a `Program`. Out: "" or what is wrong. A gradient is right where

    |got - eager| <= 1e-7 * the largest + 1000 * max over noisy runs |noisy - eager|

A noisy run is eager PyTorch with a little noise after each statement. Where the gradient jumps with
the noise (at a tie, a kink or a rounding), nothing is compared.

In float64 and in the program's own dtypes, memory next to everything that kernels access is
guarded. In the own dtypes a second backward pass must give the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import lowtide as lt
from lowtide.diagnostics import faults, stats
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, bits, python_function, threads, with_less
from tests.fuzz.judge import run
from tests.fuzz.program import Program, Sizes
from tests.run.guarded import Guard, guarded_calls

NOISE, NOISY_RUNS, FACTOR = 1e-11, 3, 1000.0
_FLOATS = re.compile(r"torch\.(float32|bfloat16|float16|half|float)\b")
Gradients = list[torch.Tensor | None]


def in_double(program: Program) -> Program:
    """The same program, every float in it float64."""
    floats = ("f32", "bf16", "f16")
    return replace(
        program,
        lines=tuple(replace(x, text=_FLOATS.sub("torch.float64", x.text)) for x in program.lines),
        inputs=tuple(replace(i, dtype="f64") if i.dtype in floats else i for i in program.inputs),
    )


def check(program: Program, tally: Tally | None = None) -> str:
    """Runs a program at its sizes, forward and backward."""
    tally = tally or Tally()
    guard = Guard.AFTER if program.seed % 3 else Guard.BEFORE
    for p, judged in ((in_double(program), _run), (program, _run_twice)):
        try:
            compiled = lt.script(python_function(p))
        except CompileError as error:
            tally.refused[str(error).splitlines()[0][:100]] += 1
            return ""
        with faults.strict(), guarded_calls(guard):
            for k, sizes in enumerate(p.runs):
                with threads(1 + k % 2):
                    wrong = judged(p, compiled, sizes, tally)
                if wrong:
                    return f"run {k} at {dict(sizes)}: {wrong}"
    return ""


def _run(program: Program, compiled: Any, sizes: Sizes, tally: Tally) -> str:
    tally.runs += 1
    plain = program.arguments(sizes)
    try:
        want = _eager(program, plain, 0.0, 0)
        noisy = [_eager(program, plain, NOISE, 1 + k) for k in range(NOISY_RUNS)]
    except Exception:  # eager's own, and there is nothing to compare
        tally.rejected += 1
        return ""
    inputs = _leaves(plain)
    before = stats.cache_stats()
    out = dict(zip(program.outputs, compiled(*inputs.values()), strict=True))
    got = _backward(out, inputs)
    since = stats.cache_stats() - before
    tally.compiled += not since.calls_eager and not since.regions_eager
    for k, name in enumerate(inputs):
        wrong = _difference(got[k], want[k], [n[k] for n in noisy])
        if wrong:
            return f"gradient of {name}: {wrong}"
    return ""


def _run_twice(program: Program, compiled: Any, sizes: Sizes, tally: Tally) -> str:
    del tally
    inputs = _leaves(program.arguments(sizes))
    try:
        found = [_backward_of(program, compiled, inputs) for _ in range(2)]
    except CompileError:
        raise
    except Exception:  # eager's own
        return ""
    for name, a, b in zip(inputs, *found, strict=True):
        if (a is None) != (b is None) or (a is not None and b is not None and bits(a) != bits(b)):
            return f"gradient of {name}: a second run gives other bits"
    return ""


def _backward_of(program: Program, compiled: Any, inputs: dict[str, torch.Tensor]) -> Gradients:
    out = compiled(*inputs.values())
    return _backward(dict(zip(program.outputs, out, strict=True)), inputs)


def _leaves(plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: x.detach().requires_grad_(x.is_floating_point()) for n, x in plain.items()}


def _eager(program: Program, plain: dict[str, torch.Tensor], noise: float, seed: int) -> Gradients:
    inputs = _leaves(plain)
    env: dict[str, Any] = dict(inputs)
    generator = torch.Generator().manual_seed(seed)
    for line in program.lines:
        run(line, env)
        for t in line.targets:
            if noise and env[t].is_floating_point():
                random = torch.randn(env[t].shape, generator=generator, dtype=torch.float64)
                env[t] = env[t] * (1 + noise * random).to(env[t].dtype)
    return _backward({n: env[n] for n in program.outputs}, inputs)


def _backward(out: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> Gradients:
    """Gradients of all inputs, None for those without, for seeded cotangents."""
    generator = torch.Generator().manual_seed(5)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for o in out.values():
        g = torch.randn(o.shape, generator=generator, dtype=torch.float64)
        if o.requires_grad:
            pairs.append((o, g.to(o.dtype)))
    wanted = [x for x in inputs.values() if x.requires_grad]
    if not pairs or not wanted:
        return [None for _ in inputs]
    found = iter(
        torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    )
    return [next(found) if x.requires_grad else None for x in inputs.values()]


def _difference(got: torch.Tensor | None, want: torch.Tensor | None, noisy: Gradients) -> str:
    if got is None or want is None:
        return "" if got is want else f"{'none' if got is None else 'one'}, eager differs"
    if got.shape != want.shape or got.dtype is not want.dtype:
        return f"is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    away = torch.zeros_like(want)
    for n in noisy:
        if n is not None:
            away = torch.maximum(away, torch.nan_to_num((n - want).abs(), nan=torch.inf))
    finite = want[want.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    limit = 1e-7 * scale + FACTOR * away + 1e-12
    wrong = ~((got - want).abs() <= limit) & want.isfinite() & limit.isfinite()
    if not bool(wrong.any()):
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {list(at)}"
    return f"{text}: {got[at].item()!r}, eager {want[at].item()!r}, limit {limit[at].item():.3g}"


def failure(program: Program) -> str:
    """As `check`, with exceptions as text."""
    try:
        return check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(program: Program, fails: Callable[[Program], str] = failure) -> Program:
    """Drops runs, outputs and statements as long as it fails."""
    changed = True
    while changed:
        changed = False
        for candidate in with_less(program):
            if fails(candidate):
                program, changed = candidate, True
                break
    return program
