"""Compiles a region to code that runs without PyTorch, for C libraries (`c_library`).

In: a region, its live-ins in an example. Out: `Leaf`s: its code for each answer to the questions
that its ops ask about sizes.

    y = x[:n]      Leaf n >= 0, rows >= n: y = the first n rows;  Leaf n >= rows: y = x;  …

The region's signature must say of each dim and int whether it is a constant, so that no code is
right for the sizes of the example only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.errors import Loc
from lowtide.execute.host_code import HostCode
from lowtide.execute.region import Region
from lowtide.execute.specialisations import Specialisation, Split
from lowtide.ir.core import Value
from lowtide.specialise.signature import CPU, Binding
from lowtide.texpr.index import Index
from lowtide.texpr.sizes import evaluate

MOST_LEAVES: Final = 8
_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The code for one set of answers. `guards`: (index, whether it is >= 0). `reason`: why `host`
    does not cover the whole region, "" if it does; `stop`: the first op that it does not cover.
    `results`: values that it makes for later ops."""

    guards: Mapping[Index, bool]
    reason: str
    loc: Loc
    stop: int
    results: tuple[Value, ...]
    host: HostCode | None
    binding: Binding


Decide = Callable[[Index, Binding, Mapping[Index, bool]], bool | None]


def leaves(
    region: Region, values: Sequence[Any], decide: Decide
) -> tuple[list[Leaf], list[Leaf | Mapping[Index, bool]]]:
    """Return the leaf of the example, then those of other answers that stop at the same op; and the
    leaves that stop elsewhere, or the answers that have none. `decide`: says whether an index is
    >= 0, given other answers; None if either is possible."""
    with region.lock:
        for _ in range(_ROUNDS):
            binding = region.binding(values, CPU)
            questions: list[dict[Index, bool]] = []
            first = _leaf(region, binding, {}, values, questions, decide)
            if first is not None:
                others, missing = _others(region, first, values, questions, decide)
                return [first, *others], missing
    raise AssertionError(f"the signature of {region.context.name} does not settle")


def _leaf(
    region: Region,
    binding: Binding,
    assumed: Mapping[Index, bool],
    values: Sequence[Any],
    questions: list[dict[Index, bool]],
    decide: Decide,
) -> Leaf | None:
    """Return the leaf for these answers and the example's to further questions, after adding the
    other answers to `questions`; None if the levels have been raised."""
    known = dict(assumed)
    while True:
        made = region.make(binding, known, list(values))
        if made is None:
            return None
        if isinstance(made, Specialisation):
            return _found(made, known, binding)
        node: Specialisation | Split | None = made
        while isinstance(node, Split):
            shown = evaluate(node.index, binding.numbers) >= 0
            holds = decide(node.index, binding, known)
            if holds is None:
                holds = shown
                questions.append({**known, node.index: not holds})
            known[node.index] = holds
            node = (node.yes if shown else node.no) if holds is shown else None


def _found(made: Specialisation, guards: Mapping[Index, bool], binding: Binding) -> Leaf:
    return Leaf(
        guards=dict(guards),
        reason=made.eager or ("" if made.finished else made.reason),
        loc=made.loc,
        stop=made.stop,
        results=tuple(made.results),
        host=None if made.eager else made.host,
        binding=binding,
    )


def _others(
    region: Region,
    first: Leaf,
    values: Sequence[Any],
    questions: list[dict[Index, bool]],
    decide: Decide,
) -> tuple[list[Leaf], list[Leaf | Mapping[Index, bool]]]:
    found: list[Leaf] = []
    missing: list[Leaf | Mapping[Index, bool]] = []
    known = region.signatures
    levels, alike = known.levels, known.alike
    while questions and len(found) < MOST_LEAVES:
        assumed = questions.pop(0)
        leaf = _leaf(region, first.binding, assumed, values, questions, decide)
        if leaf is None:  # it needs constants that the example's leaf does not need
            known.levels, known.alike = levels, alike
            missing.append(assumed)
        elif leaf.host is not None and leaf.stop == first.stop:
            found.append(leaf)
        else:
            missing.append(leaf)
    return found, [*missing, *questions]
