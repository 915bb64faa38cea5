"""Module state: buffers, counters, caches and containers that forward changes."""

from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import module_program, via


@module_program(calls=lambda: [(torch.ones(3),), (torch.full((3,), 5.0),)])
class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        self.mean = self.mean * 0.9 + x * 0.1
        self.steps += 1
        return x - self.mean, self.steps.clone()


@module_program(calls=lambda: [(torch.ones(3),), (torch.ones(3),)])
class BufferInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        self.total[0] = -1
        self.total *= 2
        return self.total.clone()


@module_program(calls=lambda: [(torch.ones(3),)] * 3, attributes=("count",))
class IntCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


@module_program(calls=lambda: [(2,), (3,)], attributes=("total", "label", "done"))
class ScalarAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = 0.0
        self.label = "start"
        self.done = False

    def forward(self, n: int) -> str:
        for i in range(n):
            self.total += i * 0.5
        self.label = self.label + str(n)
        self.done = self.total > 1
        return self.label


@module_program(calls=lambda: [(torch.ones(2),), (torch.zeros(2),), via("reset"), (torch.ones(2),)])
class OptionalCache(nn.Module):
    cache: Optional[Tensor]

    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x: Tensor) -> Tensor:
        cache = self.cache
        if cache is None:
            y = x
        else:
            y = torch.cat([cache, x])
        self.cache = y
        return y * 2

    @jit.export
    def reset(self) -> None:
        self.cache = None


@module_program(calls=lambda: [(3,), (4,), (5,)])
class ListAttribute(nn.Module):
    seen: List[int]

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, n: int) -> Tuple[int, List[int]]:
        self.seen.append(n)
        if len(self.seen) > 2:
            self.seen.pop(0)
        return len(self.seen), self.seen[:]


@module_program(calls=lambda: [("a", 1), ("b", 2), ("a", 3)])
class DictAttribute(nn.Module):
    table: Dict[str, int]

    def __init__(self):
        super().__init__()
        self.table = {}

    def forward(self, key: str, n: int) -> Dict[str, int]:
        if key in self.table:
            self.table[key] += n
        else:
            self.table[key] = n
        return self.table.copy()


@module_program(
    calls=lambda: [(torch.ones(2),), (torch.ones(2),), via("flush"), (torch.ones(2),)],
    torchscript=False,
)
class TensorListBuffering(nn.Module):
    def __init__(self):
        super().__init__()
        self.pending: List[Tensor] = []

    def forward(self, x: Tensor) -> int:
        self.pending.append(x * (len(self.pending) + 1))
        return len(self.pending)

    @jit.export
    def flush(self) -> Tensor:
        out = torch.stack(self.pending)
        self.pending.clear()
        return out


