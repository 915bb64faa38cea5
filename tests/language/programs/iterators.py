"""zip, enumerate and reversed: strict, beside tuples, kept in variables."""

import itertools
from typing import List

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence, unpad_sequence

from tests.language.support import module_program, program

PAIRS = [([1, 2], [3, 4]), ([2, 3, 4], [3, 4]), ([2, 3], [3, 4, 5]), ([], [1]), ([1], []), ([], [])]
LONG = [([2, 1, 5], [1, 2, 3]), ([2, 1, 5], [1, 2]), ([2, 5], [1, 2, 7])]


def _pairs(*more):
    return lambda: [(list(a), list(b)) for a, b in (*PAIRS, *more)]


@program(calls=_pairs(), raises=ValueError, torchscript=False)
def strict(a: List[int], b: List[int]) -> int:
    s = 0
    for p, q in zip(a, b, strict=True):
        s += p * q
        print(p)
    return s


@program(calls=_pairs(*LONG), raises=ValueError, torchscript=False)
def strict_left_early(a: List[int], b: List[int]) -> int:
    s = 0
    for p, q in zip(a, b, strict=True):
        if p == 1:
            break
        if q == 7:
            return -1
        s += q
    else:
        s += 100
    return s


@program(calls=_pairs(), raises=ValueError, torchscript=False)
def strict_of_three(a: List[int], b: List[int]) -> int:
    s = 0
    for i, (p, q, r) in enumerate(zip(a, b, [1, 2], strict=True)):
        s += p * q * i * r
    return s


@program(calls=_pairs(), raises=ValueError, torchscript=False)
def strict_in_expressions(a: List[int], b: List[int]):
    products = [p * q for p, q in zip(a, b, strict=True)]
    return products, list(zip(a, b, strict=True)), dict(zip(a, b, strict=True))


@program(calls=_pairs(), raises=ValueError, torchscript=False)
def strict_beside_a_tuple(a: List[int], b: List[int]):
    return [p for p, q in zip((1, 2, 3), b, strict=True)], sum(a)


@program(calls=_pairs(), torchscript=False)
def a_list_that_ends_before_the_tuple(a: List[int], b: List[int]):
    s = 0
    for p, q in zip((1, 2.5, 3), a):
        if q == 4:
            continue
        s += p * q
    else:
        s += 10
    for i, (p, q, r) in enumerate(zip(a, (1, 2), b)):
        if r > 3:
            break
        s += p * q * r * i
    return s, [p * q for p, q in zip(a, (1, 2, 3))], tuple(zip((1, 2), b)), list(zip(b, (1, 2)))


@module_program(calls=lambda: [(torch.ones(2, 3), [1.0, 2.0]), (torch.ones(2, 3), [])])
class LayersBesideAList(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x: Tensor, scales: List[float]) -> Tensor:
        for layer, scale in zip(self.layers, scales):
            x = layer(x) * scale
        return x


@program(
    calls=lambda: [(torch.arange(12.0).view(3, 4), torch.arange(n)) for n in (3, 2, 5)],
    raises=ValueError,
    torchscript=False,
)
def strict_rows(x: Tensor, y: Tensor) -> Tensor:
    rows: List[Tensor] = []
    for r, s in zip(x, y, strict=True):
        rows.append(r * s)
    return torch.stack(rows)


@program(
    calls=lambda: [
        (torch.arange(24.0).view(3, 4, 2), torch.tensor([1, 2, 3])),
        (torch.arange(24.0).view(3, 4, 2), torch.tensor([1, 2])),
    ],
    raises=ValueError,
    torchscript=False,
)
def unpadded(x: Tensor, lengths: Tensor):
    rows = unpad_sequence(x, lengths, batch_first=True)
    return rows, pad_sequence(rows)


@program(args=lambda: ([1, 2], [3, 4]), torchscript=False)
def kept_and_read_once(a: List[int], b: List[int]):
    it = zip(a, b)
    s = 0
    if len(a) > 1:
        for p, q in it:
            s += p * q
    else:
        for p, q in it:
            s += 1
    it = enumerate(a)
    for i, p in it:
        s += i * p
    for _ in range(3):
        it = zip(a, b)
        for p, q in it:
            s += p * q
    rows = reversed(b)
    return s, list(rows)


