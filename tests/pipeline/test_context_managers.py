"""`with` over objects whose `__enter__` and `__exit__` have source: inlined, in Python's order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.deploy.roundtrip import through_file


class Scope:
    def __init__(self, k: float, log: list[str]) -> None:
        self.k = k
        self.depth = 0
        self.log = log

    def __enter__(self) -> Scope:
        self.depth += 1
        self.log.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.depth -= 1
        self.log.append("out" if kind is None else "error")


class Names:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self):
        return self.log

    def __exit__(self, *error):
        self.log.append(f"{len(error)} and {len(self.log)}")
        return


class Fails(Scope):
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.log.append("fails")
        raise KeyError("at the end")


def plainly(x: Tensor, log: list[str]):
    s = Scope(2.0, log)
    with s as t:
        s.k = s.k + 1
        x = x * t.k + t.depth
    return x * s.k + s.depth, len(s.log)


def raising(x: Tensor, log: list[str]):
    with Scope(1.0, log) as a, Scope(2.0, log):
        x = x * a.k
        if x.numel() > 2:
            raise ValueError("many")
    return x


def in_a_loop(x: Tensor, log: list[str]):
    for i in range(4):
        with Scope(1.0, log):
            if i == 2:
                return x * i
            x = x + 1
    return x


def another_object(x: Tensor, log: list[str]):
    with Names(log) as names:
        names.append("body")
    return x + len(names)


def failing(x: Tensor, log: list[str]):
    with Fails(1.0, log):
        x = x + 1
    return x * 2


def nested(x: Tensor, log: list[str]):
    with Scope(1.0, log) as a:
        with torch.no_grad(), a:
            depth = a.depth
        x = x * depth
    return x + a.depth


PROGRAMS = [plainly, raising, in_a_loop, another_object, failing, nested]


def outcome(f: Any, x: Tensor) -> Any:
    log = ["begin"]
    try:
        result = f(x.clone(), log)
    except (ValueError, KeyError) as error:
        result = repr(error)
    return result, log


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(program: Any, n: int) -> None:
    x = torch.rand(n)
    expected = outcome(program, x)
    compiled = lt.script(program)
    for f in (compiled, through_file(compiled)):
        got = outcome(f, x)
        assert repr(got) == repr(expected)


def manager_given(s: Scope, x: Tensor):
    with s as t:
        x = x * t.depth
    return x * t.k


def test_the_callers_object_is_the_one_that_changes() -> None:
    s = Scope(1.0, [])
    x = torch.rand(3)
    torch.testing.assert_close(lt.script(manager_given)(s, x), x)
    assert (s.depth, s.log) == (0, ["in", "out"])


def test_explain_enters_nothing() -> None:
    s = Scope(1.0, [])
    before = copy.deepcopy(vars(s))
    e = lt.script(manager_given).explain(s, torch.rand(3))
    assert vars(s) == before
    assert "attr.set" in str(e)
    assert "mul" in str(lt.script(plainly).explain(torch.rand(3), []))


class Oddly:
    """What `__exit__` does is outside the language: Python calls it."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Oddly:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.calls += 1
        finally:
            pass


def odd(x: Tensor, manager: Oddly):
    with manager:
        x = x + 1
    return x * 1


def test_what_does_not_compile_is_left_to_python() -> None:
    manager = Oddly()
    f = lt.script(odd)
    torch.testing.assert_close(f(torch.zeros(2), manager), torch.ones(2))
    assert manager.calls == 1
    with pytest.raises(lt.CompileError, match="with"):
        through_file(f)
