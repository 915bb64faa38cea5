"""The sizes of a C function's call, and which of the example's sizes are constants.

x: [1000, 3], sizes={}                     v0 = x.shape[0], from 0 on; x.shape[1] = 3
x: [1000, 3], sizes={"x.shape[0]": 1000}   all constant
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lowtide.c_library.values import Again, Frame
from lowtide.errors import CompileError
from lowtide.texpr.build import symbols
from lowtide.texpr.index import Index

_MOST_NAMES: Final = 4  # of sizes whose small values are tried together


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of the call: its symbol, the dims that have it, the least and the most that are taken,
    and that of the example."""

    symbol: str
    dims: tuple[str, ...]
    least: int
    most: int
    example: int


@dataclass(slots=True, kw_only=True)
class Choice:
    """The user's `sizes=`. `sizes`: by "x.shape[0]" or symbol, an int for a constant, None for an
    argument of the call. `fixed`: dims that a captured graph has fixed. `ranges`: of others, the
    least and the most that it takes. `used`: keys of `sizes`."""

    sizes: Mapping[str, int | None]
    fixed: frozenset[str] = frozenset()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    used: set[str] = field(default_factory=set[str])

    def of(self, symbol: str, shown: str, n: int) -> bool | None:
        """Return whether this size of the example is a constant; None if that is not said. Raises
        CompileError for a constant that the example does not have."""
        for key in (shown, symbol):
            if key in self.sizes:
                self.used.add(key)
                wanted = self.sizes[key]
                if wanted is not None and wanted != n:
                    problem = f"sizes={{{key!r}: {wanted}}}, but {shown} is {n} in the example"
                    raise CompileError(problem, remedy=f"an example with {shown} = {wanted}")
                return wanted is not None
        return True if shown in self.fixed else None


def limit(frame: Frame, sizes: Mapping[str, int], missing: Sequence[Mapping[Index, bool]]) -> None:
    """Raise Again for a size that may not be 0 or 1, since there is no code for that whatever the
    other sizes are. Other calls without code get a status when they run. `missing`: answers to
    questions about sizes (index, whether it is >= 0) that have no code. `sizes`: those of the
    example."""
    rows: list[tuple[set[str], Mapping[Index, bool]]] = []
    for answers in missing:
        names = {n for index in answers for n in symbols(index)}
        frame.gaps += not names.isdisjoint(frame.runtime)
        if names <= frame.least.keys():
            rows.append((names, answers))

    def lacks(name: str, value: int) -> bool:
        near = [(names, answers) for names, answers in rows if name in names]
        others = sorted({n for names, _ in near for n in names if n != name})[:_MOST_NAMES]
        small = [(*range(frame.least[n], 2), sizes[n]) for n in others]
        for values in itertools.product(*small):
            tried = {**sizes, **dict(zip(others, values, strict=True)), name: value}
            if not any(
                all((frame.example(index, tried) >= 0) is holds for index, holds in answers.items())
                for _, answers in near
            ):
                return False
        return True

    needed = {
        n: next((k for k in range(least, 2) if not lacks(n, k)), 2)
        for n, least in frame.least.items()
        if least < 2 and any(n in names for names, _ in rows)
    }
    needed = {n: k for n, k in needed.items() if k > frame.least[n]}
    if needed:
        raise Again(least=needed)
