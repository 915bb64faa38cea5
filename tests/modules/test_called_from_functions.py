"""Modules that a scripted function calls: globals, closure variables and arguments are what they
are at the call."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4), 1
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), x

    def encode(self, x: Tensor) -> Tensor:
        return (x * 3 if self.training else self.fc(x)) * self.scale + self.shift


def loaded(module: nn.Module) -> Any:
    file = io.BytesIO()
    lt.save(lt.script(module), file)
    file.seek(0)
    return lt.load(file)


def traced(module: nn.Module) -> Any:
    return lt.trace(module, (X,))


OUTSIDE: Any = None


def of_a_global(_: Any, x: Tensor):
    return OUTSIDE(x) + 1


def of_an_argument(module: Any, x: Tensor):
    return module(x) + 1


@pytest.mark.parametrize("make", [lambda m: m, lt.script, traced, loaded])
@pytest.mark.parametrize("way", ["global", "closure", "argument"])
def test_called(make: Callable[[nn.Module], Any], way: str, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    module = make(nn.Linear(4, 4))
    monkeypatch.setitem(globals(), "OUTSIDE", module)

    def of_a_closure(_: Any, x: Tensor):
        return module(x) + 1

    fn = {"global": of_a_global, "closure": of_a_closure, "argument": of_an_argument}[way]
    scripted = lt.script(fn)
    given = module if way == "argument" else 0
    for _ in range(2):
        found, wanted = (
            torch.autograd.grad(f(given, X).square().sum(), module.weight) for f in (scripted, fn)
        )
        torch.testing.assert_close(found, wanted)
        with torch.no_grad():
            module.weight.add_(1)


def encoded(x: Tensor):
    return OUTSIDE.encode(x)


def encoded_by(module: Any, x: Tensor):
    return module.encode(x)


def test_methods_see_what_has_changed(monkeypatch: Any) -> None:
    module = Part()
    monkeypatch.setitem(globals(), "OUTSIDE", module)
    by_global, by_argument = lt.script(encoded), lt.script(encoded_by)

    def agree() -> None:
        torch.testing.assert_close(by_global(X), module.encode(X))
        torch.testing.assert_close(by_argument(module, X), module.encode(X))

    agree()
    module.eval()
    agree()
    module.scale, module.shift = 2, torch.zeros(4)
    agree()
    module.fc.weight = nn.Parameter(torch.zeros(4, 4))
    agree()
    module.fc = nn.Linear(4, 4)
    agree()
    module.fc.register_forward_hook(lambda _m, _i, found: found * 2)
    agree()


def test_what_is_no_tensor(monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "OUTSIDE", Part())

    def fn(x: Tensor):
        return OUTSIDE(x)

    torch.testing.assert_close(lt.script(fn)(X), fn(X))


class _WithOtherWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor):
        scaled = {name: p * 2 for name, p in self.layer.named_parameters()}
        called = torch.func.functional_call(self.layer, scaled, (x,))
        return called + 1, self.__class__.__name__


def test_functional_call_in_a_forward() -> None:
    model, x = _WithOtherWeights(), torch.ones(2, 3)
    compiled = lt.script(model)
    expected, found = model(x), compiled(x)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]
    grads = [torch.autograd.grad(y[0].sum(), [*model.parameters()]) for y in (found, expected)]
    torch.testing.assert_close(*grads)
