"""The truth about a program, by float64, and how far float32 may be from it.

In: a program's inputs and statements. Out: for each value the truth, and eager and noisy runs, from
which `difference` decides. A value `got` is right where

    |got - truth| <= 4 * max over eager and noisy runs |run - truth| + 4 steps of |truth|
                     + 1 denormal step

Each statement runs as it stands (eager PyTorch), in float64 (the truth; ints stay ints), and
several times in float64 with noise. The noise imitates rounding: after a statement each element
moves by one rounding step of its dtype, up or down at random. Before a statement that rounds inside
(a sum, a matrix product), each operand moves by n half steps of the dtype that it is computed in,
where n is the longest dim. Together these move a sum by sqrt(n) half steps of its size: the loss of
adding up n terms one by one. A few noisy runs may all be close to the truth by chance, so a value
outside the limit is judged again with many.

Values are exact, and get no noise, while float32 and float64 agree on each bit. Inputs begin so,
and on the grid of small quarters sums and products stay so. (In float64, a value that fits into
float32 counts as exact.) Where a result jumps (a comparison, argmin, floor, a cast to int), the
operands must be exact, or the run is left out, since two answers would be right.

Ints and bools must be equal. An infinity or a NaN must be one in eager or in the truth; where the
largest finite number is within the tolerance, infinity may be either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional

from tests.fuzz.program import Line, Program, Sizes

FACTOR = 4.0
MOST_ELEMENTS = 1 << 22
NOISY_RUNS, MANY_RUNS = 6, 40
_FLOATS = re.compile(r"torch\.(float32|bfloat16|float16|half|float)\b")
_generator = torch.Generator().manual_seed(1)
_signs = torch.randint(0, 2, (1 << 21,), generator=_generator).double() * 2 - 1
_signs *= 0.5 + torch.rand(1 << 21, generator=_generator, dtype=torch.float64)  # seldom cancel


class Blurred(Exception):
    """A statement that jumps has operands that are not exact, or too many: nothing to compare."""


@dataclass(slots=True)
class Expected:
    """Of one run: eager results, the truth and noisy truths, by output; or eager's exception."""

    eager: dict[str, torch.Tensor]
    truth: dict[str, torch.Tensor]
    noisy: list[dict[str, torch.Tensor]]
    exact: set[str]
    error: Exception | None = None


Env = dict[str, Any]


