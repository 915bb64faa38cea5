"""`explain()` says which fact changed when something was compiled anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.execute.differences import signature_facts
from lowtide.specialise.signature import Binding


def scaled(x, n: int = 3):
    return (x * 2).sum(0) + n


def crossed(x, y):
    return x * y + 1


def shrunk(x, b=None):
    y = x.exp()
    if b is not None:
        y = y + b
    return y


def branchy(x):
    return x * 2 if x.shape[1] > 200 else x * 3


def facts_of(c: Any, *args: Any) -> list[str]:
    """Every fact, as the dict has it; the text and the dict must agree."""
    e = c.explain(*args)
    rows = json.loads(json.dumps(e.to_dict()))["compiled_again"]
    found = [fact for row in rows for fact in row["facts"]]
    assert [f for again in e.compiled_again for f in again.facts] == found
    assert all(f": {fact}" in str(e) for fact in found)
    return found


def test_nothing_is_said_of_what_was_there() -> None:
    f = lt.script(scaled)
    assert facts_of(f, torch.rand(50, 3)) == []
    f(torch.rand(51, 3), 7)
    assert facts_of(f, torch.rand(70, 3), 8) == []


CHANGES = {
    "dtype": (
        [torch.rand(50, 40)],
        [torch.rand(50, 40, dtype=torch.float64)],
        ["dtype of `x` was float32, is float64"],
    ),
    "rank": ([torch.rand(50, 40)], [torch.rand(50, 40, 3)], ["rank of `x` was 2, is 3"]),
    "size 1": (
        [torch.rand(50, 40)],
        [torch.rand(1, 40)],
        ["`x.shape[0]` was any size above 32, is 1"],
    ),
    "constant size": (
        [torch.rand(50, 4)],
        [torch.rand(50, 5)],
        ["`x.shape[1]` was 4, is any size above 1"],
    ),
    "layout": (
        [torch.rand(50, 40)],
        [torch.rand(40, 50).T],
        ["layout of `x` was contiguous, is dense, its dims in the order (1, 0)"],
    ),
    "int to float": (
        [torch.rand(50, 40), 2],
        [torch.rand(50, 40), 2.5],
        ["type of `n` was int, is float"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_changed_fact(change: str) -> None:
    before, after, expected = CHANGES[change]
    f = lt.script(scaled)
    f(*before)
    assert facts_of(f, *before) == []
    f(*after)
    assert facts_of(f, *after) == expected
    if change != "constant size":  # at its second value it has become a symbol
        assert facts_of(f, *before) == []


def test_sizes_that_were_equal() -> None:
    f = lt.script(crossed)
    f(torch.rand(50, 60), torch.rand(50, 60))
    assert facts_of(f, torch.rand(70, 1), torch.rand(70, 90)) == [
        "`x.shape[1]` was any size above 32, is 1",
        "`y.shape[1]` was equal to `x.shape[1]`, is any size above 32",
    ]


def test_none_and_tensor() -> None:
    f = lt.script(shrunk)
    f(torch.rand(50))
    f(torch.rand(50), torch.rand(50))
    assert facts_of(f, torch.rand(50), torch.rand(50)) == ["type of `b` was None, is Tensor"]


def test_a_condition_on_sizes() -> None:
    f = lt.script(branchy)
    f(torch.rand(40, 300))
    assert facts_of(f, torch.rand(40, 150)) == ["`x.shape[1] - 201 >= 0` was True, is False"]


def test_the_nearest_earlier_one_counts() -> None:
    f = lt.script(scaled)
    f(torch.rand(50, 40))
    f(torch.rand(50, 40, 3, dtype=torch.float64))
    assert facts_of(f, torch.rand(50, 40, 4, dtype=torch.float64)) == [
        "`x.shape[2]` was 3, is any size above 1"
    ]


def test_requires_grad_is_a_fact() -> None:
    x = torch.rand(50)
    found = [
        signature_facts(Binding([v], {}, False), ["x"], {}, {})
        for v in (x, x.clone().requires_grad_())
    ]
    key = ("whether `x` requires grad", "")
    assert [f[key] for f in found] == ["False", "True"]
    with torch.no_grad():
        again = signature_facts(Binding([x.requires_grad_()], {}, False), ["x"], {}, {})
    assert again[key] == "False"
