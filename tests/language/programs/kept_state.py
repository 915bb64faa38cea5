"""State that reports of torch.jit's users keep in modules: caches, counters, vocabularies."""

import collections
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program


def _x() -> Tensor:
    return torch.arange(6.0).view(2, 3)


def _three() -> List[Any]:
    return [(_x(),), (_x() + 1,), (_x() * 2,)]


@module_program(calls=_three, attributes=("center",), torchscript=False)
class AsksBehindAnOr(nn.Module):
    center: Optional[Tensor]

    def __init__(self):
        super().__init__()
        self.center = None

    def forward(self, x: Tensor) -> Tensor:
        if self.center is None or self.center.shape[-1] == 1:
            out = torch.zeros_like(x)
        else:
            out = self.center * 2
        self.center = x
        return out


@module_program(calls=lambda: _three() + _three(), attributes=("ring", "at"))
class Ring(nn.Module):
    ring: List[Tensor]

    def __init__(self):
        super().__init__()
        self.ring = []
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        if len(self.ring) < 4:
            self.ring.append(x)
        else:
            self.ring[self.at] = x
        self.at = (self.at + 1) % 4
        return torch.stack(self.ring).sum(0)


@module_program(calls=lambda: _three() + _three(), attributes=("parts",), torchscript=False)
class FillsAndEmpties(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = None

    def forward(self, x: Tensor) -> Tensor:
        if self.parts is None:
            self.parts = [x]
        else:
            self.parts.append(x)
        whole = torch.cat(self.parts)
        if len(self.parts) == 3:
            self.parts = None
        return whole


@module_program(calls=_three, attributes=("total",), torchscript=False)
class NumberThatBecomesATensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = 0

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum()
        return self.total


@module_program(
    calls=lambda: [(_x(),), (_x(),), (torch.ones(4, 3),), (_x(),)],
    attributes=("rows",),
    torchscript=False,
)
class KeyedByTuples(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = {}

    def forward(self, x: Tensor) -> Tuple[Tensor, int]:
        key = (x.size(0), str(x.dtype))
        if key not in self.rows:
            self.rows[key] = torch.arange(x.size(0)).float()[:, None]
        return x + self.rows[key], len(self.rows)


class _Appends(nn.Module):
    def __init__(self, held: List[int]):
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        self.held.append(len(self.held))
        return x + len(self.held)


@module_program(calls=_three, attributes=("held",), torchscript=False)
class OneListInThreeModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = []
        self.a = _Appends(self.held)
        self.b = _Appends(self.held)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) * len(self.held)


@module_program(
    calls=lambda: [(_x(), "a"), (_x(), "a"), (_x(), "b")],
    attributes=("seen", "last", "counts"),
    torchscript=False,
)
class OtherContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = set()
        self.last = collections.deque(maxlen=2)
        self.counts = collections.defaultdict(int)

    def forward(self, x: Tensor, name: str):
        if name in self.seen:
            x = x * 10
        self.seen.add(name)
        self.last.append(float(x.sum()))
        self.counts[name] += 1
        return x, sum(self.last), self.counts[name]


@module_program(calls=_three, attributes=("size",), torchscript=False)
class NumberBeyond64Bits(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = 2**62

    def forward(self, x: Tensor) -> Tuple[Tensor, int]:
        self.size *= 2
        return x, self.size


class _Words:
    def __init__(self, words: List[str]):
        self.numbers = {word: k for k, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, word: str) -> int:
        return self.numbers.get(word, 0)

    def add(self, word: str) -> None:
        if word not in self.numbers:
            self.numbers[word] = len(self.numbers)


@module_program(
    calls=lambda: [("a b new", False), ("a new c", True), ("new c", False)], torchscript=False
)
class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = _Words(["<unknown>", "a", "b"])
        self.table = nn.Embedding(8, 2)

    def forward(self, text: str, grow: bool = False):
        if grow:
            for word in text.split():
                self.words.add(word)
        numbers = torch.tensor([self.words[word] for word in text.split()])
        return self.table(numbers).sum(0), numbers, len(self.words)


@program(args=lambda: (torch.tensor([[0.1, 0.6], [0.5, 0.2], [0.3, 0.4]]).log(), 2))
def beams(scores: Tensor, width: int) -> Tuple[List[List[int]], List[float]]:
    kept: List[List[int]] = [[]]
    sums: List[float] = [0.0]
    for row in scores:
        found: List[Tuple[float, List[int]]] = []
        for way, total in zip(kept, sums):
            for k in range(row.size(0)):
                found.append((-(total + float(row[k])), way + [k]))
        found.sort()
        kept = [way for _, way in found[:width]]
        sums = [-total for total, _ in found[:width]]
    return kept, sums


@program(args=lambda: (), torchscript=False)
def names_that_go_round():
    a, b, c = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    out: List[float] = []
    for n in range(3):
        a, b, c = c, a, b
        a[0] += n
        out.append(a[0].item())
    return out, a, b, c


@program(calls=lambda: [([(0, 1), (1, 0), (0, 1), (2, 2)],), ([],)], torchscript=False)
def reached(edges: List[Tuple[int, int]]):
    after: Dict[int, List[int]] = {}
    counts: Dict[Tuple[int, int], int] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
        counts[(a, b)] = counts.get((a, b), 0) + 1
    waiting, seen, order = [0], {0}, []
    while waiting:
        node = waiting.pop(0)
        order.append(node)
        for other in after.get(node, []):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return after, counts, order, sorted(seen), [k for k, v in counts.items() if v > 1]
