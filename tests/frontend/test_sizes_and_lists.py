"""A torch.Size is a tuple: Python's own errors, and a warning where it is compared with a list."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import lowtide as lt

X = torch.ones(2, 3)


def append(x):
    s = x.size()
    s.append(1)
    return s


def pop(x):
    return x.shape.pop()


def assign(x):
    s = x.size()
    s[0] = 7
    return s


def add(x):
    return [1] + x.size()  # noqa: RUF005


@pytest.mark.parametrize("fn", [append, pop, assign, add])
def test_errors_are_pythons(fn: Any) -> None:
    with pytest.raises((AttributeError, TypeError)) as expected:
        fn(X)
    with pytest.raises(type(expected.value)) as caught:
        lt.script(fn)(X)
    assert str(caught.value) == str(expected.value)


def equal(x):
    return x.size() == [2, 3]


def unequal(x):
    s = x.shape
    return [2, 3] != s  # noqa: SIM300


def fine(x):
    return x.size() == (2, 3), list(x.shape) == [2, 3], [x.size(0)] == [2], x.size(0) == 2


@pytest.mark.parametrize("fn", [equal, unequal])
def test_a_size_compared_with_a_list(fn: Any) -> None:
    with pytest.warns(UserWarning, match="a torch.Size is a tuple") as caught:
        assert lt.script(fn)(X) == fn(X)
    assert caught[0].filename == __file__


def test_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lt.script(fine)(X) == (True, True, True, True)
