"""Finds where regions that record gradients end: between equal layers, or where little is alive.

In: a block. Out: positions of ops. A region that ends between two layers is equal to that of the
next layer: both are planned and compiled once. Without layers, a region that has become too large
ends where it stores least, and never at a value of pairs.

    embedding, add, [norm, linear, gelu, linear, add] × 4, norm, linear
                    ^ 2                    ^ 7, 12, 17          ^ 22
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from lowtide.ir.core import Block, Op, Value, free_values
from lowtide.specialise.abstract import Abs, Selection
from lowtide.specialise.region_boundaries import only_prepares
from lowtide.texpr.build import Val
from lowtide.texpr.index import product
from lowtide.texpr.sizes import evaluate

_FEWEST_LAYERS = 3
_LONGEST_LAYER = 400  # ops
_MOST_OPS = 4000  # of a block that is looked at
_LEAST_BYTES = 1 << 20  # alive where a region ends, to look for another place
_PAIR_BYTES = 1 << 23


def layer_starts(block: Block, live_at: Sequence[set[Value]]) -> frozenset[int]:
    """See the module's text. Of all places in a layer where it could begin, it is the one with the
    fewest values in use. `live_at[k]`: values that ops from k on use."""
    places = [k for k, op in enumerate(block.ops[:-1]) if not only_prepares(op)]
    if not 2 * _FEWEST_LAYERS <= len(places) <= _MOST_OPS:
        return frozenset()
    keys = [_key(block.ops[k]) for k in places]
    first, period, count = _longest_repetition(keys)
    if count < _FEWEST_LAYERS * period:
        return frozenset()
    # constants that a layer's first op needs stand before it
    after = [0, *(k + 1 for k in places)]
    made = {v for op in block.ops if not only_prepares(op) for v in op.results}
    live = [len(live_at[k] & made) for k in after]
    second = first + period
    shift = min(range(period), key=lambda s: live[second + s])
    return frozenset(after[first + shift : first + count + 1 : period])


def _key(op: Op) -> Hashable:
    return op.name, str(op.attrs.get("target", "")), len(op.operands), len(op.results)


def _longest_repetition(keys: Sequence[Hashable]) -> tuple[int, int, int]:
    """Return the start, the period and the length of the longest repetition of keys. Of equally
    long ones, it has the shortest period."""
    best = (0, 1, 0)
    for period in range(1, min(len(keys) // 2, _LONGEST_LAYER) + 1):
        run = 0
        for k in range(len(keys) - period):
            run = run + 1 if keys[k] == keys[k + period] else 0
            if run >= period and run + period > best[2]:
                best = (k - run + 1, period, run + period)
    return best


def alive_bytes(
    block: Block, reach: range, env: Mapping[Value, Abs], numbers: Mapping[str, int]
) -> dict[int, int]:
    """Return, for each position in `reach` and its end, how much of what is made in `reach` is read
    from there on. `env`: values so far; `numbers`: of the symbols."""
    last_use: dict[Value, int] = {}
    for k, op in enumerate(block.ops[reach.start :], reach.start):
        last_use.update(dict.fromkeys(free_values([op]), k))
    found = dict.fromkeys(range(reach.start, reach.stop + 1), 0)
    for k in reach:
        for v in block.ops[k].results:
            for at in range(k + 1, min(last_use.get(v, k), reach.stop) + 1):
                found[at] += nbytes(env.get(v), numbers)
    return found


def nbytes(x: Abs | None, numbers: Mapping[str, int]) -> int:
    """Return the bytes of a tensor; 0 of anything else."""
    value = None if x is None else x.value
    value = value.full if isinstance(value, Selection) else value
    if not isinstance(value, Val):
        return 0
    return evaluate(product(value.shape), numbers) * value.dtype.itemsize


def narrowest(alive: Mapping[int, int]) -> int | None:
    """Return the position in the later two thirds where the fewest bytes are alive, None if there
    are nearly as few at the end."""
    *places, end = alive
    later = places[max(len(places) // 3, 1) :]
    best = min(reversed(later), key=lambda k: alive[k], default=end)
    is_much = alive[end] >= _LEAST_BYTES and 4 * alive[best] <= alive[end]
    return best if is_much else None


def are_pairs(stored: int, given: int) -> bool:
    """Return whether values of `stored` bytes, made of `given` bytes, are values of pairs."""
    return stored >= _PAIR_BYTES and stored >= 4 * given
