"""Activity analysis: which values carry gradients, and which ops PyTorch must run therefore.

In: a builder, and the definitions that an op has just added. Out: nothing; raises Unsupported with
the reason if the op must end the region. PyTorch then runs it and records its own backward.

    y = x.detach() * x        detach is a value of its own, which passes no gradient on
    z = w[idx]                its gradient is a scatter, which PyTorch runs
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lowtide.ops.gradients import left_to_torch
from lowtide.specialise.abstract import Abs, tensors_in
from lowtide.texpr.autodiff import Differentiation
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.pullback import DETACHED

MOST_RECORDED: Final = 40  # definitions; planning grows faster than they do
MOST_IN_LOOP: Final = 120  # of a loop alone: cut in two, it would run step by step
MOST_IN_ALL: Final = 400  # with those of loops whose steps are planned by themselves


class Full(Unsupported):
    """The region is full: its backward pass is as large as allowed. The op is in the next one."""

    def __init__(self, why: str = "is too much to differentiate in one piece") -> None:
        super().__init__(why)


class Activity:
    """Follows which values carry gradients, where any are recorded."""

    def __init__(
        self, builder: Builder, wanted: Iterable[str], sizes: Mapping[str, int], scale: int = 1
    ) -> None:
        """`sizes`: sizes of the first call."""
        self.builder = builder
        self.sizes = sizes
        wanted = list(wanted)
        self.diff = Differentiation(builder.program.inputs, wanted)
        self.records = builder.records = bool(wanted)
        self.scale = scale
        self._in_steps: dict[str, int] = {}  # definitions of a loop, by its first delay
        self._in_loop: int | None = None  # the most while one is traced
        self._is_beside = False

    @property
    def is_full(self) -> bool:
        """Return whether the region has as many definitions as one backward pass may have."""
        program = self.builder.program
        if not self.records:
            return False
        if self._in_loop is not None:
            return len(program.defs) > self._in_loop
        apart = sum(n for delay, n in self._in_steps.items() if delay in program.delays)
        most = min(MOST_RECORDED * self.scale + apart, MOST_IN_ALL * self.scale)
        return len(program.defs) > most

    @property
    def most_at_once(self) -> float:
        """The number of ops that fit into one backward pass; more are cut."""
        return MOST_RECORDED * self.scale if self.records else math.inf

    @property
    def in_loop(self) -> bool:
        """Return whether a loop is traced that may be lifted, or the first step of one, which is
        peeled."""
        return self._in_loop is not None or self._is_beside

    @contextmanager
    def branch(self, has_loop: bool) -> Generator[None]:
        """While one is traced, which may have a loop in it."""
        before, self._is_beside = self._is_beside, self._is_beside or has_loop
        try:
            yield
        finally:
            self._is_beside = before

    @contextmanager
    def loop(self) -> Generator[None]:
        """While one is traced; raises Full after one that does not fit into the region. One that
        runs step by step is planned by itself, and counts for itself."""
        program = self.builder.program
        before, defs, delays = self._in_loop, len(program.defs), len(program.delays)
        lifts, self.builder.lifts = self.builder.lifts, True
        if before is None and not self.is_full:
            self._in_loop = min(defs + MOST_IN_LOOP, MOST_IN_ALL * self.scale)
        try:
            yield
        finally:
            self._in_loop, self.builder.lifts = before, lifts
        made = list(program.delays)[delays:]
        if made:
            self._in_steps[made[0]] = len(program.defs) - defs
        elif defs and self.is_full:
            raise Full

    def before(self, name: str, operands: Sequence[Abs]) -> None:
        """Raises Unsupported for an op whose gradient is PyTorch's own."""
        if self.records:
            carrying = [any(self._carries(t) for t in tensors_in(x)) for x in operands]
            why = left_to_torch(name, [x.value for x in operands], carrying)
            if why:
                raise Unsupported(why)

    def after(self, name: str, found: Any, first: int) -> Any:
        """Return the result of an op, after recording its definitions from number `first` on.
        Raises Full if one of them reads, at places that the data name, what this region has
        made."""
        if not self.records:
            return found
        if name in DETACHED and isinstance(found, Val):
            source = found
            found = self.builder.tensor(
                source.shape, source.dtype, lambda idx: self.builder.load(source, idx)
            )
        for d in list(self.builder.program.defs.values())[first:]:
            self.diff.add(d)
            # a scatter writes gradients only of the elements that are read
            if self.diff.scatters_terms(d, self.sizes):
                raise Full("reads at places that the data name what the same region has made")
        return found

    def assume(self, value: Val) -> None:
        """Assume that a loop carries this value: see `Differentiation.assume`."""
        if self.records:
            self.diff.assume(value)

    def differentiate_from(self, first: int) -> None:
        """Differentiate the definitions from number `first` on anew. Raises Unsupported."""
        if self.records:
            for y in self.builder.program.delays.values():
                self.diff.assume(Val(y.name, y.shape, y.dtype))
            for d in list(self.builder.program.defs.values())[first:]:
                self.diff.add(d)

    def carries(self, x: Val, since: int) -> bool:
        """Return whether the value carries a gradient. The definitions from number `since` on are
        recorded first."""
        if self.records:
            for d in list(self.builder.program.defs.values())[since:]:
                self.diff.add(d)
        return self.records and self.diff.carries(x.name)

    def _carries(self, x: Abs) -> bool:
        return isinstance(x.value, Val) and self.diff.carries(x.value.name)
