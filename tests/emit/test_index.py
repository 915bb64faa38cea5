"""Index arithmetic: what simplifies, and that it is what Python computes, at every place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from lowtide.texpr.index import Axis, Index, as_index, axis, the_axis
from lowtide.texpr.index_ranges import floordiv, mod, substitute

Rule = Callable[[Index, Index], Index]


def rejoined(i: Index, _: Index) -> Index:
    return 4 * floordiv(i, 4) + mod(i, 4)


def rejoined_in_a_product(i: Index, j: Index) -> Index:
    return mod(i, 4) * 6 * j + floordiv(i, 4) * 24 * j - 6 * (i * j - i)


def of_a_sum(i: Index, j: Index) -> Index:
    return 5 * floordiv(i + 2 * j, 5) + mod(i + 2 * j, 5)


@pytest.mark.parametrize(
    ("rule", "plain"),
    [
        (rejoined, lambda i, j: i),
        (rejoined_in_a_product, lambda i, j: 6 * i),
        (of_a_sum, lambda i, j: i + 2 * j),
    ],
)
def test_halves_of_a_whole_are_one(rule: Rule, plain: Rule) -> None:
    i, j = axis("i", 16), axis("j", 8)
    assert rule(i, j) is plain(i, j)


def test_what_is_no_whole_stays() -> None:
    i = axis("i", 16)
    for index in (2 * floordiv(i, 4) + mod(i, 4), 4 * floordiv(i, 4) + mod(i, 8)):
        assert the_axis(index) is None


def test_a_line_of_a_block_is_not_divided() -> None:
    i, j = axis("i", 9), axis("j", 64)
    assert mod(64 * i + j, 192) is 64 * mod(i, 3) + j
    assert floordiv(mod(64 * i + j, 192), 64) is mod(i, 3)


def drawn(rng: random.Random, axes: list[Axis], depth: int) -> tuple[Index, Callable[..., int]]:
    """A random index, and the same on Python's ints."""
    if depth == 0:
        k = rng.randrange(len(axes))
        return as_index(axes[k]), lambda *at: at[k]
    a, of_a = drawn(rng, axes, depth - 1)
    b, of_b = drawn(rng, axes, depth - 1)
    n = rng.choice([2, 3, 4, 6, 8])
    match rng.randrange(5):
        case 0:
            return a + b, lambda *at: of_a(*at) + of_b(*at)
        case 1:
            return a - n * b, lambda *at: of_a(*at) - n * of_b(*at)
        case 2:
            return floordiv(a, n) * n + mod(a, n) + b, lambda *at: of_a(*at) + of_b(*at)
        case 3:
            return floordiv(a, n), lambda *at: of_a(*at) // n
        case _:
            return mod(a, n) + n * b, lambda *at: of_a(*at) % n + n * of_b(*at)


@pytest.mark.parametrize("seed", range(60))
def test_as_python_computes(seed: int) -> None:
    rng = random.Random(seed)
    extents = [rng.choice([1, 3, 4, 8]) for _ in range(3)]
    axes = [Axis(f"a{k}", as_index(n)) for k, n in enumerate(extents)]
    index, plain = drawn(rng, axes, 4)
    for at in itertools.product(*map(range, extents)):
        found = substitute(index, dict(zip(axes, map(as_index, at), strict=True)))
        assert found.const == plain(*at)
