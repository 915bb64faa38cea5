"""Sizes as numbers: what a polynomial is, once its symbols are known.

In: an index without gathered values, {"s0": 1000}. Out: an int, by Python's own rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Index, Mod, Size


def evaluate(index: Index, values: Mapping[str, int]) -> int:
    """The number that a size polynomial has for these values of its symbols."""
    total = 0
    for monomial, factor in index.terms:
        part = factor
        for atom in monomial:
            part *= _evaluate_atom(atom, values)
        total += part
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Size | Axis):
        return values[atom.name]
    if isinstance(atom, FloorDiv):
        return evaluate(atom.num, values) // evaluate(atom.den, values)
    if isinstance(atom, Mod):
        return evaluate(atom.num, values) % evaluate(atom.den, values)
    if isinstance(atom, Clamp):
        return min(max(evaluate(atom.num, values), 0), evaluate(atom.extent, values) - 1)
    raise TypeError(f"{atom!r} has no value before the run")
