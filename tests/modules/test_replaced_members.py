"""Methods and classes of modules that are replaced between calls, and elements that are added."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Part(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 3

    def method(self, x: Tensor) -> Tensor:
        return x + 5


class OtherPart(Part):
    def forward(self, x: Tensor) -> Tensor:
        return x + 30

    def method(self, x: Tensor) -> Tensor:
        return x + 50


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.clip = Part(), nn.Hardtanh(-9, 9)

    def helper(self, x: Tensor) -> Tensor:
        return x + 1

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x + 1

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.helper(x) + self.static(x) + self.of_class(x)
        return self.clip(self.part(x) + self.part.method(x)) + isinstance(self.part, OtherPart)


class Derived(Whole):
    pass


def far(x: Tensor) -> Tensor:
    return x + 7


def far_method(self: object, x: Tensor) -> Tensor:
    return x + 7


of_class = cast("object", classmethod(far_method))


def changes(m: Any, patch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    def put(holder: object, name: str, value: object) -> Callable[[], None]:
        return lambda: patch.setattr(holder, name, value)

    return [
        put(m, "helper", far),
        put(m, "helper", types.MethodType(far_method, m)),
        put(m.part, "method", far),
        put(m.part, "forward", far),
        put(m.part, "forward", types.MethodType(far_method, m.part)),
        put(m.clip, "forward", far),
        put(m.part, "__class__", OtherPart),
        put(m.clip, "__class__", nn.Tanhshrink),
        put(Derived, "helper", far_method),
        put(Whole, "static", staticmethod(far)),
        put(Whole, "of_class", of_class),
        put(Part, "forward", far_method),
        put(m, "forward", far),
        put(m, "__class__", Part),
    ]


def test_each_replaced_member_is_seen() -> None:
    x = torch.ones(2)
    with pytest.MonkeyPatch.context() as patch:
        count = len(changes(Derived(), patch))
    for k in range(count):
        m = Derived()
        made = lt.script(m)
        assert torch.equal(made(x), m(x))
        with pytest.MonkeyPatch.context() as patch:
            changes(m, patch)[k]()
            assert torch.equal(made(x), m(x)), k
        assert torch.equal(made(x), m(x)), k


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.ones(2))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
        self.layers = nn.ModuleDict({"a": nn.Hardtanh(-9, 9)})


class Rows(Holds):
    def forward(self, x: Tensor) -> Tensor:
        for row in self.rows:
            x = x + row
        return x * len(self.rows) + self.rows[-1]


class Named(Holds):
    def forward(self, x: Tensor) -> Tensor:
        for name, row in self.named.items():
            x = x + row * (2 if name == "b" else 3)
        return x + ("b" in self.named)


class Layers(Holds):
    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.layers.items():
            x = layer(x) * (2 if name == "b" else 3)
        return x


class Children(Holds):
    def forward(self, x: Tensor) -> Tensor:
        for name, _ in self.layers.named_children():
            x = x * (2 if name == "b" else 3)
        return x


class Tensors(Holds):
    def forward(self, x: Tensor) -> Tensor:
        for p in self.parameters():
            x = x + p
        for name, b in self.named_buffers():
            x = x + b * len(name)
        return x


@pytest.mark.parametrize("kind", [Rows, Named, Layers, Children, Tensors])
def test_elements_that_come_and_go(kind: type[Holds]) -> None:
    m, x = kind(), torch.ones(2)
    made = lt.script(m)
    with torch.no_grad():
        assert torch.equal(made(x), m(x))
        m.rows.append(nn.Parameter(torch.full((2,), 2.0)))
        assert torch.equal(made(x), m(x))
        m.named["b"] = nn.Parameter(torch.full((2,), 3.0))
        assert torch.equal(made(x), m(x))
        m.layers["b"] = m.layers.pop("a")
        assert torch.equal(made(x), m(x))
        m.register_buffer("late", torch.ones(2))
        assert torch.equal(made(x), m(x))
        m.register_parameter("last", nn.Parameter(torch.ones(2)))
        assert torch.equal(made(x), m(x))
        del m.named["a"]
        assert torch.equal(made(x), m(x))


class Exports(nn.Module):
    @lt.export
    def helper(self, x: Tensor) -> Tensor:
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)


def test_a_method_is_replaced_in_the_compiled_module() -> None:
    made, x = lt.script(Exports()), torch.ones(2)
    assert torch.equal(made(x), x + 1)
    made.helper = torch.neg
    assert torch.equal(made.helper(x), -x)
    assert torch.equal(made(x), -x)
    made.forward = torch.exp
    assert torch.equal(made(x), x.exp())
