"""What an index polynomial is made of: axes, sizes, and what does not simplify further.

See `index`, which makes them and does arithmetic with them; it gives out equal divisions,
remainders and clamps as one object.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.texpr.index import Index

_serial = itertools.count()


class Atom:
    """What a polynomial is made of. Atoms are compared by identity; `key` orders them stably."""

    __slots__ = ("__weakref__", "key")
    key: tuple[int, str, int]


class Size(Atom):
    """A size known only at run time; `low` is the least value it can have, None if unknown."""

    __slots__ = ("low", "name")

    def __init__(self, name: str, low: int | None = 0) -> None:
        self.name = name
        self.low = low
        self.key = (0, name, next(_serial))

    def __repr__(self) -> str:
        return self.name


class Axis(Atom):
    """A loop variable that runs over [0, extent)."""

    __slots__ = ("extent", "name")

    def __init__(self, name: str, extent: Index) -> None:
        self.name = name
        self.extent = extent
        self.key = (1, name, next(_serial))

    def __repr__(self) -> str:
        return self.name


class FloorDiv(Atom):
    """`num // den`, rounded down, where nothing simpler is known; `den` is positive."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: Index) -> None:
        self.num = num
        self.den = den
        self.key = (2, "", next(_serial))

    def __repr__(self) -> str:
        return f"(({self.num}) // ({self.den}))"


class Mod(Atom):
    """`num % den`, in [0, den)."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: Index) -> None:
        self.num = num
        self.den = den
        self.key = (3, "", next(_serial))

    def __repr__(self) -> str:
        return f"(({self.num}) % ({self.den}))"


class Clamp(Atom):
    """`num` held to [0, extent): what makes a border index or a data-dependent one safe to load."""

    __slots__ = ("extent", "num")

    def __init__(self, num: Index, extent: Index) -> None:
        self.num = num
        self.extent = extent
        self.key = (4, "", next(_serial))

    def __repr__(self) -> str:
        return f"clamp({self.num}, {self.extent})"


class Gather(Atom):
    """An index that is data: the value of an i64 expression."""

    __slots__ = ("expr",)

    def __init__(self, expr: Any) -> None:
        self.expr = expr  # texpr.expr.Expr; typed Any, since expressions are made of indices too
        self.key = (5, "", next(_serial))

    def __repr__(self) -> str:
        return f"[{self.expr}]"
