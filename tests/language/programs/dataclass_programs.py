"""Dataclasses: defaults, factories, __post_init__, methods, equality, nesting."""

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

import torch

from tests.language.support import program


@dataclass
class Config:
    width: int
    depth: int = 2
    rate: float = 0.5
    name: str = "net"


@dataclass
class State:
    hidden: torch.Tensor
    steps: int = 0
    trace: List[int] = field(default_factory=list)
    table: Dict[str, int] = field(default_factory=dict)


@dataclass
class Box:
    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def width(self) -> float:
        return self.x2 - self.x1

    def area(self) -> float:
        return self.width * (self.y2 - self.y1)

    def overlap(self, other: "Box") -> float:
        w = min(self.x2, other.x2) - max(self.x1, other.x1)
        h = min(self.y2, other.y2) - max(self.y1, other.y1)
        if w <= 0 or h <= 0:
            return 0.0
        return w * h


@dataclass
class Derived:
    a: int
    b: int = 3
    total: int = field(init=False)

    def __post_init__(self):
        self.total = self.a + self.b


@dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "b"


@dataclass(order=True)
class Ranked:
    score: float
    index: int


@dataclass
class Tree:
    value: int
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None


@dataclass
class Outer:
    config: Config
    scale: float = 2.0


@program(args=lambda: (4,), torchscript=False)
def made_with_defaults(n: int) -> Tuple[int, int, float, str]:
    c = Config(n)
    return c.width, c.depth, c.rate, c.name


@program(args=lambda: (4,), torchscript=False)
def made_with_keywords(n: int) -> Tuple[int, int, float]:
    c = Config(n, rate=0.25, depth=7)
    return c.width, c.depth, c.rate


@program(args=lambda: (4,), torchscript=False)
def returned(n: int) -> Config:
    c = Config(n, name="mine")
    c.depth += 1
    return c


@program(args=lambda: (Config(8, name="given"),), torchscript=False)
def as_argument(c: Config) -> str:
    return c.name + str(c.width * c.depth)


@program(args=lambda: (Config(8),), torchscript=False)
def argument_mutated(c: Config) -> None:
    c.width *= 2
    c.name = c.name + "!"


@program(args=lambda: (torch.zeros(2),), torchscript=False)
def default_factories(x: torch.Tensor) -> Tuple[List[int], List[int], Dict[str, int]]:
    a = State(x)
    b = State(x, 5)
    a.trace.append(1)
    b.trace.append(b.steps)
    a.table["k"] = 2
    return a.trace, b.trace, a.table


@program(args=lambda: (State(torch.ones(2)), 3), torchscript=False)
def state_advanced(s: State, n: int) -> State:
    for i in range(n):
        s.hidden = s.hidden * 2
        s.steps += 1
        s.trace.append(i)
    s.hidden += 1
    return s


@program(args=lambda: (2.0,), torchscript=False)
def methods_and_properties(w: float) -> Tuple[float, float, float]:
    a = Box(0.0, 0.0, w, 3.0)
    b = Box(1.0, 1.0, 5.0, 5.0)
    return a.area(), a.width, a.overlap(b)


@program(args=lambda: (2,), torchscript=False)
def post_init(n: int) -> Tuple[int, int]:
    return Derived(n).total, Derived(n, 10).total


@program(args=lambda: (2,), torchscript=False)
def equality(n: int) -> Tuple[bool, bool, bool]:
    a = Config(n)
    b = Config(2)
    c = Config(3)
    return a == b, a == c, a != c


@program(args=lambda: (2,), torchscript=False)
def frozen(n: int) -> Tuple[int, str]:
    f = Frozen(n)
    return f.a, f.b


@program(args=lambda: (2.0,), torchscript=False)
def ordering(s: float) -> Tuple[bool, bool]:
    return Ranked(s, 1) < Ranked(3.0, 0), Ranked(s, 1) >= Ranked(2.0, 2)


@program(args=lambda: (2,), torchscript=False)
def nested(n: int) -> Tuple[int, float]:
    o = Outer(Config(n))
    o.config.width += 5
    return o.config.width, o.scale


@program(args=lambda: ([Box(0.0, 0.0, 2.0, 2.0), Box(1.0, 1.0, 3.0, 3.0)],), torchscript=False)
def list_of_boxes(boxes: List[Box]) -> float:
    total = 0.0
    for i in range(len(boxes)):
        for j in range(i + 1, len(boxes)):
            total += boxes[i].overlap(boxes[j])
    boxes.append(Box(0.0, 0.0, 1.0, total))
    return total


@program(args=lambda: (torch.arange(4.0),), torchscript=False)
def list_of_made_instances(x: torch.Tensor) -> List[State]:
    out: List[State] = []
    for i in range(x.size(0)):
        out.append(State(x[i], steps=i))
    return out


@program(args=lambda: (5,), torchscript=False)
def optional_children(n: int) -> int:
    t = Tree(n, Tree(1), Tree(2, Tree(3)))
    total = t.value
    stack = [t]
    while len(stack) > 0:
        node = stack.pop()
        total = total * 2 + node.value
        left = node.left
        if left is not None:
            stack.append(left)
        right = node.right
        if right is not None:
            stack.append(right)
    return total


@program(args=lambda: (Config(3),), torchscript=False)
def alias_returned(c: Config) -> Tuple[Config, Config]:
    d = c
    d.width = 100
    return c, d


@program(args=lambda: (Config(3),), optional=True, torchscript=False)
def repr_of_instance(c: Config) -> str:
    return str(c) + f"{c.name}"


@program(args=lambda: (3,), torchscript=False)
def global_instance_untouched(n: int) -> int:
    c = Config(n)
    d = Config(n)
    c.width = 10
    return d.width
