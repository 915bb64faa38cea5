"""Finds the ints that must become constants before a comparison of sizes can be decided.

In: the symbols of the undecided comparison. Out: the ints of the call that would decide it, and
their names in the user's source.

    n = (x.shape[2] - 3) // stride        c0: Python divides, as the sign of stride is not known
    out[i : i + n]                        is i + c0 within out?  it takes stride as a constant

An int that divides sizes stays a symbol until such a comparison, which most programs never make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lowtide.ir.core import Value
from lowtide.specialise.abstract import Abs, Origin
from lowtide.specialise.signature import Spot
from lowtide.texpr.build import Builder, symbols
from lowtide.texpr.index import Index

# Which operand must be known for the result to be an index.
_DIVISOR: Final = {"py.floordiv": 1, "py.mod": 1, "py.range_len": 2}


def divisors_behind(
    names: Iterable[str], derived: Mapping[str, Abs], spots: Mapping[str, Sequence[Spot]]
) -> frozenset[str]:
    """Return the ints of the call that divided these numbers."""
    found: set[str] = set()
    seen: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        origin = derived[name].origin if name in derived else None
        if name in seen or not isinstance(origin, Origin):
            continue
        seen.add(name)
        for k, x in enumerate(origin.operands):
            if not isinstance(x.value, Index):
                continue
            inside = symbols(x.value)
            stack.extend(inside)
            if k == _DIVISOR.get(origin.name):
                found |= {n for n in inside if any(spot.is_int for spot in spots.get(n, ()))}
    return frozenset(found)


def size_names(
    names: Iterable[str],
    live: Sequence[Value],
    derived: Mapping[str, Abs],
    spots: Mapping[str, Sequence[Spot]],
    b: Builder,
) -> str:
    """Return the user's names of these symbols, or the ops that compute them, and the op that needs
    them."""
    found: dict[str, None] = {}
    for name in sorted(names):
        if name in derived:
            origin = derived[name].origin
            op = origin.name.rpartition(".")[2] if isinstance(origin, Origin) else ""
            found[f"what `{op}` gives" if op else "a number of the run"] = None
        for place, dim, _ in spots.get(name, ())[:1]:
            path = "".join(f"[{i!r}]" for i in place.path)
            what = f"{live[place.position].name or '_'}{path}"
            found[what if dim < 0 else f"{what}.shape[{dim}]"] = None
    what = ", ".join(found) or "the loop's index"
    return f"{what} ({b.op} at {b.loc})"
