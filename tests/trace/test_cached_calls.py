"""Functions of `functools.lru_cache` in a trace: what they gave for a number is not a size's."""

from __future__ import annotations

import functools
import warnings

import torch
from agree import agree
from torch import Tensor

import lowtide as lt

R = torch.rand


@functools.lru_cache(maxsize=64)
def _doubled(shape: tuple[int, ...], times: int = 2) -> tuple[int, ...]:
    return (shape[0] * times, *shape[1:])


class _Plans:
    @staticmethod
    @functools.lru_cache
    def halves(n: int) -> tuple[int, int]:
        return n // 2, n - n // 2

    @functools.lru_cache  # noqa: B019
    def third(self, n: int) -> int:
        return n // 3


def test_what_an_eager_call_left_in_the_cache_is_not_taken() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.repeat(2, 1).view(
            _doubled(
                tuple(x.shape),
            )
        )

    fn(R(3, 2))
    agree(lt.trace(fn, R(3, 2)), fn, (R(5, 2),), (R(4, 7),))


def test_two_sizes_that_are_equal_in_the_trace_stay_two() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = x.repeat(2, 1).view(_doubled((x.shape[0], x.shape[1])))
        b = y.repeat(2, 1).view(_doubled((y.shape[0], y.shape[1])))
        return a, b

    agree(lt.trace(fn, (R(3, 4), R(3, 4))), fn, (R(5, 2), R(4, 6)))


def test_cached_methods() -> None:
    plans = _Plans()

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = _Plans.halves(x.shape[0])
        return x[: plans.third(x.shape[0])], x.new_zeros(first) + x.new_ones(second).sum()

    fn(R(9))
    agree(lt.trace(fn, R(9)), fn, (R(15),), (R(8),))


def test_in_a_table_a_size_is_its_number() -> None:
    table = {3: 2.0, 4: 5.0}

    def fn(x: Tensor) -> Tensor:
        n = x.shape[0]
        assert len({n, x.shape[1]}) == 1
        return x * table[n] * table.get(n, 0.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.TracerWarning)
        agree(lt.trace(fn, R(3, 3)), fn, (R(3, 3),))


def test_the_cache_gives_numbers_after_the_trace() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.new_zeros(_doubled((x.shape[0],)))

    lt.trace(fn, R(6))
    assert _doubled((6,)) == (12,)
    assert type(_doubled((6,))[0]) is int
