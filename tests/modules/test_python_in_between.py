"""What Python code that the program calls changes within the call is seen, or the call raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

STEPS = 1


class Base(nn.Module):
    """`change` is left to Python; the compiler does not see what `action` assigns."""

    limit: lt.Final[int]

    def __init__(self, action: Callable[[Any], None] = lambda m: None) -> None:
        super().__init__()
        self.n, self.limit, self.mode = 1, 2, "a"
        self.flag: Any = None
        self.weight = torch.ones(2)
        self.rows: list[Any] = [1]
        self.part = nn.Identity()
        self.action = [action]

    @lt.ignore
    def change(self) -> None:
        self.action[0](self)


class Number(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x * self.n


class Constant(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * self.limit
        self.change()
        return x + self.limit


class Branch(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x if self.flag is None else x + 1


class Weight(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x + self.weight


class Items(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x + 1 if isinstance(self.rows[0], int) else x


class Presence(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x + 1 if hasattr(self, "late") else x


class Part(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return self.part(x)


class Mode(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x + 1 if self.training else x


class Global(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x + STEPS


class Loop(Base):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = x + self.n
            self.change()
        return x


def step(_: nn.Module) -> None:
    globals()["STEPS"] += 1


CHANGES: list[tuple[type[Base], Callable[[Any], None], str]] = [
    (Number, lambda m: setattr(m, "n", 2), "n"),
    (Constant, lambda m: setattr(m, "limit", 5), "limit"),
    (Branch, lambda m: setattr(m, "flag", 3), "flag"),
    (Weight, lambda m: setattr(m, "weight", torch.zeros(2)), "weight"),
    (Items, lambda m: m.rows.__setitem__(0, "a"), "rows"),
    (Presence, lambda m: setattr(m, "late", 1), "late"),
    (Part, lambda m: setattr(m, "part", nn.ReLU6()), "part"),
    (Mode, lambda m: m.eval(), "training"),
    (Global, step, "STEPS"),
    (Loop, lambda m: setattr(m, "n", m.n + 1), "n"),
]


@pytest.mark.parametrize(("kind", "action", "name"), CHANGES)
def test_what_is_read_afterwards_is_looked_at(
    kind: type[Base], action: Callable[[Any], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "STEPS", 1)
    x = torch.ones(2)
    assert torch.equal(lt.script(kind())(x), kind()(x))
    with pytest.raises(RuntimeError, match=rf"change\(\) has changed `{name}`"):
        lt.script(kind(action))(x)


class Before(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * self.n + STEPS
        self.change()
        return x + 1


def test_what_is_read_before_may_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def action(m: Any) -> None:
        m.n += 1
        step(m)

    def run(wrap: Callable[[Any], Any]) -> list[float]:
        monkeypatch.setitem(globals(), "STEPS", 1)
        made = wrap(Before(action))
        return [made(torch.ones(2))[0].item() for _ in range(3)]

    assert run(lt.script) == run(lambda m: m)


class Lazy(Base):
    @lt.ignore
    def build(self) -> None:
        self.flag = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.flag is None:
            self.build()
        return torch.add(x, self.flag)  # pyright: ignore[reportArgumentType]


def test_what_is_built_in_the_first_call_is_used_in_it() -> None:
    made = lt.script(Lazy())
    assert [made(torch.ones(2))[0].item() for _ in range(2)] == [2.0, 2.0]
