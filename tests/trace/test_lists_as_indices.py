"""Lists as indices, traced and compiled: PyTorch takes a short list that holds more than numbers
for a tuple of items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")


def pairs(x):
    return x[[[0, 1], [2, 3]]]


def one_list(x):
    return x[[[0, 1]]], x[[0, 1]], x[[(0, 1), (1, 2)]]


def slices(x):
    return x[[slice(0, 2), [1, 2]]], x[[None, 1]], x[[..., 0]]


def tensors(x):
    i = torch.tensor([0, 1])
    return x[[i, i]], x[[i]], x[[0, i]]


def masks(x):
    return x[[True, False, True, False, True]]


def written(x):
    x = x.clone()
    x[[[0, 1], [2, 3]]] = 0.0
    x[[[1, 2], [2, 3]]] += 2.0
    return x


def of_sizes(x):
    n = x.shape[0]
    return x[[0, n - 1]], x[[[0, n - 1], [n - 2, 1]]]


def empty(x):
    return x[[]], x[:, []], x[[[]]], x[[], []], x[range(0)]


def floats(x):
    return x[[1.0, 0.0]], x[[1.7]]


def check(compiled: Callable[..., Any], fn: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)


PROGRAMS = [pairs, one_list, slices, tensors, masks, written, of_sizes, empty, floats]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_in_pytorch(fn: Callable[..., Any]) -> None:
    x = torch.rand(5, 5)
    check(lt.trace(fn, (x,)), fn, x)
    check(lt.compile(fn), fn, x)


def test_a_list_of_ints_that_is_an_argument() -> None:
    """From the second call on PyTorch's capture has symbols for them."""

    def picked(x, at):
        return x[at], x[at, 0], x[:, at], x[[at, [0, 1]]]

    compiled = lt.compile(picked)
    for at in ([0, 2], [1, 3], [2, 3]):
        check(compiled, picked, torch.rand(5, 5), at)


def test_a_list_that_is_empty_at_a_later_call() -> None:
    def picked(x, at):
        return x[at], x[:, at]

    compiled = lt.compile(picked)
    for at in ([0, 2], [], [1]):
        check(compiled, picked, torch.rand(5, 5), at)
