"""Evaluates sizes: an index polynomial with known symbols.

In: an index without gathered values, {"s0": 1000}. Out: an int, by Python's rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from lowtide.texpr.expr import Program
from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Index, Mod, Size


def evaluate(index: Index, values: Mapping[str, int]) -> int:
    """Return the number that a size polynomial has for these values of its symbols."""
    total = 0
    for monomial, factor in index.terms:
        part = factor
        for atom in monomial:
            part *= _evaluate_atom(atom, values)
        total += part
    return total


def points(axes: Sequence[Axis], hints: Mapping[str, int]) -> int:
    """Return the number of points of these axes at the sizes of the first call."""
    return elements([a.extent for a in axes], hints)


def elements(shape: Sequence[Index], hints: Mapping[str, int]) -> int:
    """Return the number of elements of a value of this shape at the sizes of the first call."""
    return math.prod(likely(size, hints) for size in shape)


def elements_stored(program: Program, roots: Iterable[str], hints: Mapping[str, int]) -> int:
    """Return the elements of all inputs and outputs."""
    inputs = sum(elements(i.shape, hints) for i in program.inputs.values())
    made = (program.defs[n] for n in roots if n in program.defs)
    return inputs + sum(elements(d.shape, hints) for d in made if not d.adds_to)


def likely(size: Index, hints: Mapping[str, int]) -> int:
    """Return a size at the sizes of the first call."""
    return max(evaluate(size, hints), 1)


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