class Judge:
    """Runs the statements of one program at one set of sizes, one by one."""

    def __init__(self, inputs: Env, noisy_runs: int = NOISY_RUNS) -> None:
        self.eager: Env = dict(inputs)
        self.truth: Env = {n: widened(x) for n, x in inputs.items()}
        self.noisy: list[Env] = [dict(self.truth) for _ in range(noisy_runs)]
        self.exact = set(inputs)
        self._offset = 0

    def step(self, line: Line) -> None:
        """One statement; raises what eager raises, or Blurred."""
        for name in line.sharp:
            if not self._usable(name):
                raise Blurred(str(line))
        before = dict(self.eager)
        run(line, self.eager)
        if any(self.eager[t].numel() > MOST_ELEMENTS for t in line.targets):
            raise Blurred(f"{line} is too large to be judged")
        wide = _FLOATS.sub("torch.float64", str(line))
        with _default_double():
            run(line, self.truth, wide)
            exact = all(u in self.exact for u in line.uses) and all(
                self._agrees(t) for t in line.targets
            )
            if exact:
                self.exact.update(line.targets)
                for env in self.noisy:
                    env.update({t: self.truth[t] for t in line.targets})
                return
            for env in self.noisy:
                saved = {u: env[u] for u in line.uses}
                if line.inner:
                    env.update({u: self._inside(env[u], before[u]) for u in line.uses})
                run(line, env, wide.replace("torch.log_softmax(", "_log_softmax("))
                env.update({u: v for u, v in saved.items() if u not in line.targets})
                for t in line.targets:
                    env[t] = self._rounded(env[t], self.eager[t])

    def _usable(self, name: str) -> bool:
        return name in self.exact

    def _agrees(self, name: str) -> bool:
        a, b = self.eager[name], self.truth[name]
        if not b.is_floating_point():
            return torch.equal(a, b)
        if a.dtype is torch.float64:  # the truth is no wider: numbers of few bits are exact
            a = b.float()
        return torch.equal(_plain(widened(a)), _plain(b))

    def _noise(self, x: torch.Tensor, step: float) -> torch.Tensor:
        n = x.numel()
        at = self._offset = (self._offset + 7919) % len(_signs)
        signs = torch.cat([_signs[at : at + n], _signs[:at]])
        if n > len(signs):
            signs = signs.repeat(-(-n // len(signs)))
        return x * (1 + step * signs[:n].reshape(x.shape))

    def _rounded(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return self._noise(x, torch.finfo(like.dtype).eps)

    def _inside(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        eps = torch.finfo(torch.float64 if like.dtype is torch.float64 else torch.float32).eps
        return self._noise(x, eps / 2 * max([2, *x.shape]))


def _log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """With a mass that is rounded n times, wherever most of it comes from one element."""
    below = x - x.amax(dim, keepdim=True)
    mass = below.exp().sum(dim, keepdim=True)
    step = torch.finfo(torch.float32).eps / 2 * x.shape[dim] ** 0.5
    noise = torch.randn(mass.shape, generator=_generator, dtype=mass.dtype)
    return below - (mass * (1 + step * noise)).log()


_SCOPE = {"torch": torch, "F": torch.nn.functional, "_log_softmax": _log_softmax}


def run(line: Line, env: Env, text: str = "") -> None:
    """Executes one statement; its targets must come out as tensors."""
    scope = {**_SCOPE, **env}
    exec(text or str(line), scope)
    env.update({t: scope[t] for t in line.targets})


def _plain(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, 1.5, 1e300, -1e300)


class _default_double:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


def widened(x: torch.Tensor) -> torch.Tensor:
    """The same values in float64."""
    return x.double() if x.is_floating_point() else x


def expected(program: Program, sizes: Sizes, inputs: Env, noisy_runs: int = NOISY_RUNS) -> Expected:
    """What one run may give; raises Blurred."""
    judge = Judge(inputs, noisy_runs)
    error = None
    try:
        for line in program.lines:
            judge.step(line)
    except Blurred:
        raise
    except Exception as raised:
        error = raised
    if error is not None:
        return Expected({}, {}, [], set(), error)

    def pick(env: Env) -> dict[str, torch.Tensor]:
        return {n: env[n] for n in program.outputs}

    return Expected(pick(judge.eager), pick(judge.truth), [pick(e) for e in judge.noisy],
                    judge.exact)  # fmt: skip


def difference(name: str, got: torch.Tensor, want: Expected) -> str:
    """What is wrong with a result, "" if nothing."""
    eager, truth = want.eager[name], want.truth[name]
    if got.dtype is not eager.dtype or got.shape != eager.shape:
        return f"is {got.dtype}{list(got.shape)}, not {eager.dtype}{list(eager.shape)}"
    if not eager.is_floating_point():
        wrong = got != eager
        return _told(wrong, got, eager, truth, None) if bool(wrong.any()) else ""
    info = torch.finfo(eager.dtype)
    g, e = got.double(), eager.double()
    noisy = torch.stack([n[name] for n in want.noisy]) if want.noisy else truth[None]
    away = torch.nan_to_num((noisy - truth).abs(), nan=0.0).amax(0)
    steps = (4 * info.eps * truth.abs()) + info.smallest_normal * info.eps
    away = torch.maximum(away, torch.nan_to_num((e - truth).abs(), nan=0.0, posinf=0.0))
    limit = FACTOR * away + steps
    fine = ((g - truth).abs() <= limit) | (g == truth)
    fine |= g.isnan() & (e.isnan() | truth.isnan() | noisy.isnan().any(0))
    fine |= g.isinf() & ((g == e) | (noisy == g).any(0))
    reach = torch.maximum(truth.abs(), noisy.abs().amax(0)) >= info.max * (1 - 4 * info.eps)
    fine |= g.isinf() & reach & (g.sign() == truth.sign())
    wrong = ~fine
    return _told(wrong, got, eager, truth, limit) if bool(wrong.any()) else ""


def _told(
    wrong: torch.Tensor,
    got: torch.Tensor,
    eager: torch.Tensor,
    truth: torch.Tensor,
    limit: torch.Tensor | None,
) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {list(at)}: {got[at].item()!r}"
    text += f", eager {eager[at].item()!r}, float64 {truth[at].item()!r}"
    return text if limit is None else f"{text}, may be off by {limit[at].item():.3g}"
