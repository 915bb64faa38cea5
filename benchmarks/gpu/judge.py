"""Is a result as near to float64 as it must be?

In: a tensor in float64, eager's and the one in question, of equal inputs. Out: a `Verdict`. It is
right where, at each element,

    |got - truth| <= 4 * (eager's largest error in that tensor) + 4 ULP of |truth|

Integers and bools equal eager's. NaN and infinities stand where float64 has them, or where eager
has them, too (overflow of halves).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One tensor of a result. `error`, `eager_error`: largest absolute ones; `scale`: the largest
    of the truth; `wrong`: how many elements; `note`: what is wrong, "" where nothing is."""

    name: str
    error: float
    eager_error: float
    scale: float
    wrong: int
    note: str = ""


def judge(name: str, truth: Tensor, eager: Tensor, got: Tensor, ulp: float) -> Verdict:
    """`truth` in float64; `ulp`: the relative spacing of the numbers of the dtype in question."""
    for what in ("shape", "dtype"):
        if getattr(got, what) != getattr(eager, what):
            return _unlike(name, f"{what} {getattr(got, what)}, eager's is {getattr(eager, what)}")
    if not eager.is_floating_point():
        return _judge_integers(name, eager, got)
    gap, own = _gap(got, truth), _gap(eager, truth)
    eager_error = _largest(own[torch.isfinite(own)])
    size = truth.abs().nan_to_num(0.0, 0.0, 0.0)
    bad = ~(gap <= 4 * eager_error + 4 * ulp * size)
    # Where eager overflows, or is NaN, the same is right as well.
    bad &= ~((got == eager) | (got.isnan() & eager.isnan()))
    wrong = int(bad.sum())
    return Verdict(
        name=name,
        error=_largest(gap[~gap.isnan()]) if not bool(gap.isnan().any()) else float("nan"),
        eager_error=eager_error,
        scale=_largest(size),
        wrong=wrong,
        note=f"{wrong} of {got.numel()} elements are wrong" if wrong else "",
    )


def _judge_integers(name: str, eager: Tensor, got: Tensor) -> Verdict:
    wrong = int((got != eager).sum())
    return Verdict(
        name=name,
        error=_largest((got.double() - eager.double()).abs()),
        eager_error=0.0,
        scale=_largest(eager.double().abs()),
        wrong=wrong,
        note=f"{wrong} of {got.numel()} elements differ from eager's" if wrong else "",
    )


def _gap(x: Tensor, truth: Tensor) -> Tensor:
    """Distances; 0 where both are the same infinity, or NaN."""
    x = x.double()
    same = (x == truth) | (x.isnan() & truth.isnan())
    return (x - truth).abs().masked_fill_(same, 0.0)


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _unlike(name: str, note: str) -> Verdict:
    nan = float("nan")
    return Verdict(name=name, error=nan, eager_error=nan, scale=nan, wrong=1, note=note)
