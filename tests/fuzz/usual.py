"""Random programs like those that people write: models, pairs, writes in place, numbers at ends.

    generate(17)     a `Sketch`, always the same one

A program is drawn from one of the four grammars `models`, `pairs`, `writes` and `ends`; now and
then a statement comes from another one.
"""

from __future__ import annotations

import random

from tests.fuzz import ends, models, pairs, writes
from tests.fuzz.drawing import Drawing, Dropped
from tests.fuzz.sketch import Sketch

_KINDS = {"models": models, "pairs": pairs, "writes": writes, "ends": ends}
_FIRST = {
    "B": (1, 2, 3, 5, 7),
    "T": (1, 2, 3, 7, 9),
    "N": (1, 5, 9, 17, 34, 40),
    "M": (2, 7, 33, 35),
}
_LATER = {"B": (4, 6, 11), "T": (4, 5, 10), "N": (8, 19, 37), "M": (3, 12, 36)}


def generate(seed: int) -> Sketch:
    """The program of a seed."""
    r = random.Random(seed)
    kind = r.choices(list(_KINDS), [5, 2.5, 3, 3])[0]
    sizes = tuple({n: r.choice(s) for n, s in several.items()} for several in (_FIRST, _LATER))
    for attempt in range(20):
        d = Drawing(seed + 1_000_003 * attempt, kind, (sizes[0], sizes[1]))
        try:
            _KINDS[kind].begin(d)
        except Dropped:
            continue
        n = d.one_of([2, 3, 4, 5, 6, 8])
        for _ in range(n):
            grammar = _KINDS[kind].GRAMMAR
            if d.chance(0.08):
                grammar = _KINDS[d.one_of(["pairs", "writes", "writes", "ends"])].GRAMMAR
            d.statements(grammar, 1)
        if d.nodes:
            return d.sketch(seed)
    raise AssertionError(f"seed {seed} draws no program")
