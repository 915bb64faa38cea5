"""Containers of the user's own classes: attributes, methods, `__getattr__`."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.linspace(-1, 1, 8)


class Strict(dict[str, Any]):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Own(dict[str, Any]):
    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__ = self


class Tagged(list[float]):
    tag = 2.0

    def total(self) -> float:
        return sum(self) * self.tag


class Given:
    """What it lacks raises KeyError, `hasattr` included."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_values"] = values

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_values"][name]


class Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor):
        return x * self.config.scale


class Deep(Model):
    def forward(self, x: Tensor):
        config = self.config
        if config.inner.on and "inner" in config:
            x = x * config.inner["scale"] + len(config)
        return x


class OfList(Model):
    def forward(self, x: Tensor):
        return x * self.config.tag + self.config[0] + self.config.total()


def agree(fn: Any, compiled: Any) -> None:
    torch.testing.assert_close(compiled(X), fn(X))


@pytest.mark.parametrize("make", [Strict, Own, Given, SimpleNamespace, argparse.Namespace])
def test_attributes_are_read_at_each_call(make: Any) -> None:
    model = Model(make(scale=2.0))
    scripted = lt.script(model)
    agree(model, scripted)
    held = model.config._values if make is Given else vars(model.config)
    (model.config if make is Strict else held)["scale"] = 5.0
    agree(model, scripted)


@pytest.mark.parametrize("make", [Strict, Own])
def test_one_in_another(make: Any) -> None:
    model = Deep(make(inner=make(on=True, scale=3.0)))
    scripted = lt.script(model)
    agree(model, scripted)
    model.config.inner.scale = 4.0
    agree(model, scripted)
    model.config.inner.on = False
    agree(model, scripted)


def test_a_list_with_more_to_it() -> None:
    model = OfList(Tagged([1.0, 2.0]))
    scripted = lt.script(model)
    agree(model, scripted)
    model.config.tag = 7.0
    agree(model, scripted)


CONFIG = Strict(scale=2.0, inner=Strict(k=3.0))


def of_a_global(x: Tensor):
    return x * CONFIG.scale + CONFIG["inner"].k


def test_global() -> None:
    scripted = lt.script(of_a_global)
    agree(of_a_global, scripted)
    CONFIG.scale = 3.0
    agree(of_a_global, scripted)
    CONFIG.inner.k = 4.0
    agree(of_a_global, scripted)
    before = lt.cache_stats()
    scripted(X)
    assert (lt.cache_stats() - before).traces == 0


def test_of_an_argument_they_are_refused() -> None:
    def fn(config, x):
        return x * config.scale

    with pytest.raises(lt.CompileError, match="no attribute 'scale'"):
        lt.script(fn)(Strict(scale=2.0), X)