@program(args=lambda: ([1, 2], [3, 4]), refused=True, torchscript=False)
def read_twice(a: List[int], b: List[int]) -> int:
    it = zip(a, b)
    s = 0
    for p, q in it:
        s += p * q
    for p, q in it:  # refused
        s += 100
    return s


@program(args=lambda: ([1, 2], [3, 4]), refused=True, torchscript=False)
def read_in_each_step(a: List[int], b: List[int]) -> int:
    it = zip(a, b)
    s = 0
    for _ in range(3):
        for p, q in it:  # refused
            s += p * q
    return s


@program(args=lambda: ([1, 2], [3, 4]), torchscript=False)
def lists_of_iterators_read_once(a: List[int], b: List[int]):
    it = map(lambda v: v + 1, a)
    s = 0
    if len(a) > 1:
        for p in it:
            s += p
    else:
        s += sum(it)
    it = filter(lambda v: v > 1, a)
    s += sum([v * 2 for v in it])
    for _ in range(3):
        it = itertools.chain(a, b)
        for p in it:
            s += p
    rows = (v * 3 for v in b)
    first, second = map(lambda v: v * v, a)
    return s, list(rows), first + second, max(map(lambda v: -v, a)), sorted(v for v in b)


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def map_read_twice(a: List[int]) -> int:
    it = map(lambda v: v + 1, a)
    s = sum(it)
    return s + len(list(it))  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def filter_read_in_each_step(a: List[int]) -> int:
    it = filter(lambda v: v > 1, a)
    s = 0
    for _ in range(3):
        for p in it:  # refused
            s += p
    return s


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def chain_read_by_two_comprehensions(a: List[int]) -> int:
    it = itertools.chain(a, a)
    first = [v for v in it]
    return len(first) + len([v for v in it])  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def generator_read_twice(a: List[int]) -> int:
    it = (v + 1 for v in a)
    return sum(it) + sum(it)  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def zip_read_by_two_comprehensions(a: List[int]) -> int:
    it = zip(a, a)
    first = [p for p, q in it]
    return len(first) + len([q for p, q in it])  # refused


@program(
    calls=lambda: [(torch.arange(12.0).view(3, 4), i) for i in (2, -1, 7)],
    raises=IndexError,
    torchscript=False,
)
def rows_by_index(x: Tensor, i: int):
    rows = x.unbind(0)
    print(i)
    return rows[i] * 2, len(rows)


@program(calls=lambda: [(torch.arange(12.0).view(3, 4), i) for i in (2, 7)], raises=IndexError)
def list_of_rows_by_index(x: Tensor, i: int) -> Tensor:
    rows: List[Tensor] = []
    for row in x:
        rows.append(row)
    return rows[i] * 2


@program(
    calls=lambda: [(torch.arange(3.0),), (torch.ones(0),), (torch.ones(2, 2),)], torchscript=False
)
def rows_of_a_tensor(x: torch.Tensor):
    return tuple(x), [*x], (*x, 1), [0, *x, *x], list(x)


_EVENS = range(0, 8, 2)


@program(calls=lambda: [(1,), (2,)], torchscript=False)
def a_range_from_outside(n: int):
    found = [i * n for i in _EVENS]
    return found, n in _EVENS, _EVENS[1:], len(_EVENS), _EVENS.stop, _EVENS.index(4), sum(_EVENS)


@program(
    calls=lambda: [([1, 5, 0],), ([4, 2],), ([0],), ([],)],
    raises=(StopIteration, ZeroDivisionError),
    torchscript=False,
)
def the_next_one(xs: List[int]):
    i = 7
    large = next((i for i, v in enumerate(xs) if v > 3), i)
    both = next(zip(xs, reversed(xs)), None)
    return i, large, both, next(iter(xs)), next(10 // v for v in xs)


@module_program(args=lambda: (torch.ones(2, dtype=torch.int32),), torchscript=False)
class FirstParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2).double()

    def forward(self, x: Tensor):
        first = next(self.parameters())
        name, bias = next((n, p) for n, p in self.named_parameters() if p.dim() == 1)
        return x.to(first.dtype).sum(), name, bias.shape, next(self.buffers(), None)