@module_program(calls=lambda: [("open",), ("push",), ("lock",), ("push",), ("unlock",), ("push",)])
class StateMachine(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = "closed"
        self.moves = 0

    def forward(self, event: str) -> Tuple[str, int]:
        if self.state == "closed":
            if event == "open":
                self.state = "opened"
            elif event == "lock":
                self.state = "locked"
        elif self.state == "opened":
            if event == "push":
                self.state = "closed"
        elif self.state == "locked" and event == "unlock":
            self.state = "closed"
        self.moves += 1
        return self.state, self.moves


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        return x * self.calls


@module_program(calls=lambda: [(torch.ones(2),), (torch.full((2,), 3.0),)])
class StateOfSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tuple[Tensor, int]:
        y = self.inner(self.inner(x))
        return y + self.inner.last, self.inner.calls


@module_program(calls=lambda: [(torch.ones(2),), (torch.ones(2),)])
class WritesSubmoduleState(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> int:
        self.inner.calls += 10
        self.inner.last = x + self.inner.last
        return self.inner.calls


@module_program(
    calls=lambda: [(torch.ones(1, 2),), (torch.zeros(1, 2),), via("clear"), (torch.ones(1, 2),)]
)
class KeyValueCache(nn.Module):
    k: Optional[Tensor]
    v: Optional[Tensor]

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(2, 2)
        self.kv_proj = nn.Linear(2, 4)
        self.k = None
        self.v = None

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv_proj(x).chunk(2, dim=-1)
        old_k = self.k
        old_v = self.v
        if old_k is not None and old_v is not None:
            k = torch.cat([old_k, k])
            v = torch.cat([old_v, v])
        self.k = k
        self.v = v
        scores = torch.softmax(self.q_proj(x) @ k.t(), dim=-1)
        return scores @ v

    @jit.export
    def clear(self) -> None:
        self.k = None
        self.v = None


@module_program(calls=lambda: [(torch.ones(2),), (torch.ones(2) * 4,), (torch.ones(2) * 2,)])
class OptionalNumber(nn.Module):
    best: Optional[float]

    def __init__(self):
        super().__init__()
        self.best = None

    def forward(self, x: Tensor) -> bool:
        score = float(x.sum())
        best = self.best
        if best is None or score > best:
            self.best = score
            return True
        return False


class Meter:
    def __init__(self):
        self.total = 0.0
        self.n = 0

    def update(self, v: float) -> float:
        self.total += v
        self.n += 1
        return self.total / self.n


@module_program(calls=lambda: [(1.0,), (4.0,)])
class PlainObjectAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def forward(self, v: float) -> float:
        return self.meter.update(v)


@module_program(calls=lambda: [(3,), (2,)], attributes=("position",))
class TupleAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.position: Tuple[int, int] = (0, 0)

    def forward(self, n: int) -> int:
        x, y = self.position
        self.position = (x + n, y - n)
        return self.position[0] * self.position[1]


@module_program(calls=lambda: [(torch.ones(2),), (torch.ones(2),)])
class PlainTensorAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        self.offset = self.offset * 2
        return x + self.offset


@module_program(
    calls=lambda: [(torch.ones(2),), via("eval"), (torch.ones(2),), via("train"), (torch.ones(2),)]
)
class UpdatesOnlyInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.numel()
        return x * self.seen


@module_program(calls=lambda: [(torch.ones(3),), (torch.ones(3),)])
class ParameterChangedUnderNoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.mul_(0.5)
            self.w[0] = 9.0
        return x * self.w.detach()


@module_program(
    calls=lambda: [(torch.ones(2),), (-torch.ones(2),), (torch.ones(2),)],
    raises=ValueError,
)
class StateBeforeRaise(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> int:
        self.calls += 1
        if bool(x.sum() < 0):
            raise ValueError("negative in call " + str(self.calls))
        return self.calls


@module_program(calls=lambda: [(5,), (5,)])
class AttributeUsedAsLoopBound(nn.Module):
    def __init__(self):
        super().__init__()
        self.limit = 1

    def forward(self, n: int) -> List[int]:
        out: List[int] = []
        while self.limit < n:
            out.append(self.limit)
            self.limit += 2
        self.limit = 0
        return out


@module_program(calls=lambda: [(torch.arange(3.0),), (torch.arange(3.0),)])
class ListOfTensorState(nn.Module):
    def __init__(self):
        super().__init__()
        self.states: List[Tensor] = [torch.zeros(3), torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.states)):
            self.states[i] = self.states[i] * 0.5 + x
            x = self.states[i]
        return x


@module_program(calls=lambda: [(1,), (2,), (3,)], torchscript=False)
class NestedContainerState(nn.Module):
    def __init__(self):
        super().__init__()
        self.history: Dict[str, List[int]] = {"even": [], "odd": []}

    def forward(self, n: int) -> Dict[str, List[int]]:
        self.history["even" if n % 2 == 0 else "odd"].append(n)
        return self.history


@module_program(calls=lambda: [(torch.ones(2),), (torch.ones(2),)], attributes=("counter",))
class HelperWritesAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = 0

    def _tick(self, by: int) -> int:
        before = self.counter
        self.counter = before + by
        return before

    def forward(self, x: Tensor) -> Tensor:
        a = self._tick(2)
        b = self._tick(3)
        return x * (a * 10 + b)


@module_program(args=lambda: (torch.ones(2, 3),), attributes=("weight", "state"), torchscript=False)
class DataOfItsState(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.fc = nn.Linear(3, 3)
        self.register_buffer("state", torch.ones(3))

    def forward(self, x: Tensor):
        before = self.fc(x).sum()
        self.weight.data = self.weight.data * 0 + 2
        for p in self.parameters():
            p.data = p.data.clamp(0, 1)
            p.grad = None
        self.state.data = torch.zeros(2)
        return self.fc(x) @ self.weight + self.state.sum(), before


@module_program(calls=lambda: [(torch.ones(2, 3),), (torch.zeros(2, 3),)], torchscript=False)
class CarriesACell(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTMCell(3, 4)
        self.state: Optional[Tuple[Tensor, Tensor]] = None

    def forward(self, x: Tensor):
        self.state = self.cell(x, self.state)
        return self.state[0]
