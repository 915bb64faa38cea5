"""`collections` and `itertools`: counters, default dicts, queues, running sums, combinations."""

import collections
import itertools
from typing import List

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program

WORDS = ["a", "b", "a", "c"]


@program(args=lambda: (WORDS,), torchscript=False)
def counted(words: List[str]):
    count = collections.Counter(words)
    count.update(["b", "b"])
    count["c"] += 4
    return count, count["none"], sum(count.values()), max(count, key=lambda w: count[w])


@program(calls=lambda: [(WORDS, torch.ones(2)), ([], torch.ones(2))], torchscript=False)
def grouped(words: List[str], x: Tensor):
    places = collections.defaultdict(list)
    sums = collections.defaultdict(lambda: 0.5)
    for i, word in enumerate(words):
        places[word].append(x * i)
        sums[word] += i
    return {k: torch.stack(v).sum() for k, v in places.items()}, sums, places.get("z"), len(places)


@program(args=lambda: (torch.ones(2, 2),), torchscript=False)
def queued(x: Tensor):
    recent = collections.deque(maxlen=2)
    for i in range(4):
        recent.append(x * i)
    waiting, order = collections.deque([0]), []
    while waiting:
        node = waiting.popleft()
        order.append(node)
        if node < 3:
            waiting.extend([node + 1, node + 2])
    return torch.stack(list(recent)), len(recent), recent[-1], order


@module_program(
    calls=lambda: [(torch.ones(2), k) for k in "aba"],
    attributes=("seen", "last"),
    torchscript=False,
)
class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = collections.Counter()
        self.last = collections.deque(maxlen=2)

    def forward(self, x: Tensor, key: str):
        self.seen[key] += 1
        self.last.append(x)
        return x * self.seen[key] + self.seen["none"] + sum(self.last)


@program(calls=lambda: [([1, 4, 2],), ([],)], torchscript=False)
def accumulated(xs: List[int]):
    return (
        list(itertools.accumulate(xs)),
        list(itertools.accumulate(xs, max, initial=3)),
        [v for v in itertools.accumulate(xs, func=lambda a, b: a - b)],
    )


@program(args=lambda: (torch.arange(9.0).view(3, 3),), torchscript=False)
def accumulated_rows(x: Tensor):
    return list(itertools.accumulate([*x, x[0]], torch.maximum))


@program(calls=lambda: [([1, 4, 2], 2), ([1], 2), ([], 0), ([1, 2], -1)], raises=ValueError,
         torchscript=False)  # fmt: skip
def combined(xs: List[int], r: int):
    return list(itertools.combinations(xs, r)), [a * b for a, b in itertools.combinations(xs, r=2)]


@program(args=lambda: (torch.arange(9.0).view(3, 3),), torchscript=False)
def combined_rows(x: Tensor):
    total = sum(x[i, j] for i, j in itertools.combinations(range(len(x)), 2))
    return [(a * b).sum() for a, b in itertools.combinations([x, x + 1, x + 2], 2)], total


@program(args=lambda: ([1, 2],), refused=True)
def a_kept_iterator(xs: List[int]):
    its = [iter(xs), iter(xs)]  # refused
    return its
