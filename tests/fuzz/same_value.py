"""Programs that compare a value with a selection, an extreme or a copy of itself.

In: a seed. Out: a program with a property that holds exactly, so that no tolerance is needed:

    s = a @ b.T                                       generate(3)
    own = s.gather(1, t[:, None])
    return (s == own).sum(1)                          check(generate(3)): at least one in each row

A value that a kernel computes twice must have the same bits. Otherwise it is not equal to its own
diagonal, or no element is equal to the largest one.

`python -m tests.fuzz.same_value --programs 500 --seed 0` runs more programs than the tests do.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lowtide as lt
from tests.written import function_of

SIZES = (1, 7, 33, 130, 1000)
TERMS = (1, 3, 8, 16, 33, 64, 200)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16)

# a: [n, k], b: [m, k] → s: [n, m]
VALUES = (
    "a @ b.T",
    "torch.einsum('ik,jk->ij', a, b) * 0.5",
    "F.linear(a, b)",
    "torch.relu(a @ b.T) + a.sum(1, keepdim=True)",
    "((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)",
    "(a[:, None, :] - b[None, :, :]).abs().mean(-1)",
    "(a * a).sum(1, keepdim=True) + (b * b).sum(1) - 2.0 * (a @ b.T)",
    "torch.softmax(a @ b.T, 1)",
    "F.normalize(a, dim=1) @ F.normalize(b, dim=1).T",
    "torch.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(-1) / a.shape[1])",
    "torch.tanh(a @ b.T / 7.0) / 3.0",
    "(a @ b.T) / (1.0 + b.abs().sum(1))",
)

Property = Callable[[Tensor], bool]
ONE: Property = lambda r: bool((r >= 1).all())  # noqa: E731
NONE: Property = lambda r: bool((r == 0).all())  # noqa: E731

# What is computed of s, and what must hold of it. `square`: where n == m only.
CHECKS: tuple[tuple[str, Property], ...] = (
    ("(s == s.amax(1, keepdim=True)).sum(1)", ONE),
    ("(s == s.amin(0)).sum(0)", ONE),
    ("(s >= s.max()).sum()", ONE),
    ("(s < s.amin()).sum()", NONE),
    ("(s - s.amin(1, keepdim=True)).amin(1)", NONE),
    ("(s > s.gather(1, s.argmax(1)[:, None])).sum(1)", NONE),
    ("(s == s.gather(1, t[:, None])).sum(1)", ONE),
    ("(s[:, 0:1] == s).sum(1)", ONE),
    ("(s == s[s.shape[0] - 1]).sum(0)", ONE),
    ("(s[u[:2]][:, None] == s[None]).all(2).sum(1)", ONE),
    ("(s.clone() != s).sum(1) + (s * 1.0 != s).sum(1)", NONE),
    ("(s >= s.topk(1, dim=1).values).sum(1)", ONE),
    ("(s[torch.arange(s.shape[0]), t] != s.gather(1, t[:, None])[:, 0]).sum()", NONE),
    ("(s.max(1).values[:, None] < s).sum(1)", NONE),
    ("(s.sort(1).values[:, -1:] == s).sum(1)", ONE),
)
SQUARE: tuple[tuple[str, Property], ...] = (
    ("(s == s.diagonal()[:, None]).sum(1)", ONE),
    ("(s.diagonal() == s).sum(0)", ONE),
    ("(s - torch.diag(s)[:, None]).abs().amin(1)", NONE),
    ("((s > s.diagonal()[:, None]) | (s < s.diagonal()[:, None])).diagonal()", NONE),
)
# How often a slope of 1 comes back is what the forward pass has counted.
SLOPES = (
    ("torch.relu(s - own + c).sum()", "(s > own).sum(1, keepdim=True)"),
    (
        "(s - own + c).abs().sum()",
        "((s > own) * 1 - (s < own) * 1).sum(1, keepdim=True)",
    ),
    ("torch.clamp(s - own + c, min=0.0).sum()", "(s >= own).sum(1, keepdim=True)"),
    ("torch.where(s < own, c, 0.0 * c).sum()", "(s < own).sum(1, keepdim=True)"),
)
OWN = ("s.gather(1, t[:, None])", "s.amax(1, keepdim=True)", "s[:, 0:1]")

_serial = itertools.count()
_folder = tempfile.TemporaryDirectory(prefix="lowtide-same-value-")


@dataclass(frozen=True, slots=True, kw_only=True)
class SameValue:
    """`source`: a function of a, b, t, u and c; `properties`: of each tensor that it gives."""

    source: str
    properties: tuple[Property, ...]
    sizes: Mapping[str, int]
    dtype: torch.dtype
    has_gradient: bool
    seed: int

    def __str__(self) -> str:
        return f"# {dict(self.sizes)} {self.dtype} seed {self.seed}\n{self.source}"


def generate(seed: int) -> SameValue:
    """The program of a seed."""
    rng = random.Random(seed)
    n, m, k = rng.choice(SIZES), rng.choice(SIZES), rng.choice(TERMS)
    checks = CHECKS
    if rng.random() < 0.4:
        m, checks = n, (*CHECKS, *SQUARE, *SQUARE)
    lines = [f"s = {rng.choice(VALUES)}"]
    has_gradient = rng.random() < 0.3
    if has_gradient:
        loss, count = rng.choice(SLOPES)
        own = "s.diagonal()[:, None]" if n == m and rng.random() < 0.6 else rng.choice(OWN)
        lines += [f"own = {own}", f"return {loss}, {count}"]
        properties: tuple[Property, ...] = (lambda _: True, lambda _: True)
    else:
        chosen = rng.sample(checks, rng.choice((1, 1, 2)))
        lines.append("return " + ", ".join(text for text, _ in chosen))
        properties = tuple(holds for _, holds in chosen)
    body = "".join(f"    {line}\n" for line in lines)
    return SameValue(
        source=f"import torch\nimport torch.nn.functional as F\n\n\n"
        f"def program(a, b, t, u, c):\n{body}",
        properties=properties,
        sizes={"n": n, "m": m, "k": k},
        dtype=torch.float32 if has_gradient else rng.choice(DTYPES),
        has_gradient=has_gradient,
        seed=seed,
    )


def check(program: SameValue, compiler: Callable[[Any], Any] = lt.script) -> str:
    """What does not hold of a compiled program, "" if all does."""
    path = Path(_folder.name) / f"same_value_{next(_serial)}.py"
    compiled = compiler(function_of(program.source, path, "program"))
    a, b, t, u, c = _arguments(program)
    given = compiled(a, b, t, u, c)
    results = given if isinstance(given, tuple) else (given,)
    if program.has_gradient:
        loss, count = results
        loss.backward()
        assert c.grad is not None
        wrong = (c.grad != count).sum().item()
        return f"{wrong} of {c.numel()} rows: slopes are not what was counted" if wrong else ""
    broken = [
        k for k, (r, p) in enumerate(zip(results, program.properties, strict=True)) if not p(r)
    ]
    return f"results {broken} are wrong: {[results[k] for k in broken]}" if broken else ""


def _arguments(program: SameValue) -> tuple[Tensor, ...]:
    n, m, k = (program.sizes[x] for x in "nmk")
    g = torch.Generator().manual_seed(program.seed)
    a, b = (torch.randn(rows, k, generator=g).to(program.dtype) for rows in (n, m))
    t = torch.randint(0, m, (n,), generator=g)
    u = torch.randint(0, n, (n,), generator=g)
    c = torch.zeros(n, 1, dtype=program.dtype, requires_grad=program.has_gradient)
    for x in (a, b):
        x.requires_grad_(program.has_gradient)
    return a, b, t, u, c


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.same_value",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    args = parser.parse_args()
    failed = 0
    for seed in range(args.seed, args.seed + args.programs):
        program = generate(seed)
        try:
            wrong = check(program)
        except Exception as error:  # a program that does not run is a finding, too
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            failed += 1
            print(f"{program}{wrong}\n", flush=True)
    print(f"{failed} of {args.programs} programs failed, from seed {args.seed} on")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
