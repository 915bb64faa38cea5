"""Annotations that Python keeps as text: `from __future__ import annotations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import call, module_program, program

if TYPE_CHECKING:
    from collections.abc import Sequence


class Boxed(NamedTuple):
    value: Tensor
    size: int = 1


@dataclass
class Settings:
    rate: float
    steps: int = 2
    names: list[str] | None = None


class Running:
    def __init__(self, start: float) -> None:
        self.value = start
        self.seen: list[float] = []

    def update(self, x: float) -> Running:
        self.seen.append(x)
        self.value += x
        return self


@program(args=lambda: (torch.ones(2), 3, 1.5, "s", True))
def plain_names(x: torch.Tensor, n: int, f: float, s: str, b: bool) -> tuple[Tensor, str]:
    return x * n + f, s if b else ""


@program(calls=lambda: [(None,), (torch.ones(2),)])
def optional_by_bar(x: Tensor | None) -> Tensor:
    if x is None:
        return torch.zeros(2)
    return x + 1


@program(calls=lambda: [(3,), ("s",)])
def union_by_bar(v: int | str) -> str:
    if isinstance(v, int):
        return str(v + 1)
    return v


@program(args=lambda: ([1, 2], {"a": [1.5]}))
def builtin_generics(xs: list[int], d: dict[str, list[float]]) -> list[tuple[int, float]]:
    out: list[tuple[int, float]] = []
    for x in xs:
        for f in d["a"]:
            out.append((x, f))
    return out


@program(args=lambda: ([1, 2], {"a": 1}))
def typing_generics(xs: List[int], d: Dict[str, int]) -> Optional[Tuple[int, int]]:
    if len(xs) == 0:
        return None
    return xs[0], d["a"]


@program(args=lambda: (Boxed(torch.ones(2)),))
def named_tuple(b: Boxed) -> Boxed:
    return Boxed(b.value * 2, b.size + 1)


@program(args=lambda: (Settings(0.5, names=["a"]),), torchscript=False)
def data_class(s: Settings) -> float:
    names = s.names
    if names is not None:
        names.append("b")
    return s.rate * s.steps


@program(args=lambda: ([1.0, 2.0],))
def class_returning_itself(xs: list[float]) -> tuple[float, list[float]]:
    r = Running(10.0)
    for x in xs:
        r = r.update(x)
    r.update(1.0).update(2.0)
    return r.value, r.seen


@program(args=lambda: (4,))
def annotated_locals(n: int) -> list[int]:
    best: int | None = None
    out: list[int] = []
    for i in range(n):
        if best is None or i > best:
            best = i
            out.append(best)
    return out


@program(args=lambda: (3,))
def any_and_annotate(v: Any) -> int:
    xs = jit.annotate(List[int], [])
    if isinstance(v, int):
        xs.append(v)
    return len(xs)


def _helper(x: Tensor, scale: float | None = None) -> Tensor:
    return x if scale is None else x * scale


@program(args=lambda: (torch.ones(2),))
def helpers_with_text_annotations(x: Tensor) -> Tensor:
    return _helper(x) + _helper(x, 3.0)


@module_program(
    calls=lambda: [(torch.ones(2, 3),), call(torch.ones(2, 3), scale=2.0)], torchscript=False
)
class FutureModule(nn.Module):
    cache: Tensor | None
    names: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.cache = None
        self.names = []

    def forward(self, x: Tensor, scale: float | None = None) -> dict[str, Tensor]:
        y = self.fc(x)
        if scale is not None:
            y = y * scale
        cache = self.cache
        if cache is not None:
            y = y + cache
        self.cache = y
        self.names.append("call")
        return {"y": y, "n": torch.tensor(len(self.names))}
