"""Special methods of modules and classes: brackets with slices, `len`, `in` and `for`; `x.data`."""

from __future__ import annotations

import copy
from typing import Any, Dict, List  # noqa: UP035

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.arange(12.0).view(4, 3)


class Vocabulary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words: List[str] = ["a", "bcd"]  # noqa: UP006
        self.numbers: Dict[str, int] = {w: i for i, w in enumerate(self.words)}  # noqa: UP006
        self.asked = 0

    def __getitem__(self, word: str) -> int:
        self.asked += 1
        return self.numbers[word]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.numbers

    def __iter__(self):
        return iter(self.words)

    def forward(self, word: str):
        found = self[word], len(self), word in self, "zz" not in self
        return found, [w + "!" for w in self], self.asked


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Vocabulary()

    def forward(self, word: str):
        total = 0
        for i, w in enumerate(self.inner):
            total += i * len(w)
        return self.inner[word], len(self.inner), total, list(zip(self.inner, range(3)))  # noqa: B905


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)])

    def __iter__(self):
        return iter(self.layers)

    def __getitem__(self, index: int):
        return self.layers[index]


class ThroughLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stack = Layers()

    def forward(self, x: Tensor):
        first = self.stack[0](x)
        for layer in self.stack:
            x = layer(x)
        return x, first


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", X.clone())

    def __getitem__(self, index: Any):
        return self.rows[index]

    def forward(self, n: int):
        return self[1:n], self[::2], self[n], self[..., 0], self[self.rows > n]


class Data(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor):
        self.fc.weight.data += 1
        self.fc.weight.data /= x.sum()
        bias, y = self.fc.bias, x * 2
        for i in range(2):
            bias.data -= i
            y.data **= 2
        return self.fc(x), y


@pytest.mark.parametrize(
    ("make", "argument"),
    [(Vocabulary, "bcd"), (Around, "a"), (ThroughLayers, X), (Buffer, 2), (Data, X)],
)
def test_the_same_as_eager(make: type[nn.Module], argument: Any) -> None:
    plain = make()
    compiled = lt.script(make())
    for _ in range(2):
        assert listed(compiled(copy.deepcopy(argument))) == listed(plain(copy.deepcopy(argument)))


def listed(value: Any) -> Any:
    """A nest of values, its tensors as lists of rounded numbers."""
    if isinstance(value, Tensor):
        return value.detach().mul(1e4).round().tolist()
    return [listed(v) for v in value] if isinstance(value, tuple | list) else value


class Rows:
    def __init__(self, held: Tensor) -> None:
        self.held: Tensor = held

    def __getitem__(self, index: Any) -> Rows:
        return Rows(self.held[index])

    def __setitem__(self, index: Any, value: float) -> None:
        self.held[index] = value


def rows(x: Tensor):
    r = Rows(x.clone())
    r[0:2] = 5.0
    r[2, 1] = 7.0
    return r[1:3].held, r[1:3, 0].held, r[::2][0].held, r[..., 1].held, r[x[:, 0] > 3].held


def test_slices_of_an_object() -> None:
    torch.testing.assert_close(lt.script(rows)(X), rows(X))


def adds_to_grad(x: Tensor, y: Tensor) -> Tensor:
    if x.grad is not None:
        x.grad += y
    return x * 2


def test_gradients_are_added_to() -> None:
    x = torch.ones(2, requires_grad=True)
    x.grad = torch.ones(2)
    lt.script(adds_to_grad)(x, torch.tensor([1.0, 2.0]))
    assert x.grad.tolist() == [2, 3]


def sets_another(x: Tensor):
    x.note = 3


def runs_twice(x: Tensor):
    it = iter([x])
    return [v for v in it] + [v for v in it]  # noqa: C416


class Without(nn.Module):
    def forward(self, x: Tensor):
        return self[0]


class WithoutLength(nn.Module):
    def forward(self, x: Tensor):
        return len(self)


class PlainContainers(nn.Module):
    name: lt.Final[str]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers, self.heads = [nn.ReLU()], {"a": nn.ReLU()}
        self.__dict__["hidden"] = nn.ReLU()
        self.name = name

    def forward(self, x: Tensor):
        return getattr(self, self.name)(x)


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("layers", "a list of modules", "nn.ModuleList"),
        ("heads", "a dict of modules", "nn.ModuleDict"),
        ("hidden", "a ReLU that is not registered as a submodule", "`self.hidden = …` in __init__"),
    ],
)
def test_modules_that_are_no_submodules(name: str, kind: str, remedy: str) -> None:
    with pytest.raises(lt.CompileError) as caught:
        lt.script(PlainContainers(name))(X)
    assert f"is {kind}, which" in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (sets_another, "marked `@lt.ignore`"),
        (runs_twice, "a loop over it"),
        (Without(), "a `__getitem__` of its class"),
        (WithoutLength(), "a `__len__` of its class"),
    ],
)
def test_refused(wrong: Any, remedy: str) -> None:
    with pytest.raises(lt.CompileError) as caught:
        lt.script(wrong)(X)
    assert remedy in caught.value.remedy
