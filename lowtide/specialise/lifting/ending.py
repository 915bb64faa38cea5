"""Lifts loops that data may end before the last step, such as by `break`.

In: a loop with a bounded number of steps, and its condition for the next step. Out: one more
carried value, `alive`; in steps where it is false, the other carried values stay as they are.

    for t in range(n):                 alive' = alive[t-1] from True
        h = f(h, x[t])                 h[t]     = f(h', x[t]) if alive' else h'
        if h.max() < 1: break    ->    alive[t] = alive' and not max(h[t]) < 1

The Program has the same meaning whether idle steps run or not: `Delay.ends` allows the generated
code to leave them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from lowtide.ir import dtypes
from lowtide.specialise import varying
from lowtide.specialise.abstract import Abs
from lowtide.specialise.lifting.match import NotLifted
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.expr import Expr

WHY: Final = "the data may end it at any step"
LEFT: Final = "it ends where the data or the index say so"


def begun(b: Builder, is_alone: bool, going: Abs) -> Ending:
    """Return the Ending of a loop that goes on while `going` is true. `is_alone`: it is the
    outermost lifted loop, runs step by step, and skips no steps (`Steps.count` is None).

    Raises NotLifted otherwise; with gradients, which would store and run all steps back; and on a
    GPU, where the host does not read data between steps."""
    if not is_alone or b.records or b.device.type != "cpu" or varying.truth(going) is None:
        raise NotLifted(LEFT)
    return Ending(b)


class Ending:
    """A loop that may end early. `held`: the carried values after a step, by the names of those
    before it. `alive`: the name of the condition, which is the last of them."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.held: dict[str, Val] = {}
        self.alive = ""

    def going(self, going: Abs) -> Abs:
        """Return the condition as a bool tensor."""
        truth = varying.truth(going)
        if truth is None:
            raise NotLifted(LEFT)
        return Abs(self.b.tensor((), dtypes.boolean, lambda _: truth))

    def hold(self, carried: Sequence[tuple[Abs, Abs]]) -> None:
        """Make carried values stay as they are once the loop has ended. `carried`: pairs of a value
        before and after a step; the condition is last."""
        b, flag = self.b, carried[-1][0].value
        assert isinstance(flag, Val)
        alive, self.alive = b.load(flag, ()), flag.name
        for x, y in carried:
            before, value = x.value, y.value
            assert isinstance(before, Val)
            assert isinstance(value, Val)
            self.held[before.name] = self._chosen(alive, value, before)

    def _chosen(self, alive: Expr, value: Val, before: Val) -> Val:
        if before.name == self.alive:
            both = self.b.apply("and", alive, self.b.load(value, ()))
            return self.b.tensor((), dtypes.boolean, lambda _: both)
        return self.b.tensor(
            before.shape,
            before.dtype,
            lambda idx: self.b.select(alive, self.b.load(value, idx), self.b.load(before, idx)),
        )

    def tie(self, carried: Iterable[str], made: Iterable[str]) -> None:
        """Record that carried values stay, and values in `made` are unused, after the loop's end:
        generated code may then skip the idle steps."""
        delays = self.b.program.delays
        ends = tuple(n for n in carried if n in delays)
        delays[self.alive] = dataclasses.replace(delays[self.alive], ends=(*ends, *sorted(made)))
