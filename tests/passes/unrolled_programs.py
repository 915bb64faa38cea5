"""Random Python loops, and the IR of what they have done: seeded, small, without compiling.

In: a seed. Out: the source of a function f(x, w, v), x: [T, B, D], w: [D, D], v: [B, D], of one
loop, or two that are nested; and its recorded ops as they were before any pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.frontend.trace import trace as tracing
from lowtide.ir.core import Function

T, B, D = 7, 2, 3
_UPDATES: Sequence[str] = (
    "{a} = torch.tanh({b} @ w)",
    "{a} = {a} + {b} * 0.5",
    "{a} = {a} * x[t].sigmoid()",
    "{a} = {a} - x[T - 1 - t] @ w",
    "{a} = {a} + x[:, 0][t]",
    "{a} = {a} * x[t, :, 0:1] + x[0:1][0]",
    "{a}, {b} = {b}, torch.sin({a})",
    "{a} = torch.maximum({b}, x[-1 - t])",
    "{a} = {a} + x.unbind(0)[t]",
    "{a} = {a} + rows[t] * rows[0]",
    "{a} = torch.cat([{a}, x[t]], 1)[:, 1 : D + 1]",
    "{a} = {a} + torch.rand_like({b})",
    "{a} = {a} * (t + 1)",
    "p, q, r = (torch.cat([{a}, {b}, x[t]], 1) @ w3).chunk(3, 1); {a} = p * q; {b} = r.tanh()",
    "if t == 0: {a} = {a}.exp()",
    "if t > 1: {a} = {a} + {b}",
    "if t == T - 1: {b} = {b}.cos()",
    "table[t] = {a}",
    "table += 1",
    "s = {a}.sum(); {b} = {b} + s",
    "last = {a} * 2",
    "if t == 4: kept = {a}",
    "{a} = {a} + before; before = x[t]",
)
_COLLECTS: Sequence[str] = (
    "outs.append({a})",
    "outs.append({a}[None][0])",
    "if t > 0: outs.append({b})",
    "others.insert(0, {b})",
    "others.append({a} + {b})",
    "if t % 2: others.append({a})",
)
_RESULTS: Sequence[str] = ("a", "b", "last", "kept", "table", "before")
_BEGIN: Sequence[str] = (
    "a, b, c = v, v * 2, x[0]",
    "before = v",
    "last = kept = v",
    "outs, others = [], []",
    "table = torch.zeros(T, B, D)",
    "rows = list(x)",
    "w3 = torch.cat([w, w, w], 0).repeat(1, 3)",
)
_END: Sequence[str] = (
    "a = a + torch.stack(outs).sum() if outs else a",
    "b = b + torch.stack(others, 1).mean() if others else b",
)


def source(seed: int) -> str:
    """The text of a function."""
    pick = random.Random(seed)
    lines: list[str] = []
    for _ in range(pick.randint(2, 4)):
        a, b = pick.sample(("a", "b", "c"), 2)
        lines += pick.choice(_UPDATES).format(a=a, b=b).split("; ")
    for _ in range(pick.randint(0, 2)):
        a, b = pick.sample(("a", "b", "c"), 2)
        lines.append(pick.choice(_COLLECTS).format(a=a, b=b))
    steps = pick.choice(("range(T)", "range(T)", "range(1, T)", "reversed(range(T))"))
    results = ", ".join(pick.sample(_RESULTS, 2))
    if pick.random() < 0.25:
        lines = [f"for t in {steps}:", *(f"    {line}" for line in lines)]
        lines += ["a = a * 0.5"]
        steps = "range(4)".replace("4", str(pick.randint(2, 6)))
        lines = [f"for k in {steps}:", *(f"    {line}" for line in lines)]
    else:
        lines = [f"for t in {steps}:", *(f"    {line}" for line in lines)]
    every = (*_BEGIN, *lines, *_END, f"return {results}, c")
    return "\n".join(["def f(x, w, v):", *(f"    {line}" for line in every)])


def function(text: str) -> Callable[..., Any]:
    """The function of a source."""
    scope: dict[str, Any] = {"torch": torch, "T": T, "B": B, "D": D}
    exec(compile(text, "<unrolled>", "exec"), scope)
    return scope["f"]


def recorded(made: Callable[..., Any]) -> Function:
    """Its ops, as `lt.trace` hands them to the first pass."""
    seen: list[Function] = []

    def keep(fn: Function, unrolled: bool) -> Function:
        seen.append(fn)
        return fn

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(tracing, "simplified", keep)
        given = tuple(torch.rand(*s) for s in ((T, B, D), (D, D), (B, D)))
        lt.trace(made, given, check_trace=False)
    return seen[0]
