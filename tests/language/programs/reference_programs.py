"""By the sections of the TorchScript language reference: statements, classes, modules, tracing."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import call, jit, module_program, program, via


@program(calls=lambda: [([4, 8, 15],), ([],), ([8, 16, 23],)], torchscript=False)
def loop_with_every_exit(xs: List[int]) -> Tuple[int, str]:
    total = 0
    for i, x in enumerate(xs):
        if x % 3 == 0:
            continue
        if x > 20:
            return total, "early"
        total += i * x
        if total > 100:
            break
    else:
        return total, "through"
    return total, "broken"


@program(args=lambda: (torch.tensor([5.0, 3.0, 8.0]), 2.0))
def while_on_tensors(x: Tensor, limit: float) -> Tuple[Tensor, int]:
    steps = 0
    while bool(x.max() > limit) and steps < 10:
        x = x / 2
        steps += 1
    return x, steps


@program(args=lambda: (27,))
def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@program(args=lambda: (5,))
def nested_loops(n: int) -> List[Tuple[int, int, int]]:
    out: List[Tuple[int, int, int]] = []
    for a in range(1, n + 8):
        for b in range(a, n + 8):
            for c in range(b, n + 9):
                if a * a + b * b == c * c:
                    out.append((a, b, c))
                    break
    return out


@program(args=lambda: ([1, 2, 3], ["a", "b"], torch.arange(3.0)), torchscript=False)
def iterated_in_every_way(xs: List[int], names: List[str], t: Tensor) -> Tuple[str, Tensor]:
    text = ""
    for x, name in zip(xs, names):
        text += name * x
    for i in range(len(xs) - 1, -1, -1):
        text += str(xs[i])
    for c in "lt":
        text += c
    for x in reversed(xs):
        text += str(x)
    total = torch.zeros(())
    for row in t:
        total = total + row
    for k, (x, row) in enumerate(zip(xs, t)):
        total = total + row * x * k
    return text, total


class Counter:
    count: int
    names: Dict[str, int]

    def __init__(self, start: int = 0):
        self.count = start
        self.names = {}

    def add(self, name: str, by: int = 1) -> "Counter":
        self.count += by
        self.names[name] = self.names.get(name, 0) + by
        return self

    @property
    def mean(self) -> float:
        return self.count / max(len(self.names), 1)

    @staticmethod
    def of(names: List[str]) -> int:
        return len(names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> int:
        return self.names[name]

    def __setitem__(self, name: str, n: int) -> None:
        self.names[name] = n

    def __call__(self, by: int) -> int:
        return self.count * by

    def __bool__(self) -> bool:
        return self.count > 0


@program(args=lambda: (["a", "b", "a"],), torchscript=False)
def class_with_everything(names: List[str]) -> Tuple[int, float, int, bool, int, int, bool]:
    c = Counter(start=1)
    for name in names:
        c.add(name).add(name, by=2)
    c["z"] = 40
    filled = True if c else False
    return len(c), c.mean, c["a"] + c["z"], "q" in c, c(3), Counter.of(names), filled


@program(args=lambda: (3,), torchscript=False)
def objects_are_references(n: int) -> Tuple[int, int, bool]:
    a = Counter(n)
    b = a
    held = [a, Counter(1)]
    b.count += 5
    held[0].count *= 2
    return a.count, held[1].count, a is held[0]


class Node:
    value: int
    following: Optional["Node"]

    def __init__(self, value: int, following: Optional["Node"]):
        self.value = value
        self.following = following


@program(args=lambda: ([3, 1, 2],), torchscript=False)
def linked_list(xs: List[int]) -> List[int]:
    head: Optional[Node] = None
    for x in xs:
        head = Node(x, head)
    out: List[int] = []
    while head is not None:
        out.append(head.value)
        head = head.following
    return out


class Vector:
    def __init__(self, x: Tensor):
        self.x = x

    def __add__(self, other: "Vector") -> "Vector":
        return Vector(self.x + other.x)

    def __mul__(self, by: float) -> "Vector":
        return Vector(self.x * by)

    def __neg__(self) -> "Vector":
        return Vector(-self.x)

    def __eq__(self, other: "Vector") -> bool:
        return bool((self.x == other.x).all())

    def __lt__(self, other: "Vector") -> bool:
        return bool(self.x.norm() < other.x.norm())


@program(args=lambda: (torch.tensor([3.0, 4.0]),))
def operators_of_a_class(x: Tensor) -> Tuple[Tensor, bool, bool]:
    v = Vector(x)
    w = -(v + v * 2.0)
    return w.x, v == w, v < w


class Scope:
    def __init__(self, log: List[str]):
        self.log = log

    def __enter__(self) -> List[str]:
        self.log.append("in")
        return self.log

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.log.append("out")


@program(calls=lambda: [([], 1), ([], 0)], torchscript=False)
def with_statement(log: List[str], n: int) -> int:
    with Scope(log) as inner:
        inner.append("body")
        if n == 0:
            return 7
    log.append("after")
    return n


@program(args=lambda: (torch.ones(3, requires_grad=True),))
def with_no_grad(x: Tensor) -> Tuple[Tensor, bool]:
    with torch.no_grad():
        y = x * 2
    return y + x.detach(), y.requires_grad


@program(calls=lambda: [(5,), (-1,), (0,)], raises=ValueError, torchscript=False)
def raised_and_asserted(n: int) -> int:
    assert n < 10, "too large"
    if n < 0:
        raise ValueError(f"negative: {n}")
    elif n == 0:
        raise ValueError("zero")
    return n


def _slow(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = torch.tanh(x) * 1.5
    return x


@program(args=lambda: (torch.linspace(-1, 1, 4),))
def forked_and_waited(x: Tensor) -> Tensor:
    futures: List[torch.jit.Future[Tensor]] = []
    for n in range(3):
        futures.append(torch.jit.fork(_slow, x, n))
    total = torch.zeros_like(x)
    for future in futures:
        total = total + torch.jit.wait(future)
    return total


@program(args=lambda: (2,))
def only_in_python(n: int) -> int:
    if not torch.jit.is_scripting():
        n = n + 0
    return n * 2


@program(args=lambda: (torch.ones(2, 3),))
def rebinding_of_types(x: Tensor) -> Tensor:
    n = x.size(0)
    scale = 1.0 / n
    y = x
    for _ in range(n):
        y = y * scale + x
    return y


@program(args=lambda: ({"a": [1, 2]}, [[0]]), torchscript=False)
def changes_seen_by_the_caller(d: Dict[str, List[int]], xs: List[List[int]]) -> int:
    d["a"].append(3)
    d["b"] = xs[0]
    xs[0].append(9)
    alias = d["a"]
    alias += [4]
    return len(d["b"])


@program(args=lambda: (torch.zeros(4), torch.ones(4)))
def changes_in_place_seen_by_the_caller(x: Tensor, y: Tensor) -> Tensor:
    view = x[1:3]
    view += 2
    y.mul_(3).add_(x)
    x[0] = y[0]
    return view


class Stats(NamedTuple):
    mean: Tensor
    count: int


@module_program(
    calls=lambda: [call(torch.ones(2, 4)), call(torch.zeros(2, 4)), via("reset"),
                   call(torch.ones(1, 4))],
    attributes=("seen", "history"),
)  # fmt: skip
class RunningMean(nn.Module):
    __constants__ = ["momentum"]
    history: List[float]

    def __init__(self):
        super().__init__()
        self.momentum = 0.5
        self.seen = 0
        self.history = []
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Stats:
        self.seen += x.size(0)
        self.mean = self.mean * self.momentum + x.mean(0) * (1 - self.momentum)
        self.history.append(float(self.mean.sum()))
        return Stats(self.mean.clone(), self.seen)

    @torch.jit.export
    def reset(self) -> int:
        before = self.seen
        self.seen = 0
        self.history.clear()
        return before


@module_program(args=lambda: (torch.ones(2, 4), 2), grad=True)
class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.tail = nn.Sequential(nn.LayerNorm(4), nn.GELU())
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, n: int) -> Dict[str, Tensor]:
        for i, layer in enumerate(self.layers):
            if i < n:
                x = torch.relu(layer(x)) * self.scale
        x = self.tail(x)
        out: Dict[str, Tensor] = {}
        for name, head in self.heads.items():
            out[name] = head(x)
        return out


@module_program(calls=lambda: [call(torch.ones(2, 3)), via("twice", torch.ones(2, 3))])
class ExportsMore(nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.bias: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x, 1)

    def helper(self, x: Tensor, n: int) -> Tensor:
        y = self.fc(x)
        if self.bias is not None:
            y = y + self.bias
        return y * n

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        return self.helper(self.helper(x, 2), 3)

    @torch.jit.unused
    def plot(self, x: Tensor) -> None:
        import matplotlib_is_not_here  # type: ignore[import-not-found]  # noqa: F401


@module_program(args=lambda: (torch.ones(2, 3),))
class HookedOnBothSides(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

        def before(module: nn.Linear, given: Tuple[Tensor]) -> Tensor:
            return given[0] * 2

        def after(module: nn.Linear, given: Tuple[Tensor], result: Tensor) -> Tensor:
            return result + given[0]

        self.fc.register_forward_pre_hook(before)
        self.fc.register_forward_hook(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def _clipped(x: Tensor, n: int) -> Tensor:
    if bool(x.sum() > n):
        x = x / x.sum()
    return x * n


@module_program(args=lambda: (torch.ones(3),))
class TracedInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.traced = jit.trace(nn.Linear(3, 3), torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return _clipped(self.traced(x), 2) + self.traced(x * 2)


@module_program(
    calls=lambda: [(torch.ones(2, 3), [0]), (torch.ones(2, 3), [0, 1, 0])], torchscript=False
)
class TrainsAndEvaluates(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, order: List[int]) -> Tensor:
        for k in order:
            if self.training and k == 0:
                x = self.norm(x * 2)
            else:
                x = self.drop(x) + 1
        return x


@module_program(args=lambda: (torch.ones(1, 2, 4), None))
class RecurrentByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor, h: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        if h is None:
            h = torch.zeros(x.size(0), 4, dtype=x.dtype)
        outputs: List[Tensor] = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            outputs.append(h)
        return torch.stack(outputs, 1), h
