"""A loaded module whose attributes the user changes runs as the Python module would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Optional

import pytest
import torch
from roundtrip import through_file
from torch import Tensor, nn

import lowtide as lt

X = torch.arange(6.0).view(2, 3)
ONES = torch.ones(3)


class OfTheClass(nn.Module):
    cache: Optional[Tensor] = None  # noqa: UP045

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:
            return x
        return x + self.cache


class Declared(nn.Module):
    cache: Optional[Tensor]  # noqa: UP045
    size: Optional[int]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.cache = None
        self.size = 2

    def forward(self, x: Tensor) -> Tensor:
        cache, size = self.cache, self.size
        if cache is not None:
            x = x * cache
        if size is not None:
            x = x[:, :size]
        return x


class InInit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: Tensor | None = None
        self.names: list[str] | None = ["a", "b"]

    def forward(self, x: Tensor) -> Tensor:
        x = x - 1 if self.cache is not None else x + 1
        names = self.names
        return x * len(names) if names is not None else x


class ByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = lt.Attribute(None, Optional[Tensor])  # noqa: UP045

    def forward(self, x: Tensor) -> Tensor:
        return x if self.cache is None else x + self.cache


class OnlyInEval(OfTheClass):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x * 2
        if self.cache is None:
            return x
        return x.matmul(self.cache)


class Layer(nn.Module):
    bias: Tensor | None

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.register_parameter("bias", nn.Parameter(ONES.clone()) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Layers(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(bias), Layer(bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


States = Mapping[str, tuple[Any, ...]]  # attributes by path, and what to set them to
CACHE: States = {"cache": (None, ONES, ONES * 2)}
BIASES: States = {
    f"layers.{k}.bias": (None, nn.Parameter(ONES.clone()), nn.Parameter(ONES * 3)) for k in (0, 1)
}


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (OfTheClass, CACHE),
        (Declared, {**CACHE, "size": (None, 1, 3)}),
        (InInit, {**CACHE, "names": (None, ["a"], [])}),
        (ByAttribute, CACHE),
        (OnlyInEval, {**CACHE, "training": (False, True)}),
        (lambda: Layers(True), BIASES),
        (lambda: Layers(False), BIASES),
    ],
)
def test_what_is_declared_optional_may_change(
    make: Callable[[], nn.Module], states: States
) -> None:
    loaded = through_file(lt.script(make()))
    twice = through_file(loaded)
    inside = lt.script(nn.Sequential(through_file(loaded)))
    plain = make()
    vars(plain).update({k: v.value for k, v in vars(plain).items() if isinstance(v, lt.Attribute)})
    for state in itertools.product(*states.values()):
        for path, value in zip(states, state, strict=True):
            owner, _, name = path.rpartition(".")
            for module in (plain, loaded, twice, inside[0]):
                setattr(module.get_submodule(owner), name, value)
        for module in (loaded, twice, inside):
            torch.testing.assert_close(module(X), plain(X), msg=str(state))


class Undeclared(nn.Module):
    def __init__(self, cache: Tensor | None) -> None:
        super().__init__()
        self.cache = cache
        self.mode = "a"

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.cache is not None else x.clone()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(None, ONES, "was None, is not None"), (ONES, None, "was not None, is None")],
)
def test_what_is_not_declared_is_named(before: Any, after: Any, told: str) -> None:
    loaded = through_file(lt.script(Undeclared(before)))
    loaded(X)
    loaded.cache = after
    with pytest.raises(lt.CompileError, match=rf"`self.cache` {told}") as error:
        loaded(X)
    assert "`cache: Optional[…]`" in str(error.value)


def test_the_nearest_of_several_programs_is_told() -> None:
    c = lt.script(Undeclared(None))
    c(X)
    c.cache = ONES
    c(X)
    loaded = through_file(c)
    assert torch.equal(loaded(X), X + 1)
    loaded.cache = None
    assert torch.equal(loaded(X), X)


def test_what_is_gone_is_told() -> None:
    loaded = through_file(lt.script(Declared()))
    del loaded.size
    with pytest.raises(lt.CompileError, match=r"`self\.size` is missing"):
        loaded(X)


class OfParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = torch.sigmoid
        self.parts = nn.ModuleList([nn.Tanh()])

    @lt.export
    def shifted(self, x: Tensor) -> Tensor:
        return x + 1 if hasattr(self, "extra") else x

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return self.act(self.shifted(x))


def test_what_no_file_holds_is_not_to_be_replaced() -> None:
    makes = [lambda: through_file(lt.script(OfParts()))]
    makes.append(lambda: through_file(makes[0]()))
    for make in makes:
        loaded = make()
        torch.testing.assert_close(loaded(X), OfParts()(X))
        loaded.act = torch.relu
        with pytest.raises(lt.CompileError, match=r"whether `self\.act` exists was False"):
            loaded(X)
        loaded = make()
        loaded.extra = 1
        with pytest.raises(lt.CompileError, match=r"whether `self\.extra` exists was False"):
            loaded(X)
        loaded = make()
        loaded.parts.add_module("1", nn.ReLU())
        with pytest.raises(lt.CompileError, match=r"`self\.parts\.1` was not there"):
            loaded(X)
        with pytest.raises(AttributeError, match=r"shifted\(\) of a traced or loaded module"):
            loaded.shifted = torch.relu
        loaded.forward = torch.relu
        assert torch.equal(loaded(X), X)
