"""What lies outside of a function is as it is at the call: globals, closures, objects, classes."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

RATE = 2.0
NAMES = {"a": 1.0, "b": [2, 3]}
STEPS = [1, 2]
MODE = "twice"


def helper(x: Tensor) -> Tensor:
    return x + 1


class Config:
    scale = 1.0
    steps = 2
    kind = "plain"
    bias = None

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale


CONFIG = Config()


def by_helper(x: Tensor) -> Tensor:
    return helper(x)


def by_number(x: Tensor) -> Tensor:
    return x * RATE


def by_item(x: Tensor) -> Tensor:
    return x * NAMES["a"]


def by_list(x: Tensor) -> Tensor:
    for k in STEPS:
        x = x * k
    return x


def by_branch(x: Tensor) -> Tensor:
    return x * 2 if MODE == "twice" else x


def by_attribute(x: Tensor) -> Tensor:
    return x * CONFIG.scale


def by_class(x: Tensor) -> Tensor:
    return x * Config.steps


def by_method(x: Tensor) -> Tensor:
    return CONFIG.scaled(x)


class Holds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return helper(x) * RATE + len(STEPS)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Holds()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if MODE == "twice" else x


def changes() -> list[Callable[[pytest.MonkeyPatch], None]]:
    names = globals()
    other = Config()
    other.scale = 4.0
    return [
        lambda m: m.setitem(names, "helper", lambda x: x + 10),
        lambda m: m.setitem(names, "RATE", 3.0),
        lambda m: m.setitem(names, "RATE", 4.5),
        lambda m: m.setitem(names, "RATE", 7),
        lambda m: m.setitem(NAMES, "a", 5.0),
        lambda m: m.setitem(NAMES, "a", 5),
        lambda m: m.setitem(names, "STEPS", [3]),
        lambda m: STEPS.append(4),
        lambda m: m.setitem(names, "MODE", "once"),
        lambda m: m.setattr(CONFIG, "scale", 6.0, raising=False),
        lambda m: m.setattr(Config, "steps", 9),
        lambda m: m.setitem(names, "CONFIG", other),
    ]


@pytest.mark.parametrize(
    "fn",
    [by_helper, by_number, by_item, by_list, by_branch, by_attribute, by_class, by_method, Outer],
)
def test_the_next_call_sees_it(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEPS", [1, 2])
    plain = fn() if isinstance(fn, type) else fn
    made, x = lt.script(plain), torch.ones(2)
    assert torch.equal(made(x), plain(x))
    for change in changes():
        change(monkeypatch)
        for _ in range(2):
            got, wanted = made(x), plain(x)
            assert torch.equal(got, wanted)
            assert got.dtype == wanted.dtype


class Helped(nn.Module):
    def helper(self, x: Tensor) -> Tensor:
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)


def by_object(x: Tensor, c: Config) -> Tensor:
    return c.scaled(x)


def test_methods_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = Helped(), torch.ones(2)
    made, by = lt.script(m), lt.script(by_object)
    made(x), by(x, Config())
    monkeypatch.setattr(Helped, "helper", lambda self, x: x + 5)
    monkeypatch.setattr(Config, "scaled", lambda self, x: x + 7)
    assert torch.equal(made(x), m(x))
    assert torch.equal(by(x, Config()), x + 7)


ARGS = argparse.Namespace(mode="a", scale=2)
ZERO = 0.0
ROWS: list[Any] = [1.0, 2.0]


def by_arguments(x: Tensor) -> Tensor:
    return x * ARGS.scale if ARGS.mode == "a" else -x


def by_zero(x: Tensor) -> Tensor:
    return x / ZERO


def test_objects_of_pythons_classes_and_signs_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    made, over = lt.script(by_arguments), lt.script(by_zero)
    assert torch.equal(made(x), x * 2)
    monkeypatch.setattr(ARGS, "scale", 3)
    assert torch.equal(made(x), x * 3)
    monkeypatch.setattr(ARGS, "mode", "b")
    assert torch.equal(made(x), -x)
    assert torch.equal(over(x), x / 0.0)
    monkeypatch.setitem(globals(), "ZERO", -0.0)
    assert torch.equal(over(x), x / -0.0)


def by_row(x: Tensor) -> Tensor:
    return x * ROWS[0]


def test_a_tensor_put_into_a_global_list_is_read() -> None:
    made, x = lt.script(by_row), torch.ones(2)
    made(x)
    ROWS[0] = torch.full((2,), 5.0)
    assert torch.equal(made(x), x * 5)
    ROWS[0] = 4.0
    assert torch.equal(made(x), x * 4)


def test_a_closure() -> None:
    k = 3.0

    def inner(x: Tensor) -> Tensor:
        return x * k

    made, x = lt.script(inner), torch.ones(1)
    assert made(x) == 3
    k = 8.0
    assert made(x) == 8


def test_a_name_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lt.script(by_helper)
    made(torch.ones(1))
    monkeypatch.delitem(globals(), "helper")
    with pytest.raises(lt.CompileError, match="'helper' is not defined"):
        made(torch.ones(1))


def test_what_changes_always_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lt.script(by_branch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(20):
            monkeypatch.setitem(globals(), "MODE", str(k))
            made(torch.ones(1))
    told = [str(w.message) for w in caught]
    assert len(told) == 1
    assert "`MODE` changes" in told[0]
    assert caught[0].filename == __file__


def test_a_number_that_changed_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lt.script(by_number)
    for rate in (1.0, 2.0):
        monkeypatch.setitem(globals(), "RATE", rate)
        made(torch.ones(1))
    compiled = made.drivers()
    for rate in (3.0, 4.0):
        monkeypatch.setitem(globals(), "RATE", rate)
        assert made(torch.ones(1)) == rate
    assert made.drivers() == compiled


# ---- objects ------------------------------------------------------------------------------------


def reads_config(x: Tensor, c: Config) -> Tensor:
    for _ in range(c.steps):
        x = x * c.scale
    if c.kind == "plain":
        x = x + 1
    if c.bias is not None:
        x = x + c.bias
    return x


class Derived(Config):
    steps = 3


def test_a_default_of_a_class_is_read_from_the_object() -> None:
    made, x = lt.script(reads_config), torch.ones(2)
    c = Config()
    for name, value in [
        ("scale", 3.0), ("steps", 1), ("kind", "other"), ("bias", 0.5), ("scale", 2),
    ]:  # fmt: skip
        assert torch.equal(made(x, c), reads_config(x, c))
        setattr(c, name, value)
    assert torch.equal(made(x, c), reads_config(x, c))
    assert torch.equal(made(x, Derived()), reads_config(x, Derived()))


def test_an_attribute_of_another_type_than_its_default_is_refused() -> None:
    c = Config()
    c.scale = torch.ones(2)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match=r"`Config.scale` is a Tensor, where the program"):
        lt.script(reads_config)(torch.ones(2), c)
