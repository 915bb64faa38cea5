"""Tuples and NamedTuples."""

import collections.abc
from collections import namedtuple
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch

from tests.language.support import program


class Point(NamedTuple):
    x: int
    y: int = 5


class Stats(NamedTuple):
    mean: torch.Tensor
    count: int
    name: Optional[str] = None


class Segment(NamedTuple):
    a: Point
    b: Point


class Holder(NamedTuple):
    items: List[int]
    table: Dict[str, int]


Old = namedtuple("Old", ["left", "right"])


class Vector(NamedTuple):
    x: float
    y: float

    def norm2(self) -> float:
        return self.x * self.x + self.y * self.y


@program(args=lambda: ((1, 2.5, "s"),))
def indexing(p: Tuple[int, float, str]) -> Tuple[str, int, float]:
    return p[-1], p[0], p[1]


@program(args=lambda: ((1, 2.5, "s"),))
def slicing(p: Tuple[int, float, str]) -> Tuple[Tuple[int, float], Tuple[float, str]]:
    return p[:2], p[1:]


@program(args=lambda: ((1, (2, 3)),))
def unpacking_nested(p: Tuple[int, Tuple[int, int]]) -> int:
    a, (b, c) = p
    return a * 100 + b * 10 + c


@program(args=lambda: ((1, 2), ("a",)))
def concatenation(p: Tuple[int, int], q: Tuple[str]) -> Tuple[int, int, str]:
    return p + q


@program(args=lambda: ((1, 2), (1, 3)))
def comparisons(p: Tuple[int, int], q: Tuple[int, int]) -> List[bool]:
    return [p == q, p != q]


@program(args=lambda: ((1, 2), (1, 3)), torchscript=False)
def ordering(p: Tuple[int, int], q: Tuple[int, int]) -> List[bool]:
    return [p < q, p >= q]


@program(args=lambda: ((1, 2, 3),), torchscript=False)
def membership_and_methods(p: Tuple[int, int, int]) -> Tuple[bool, bool, int, int]:
    return 2 in p, 7 in p, p.index(3), p.count(1)


@program(args=lambda: ((4, 1, 3),))
def length(p: Tuple[int, int, int]) -> int:
    return len(p)


@program(args=lambda: ((4, 1, 3),))
def aggregated(p: Tuple[int, int, int]) -> Tuple[int, int, int, List[int]]:
    return sum(p), min(p), max(p), sorted(p)


@program(args=lambda: (5,))
def one_and_empty(n: int) -> Tuple[Tuple[int], Tuple[()]]:
    return (n,), ()


@program(args=lambda: ((1, 2, 3, 4),))
def starred(p: Tuple[int, int, int, int]) -> Tuple[int, List[int]]:
    a, *rest = p
    return a, rest


@program(args=lambda: ((1, 2),))
def starred_in_literal(p: Tuple[int, int]) -> Tuple[int, int, int]:
    return (0, *p)


@program(args=lambda: (3, 4))
def swap(a: int, b: int) -> Tuple[int, int]:
    a, b = b, a
    return a, b


@program(args=lambda: (torch.ones(2), 3))
def tuple_of_mixed(x: torch.Tensor, n: int) -> Tuple[torch.Tensor, Tuple[int, List[torch.Tensor]]]:
    return x + n, (n, [x, x * 2])


def _pair(n: int) -> Tuple[int, str]:
    return n, str(n)


@program(args=lambda: (3,))
def index_of_call(n: int) -> str:
    return _pair(n)[1] + str(_pair(n)[0])


@program(args=lambda: (3,), torchscript=False)
def tuple_of_comprehension(n: int) -> Tuple[int, ...]:
    return tuple([i * 2 for i in range(n)])


@program(args=lambda: (3,))
def named_made(n: int) -> Point:
    return Point(n, 7)


@program(args=lambda: (3,))
def named_default(n: int) -> Point:
    return Point(n)


@program(args=lambda: (3,))
def named_keywords(n: int) -> Point:
    return Point(y=n, x=1)


@program(args=lambda: (Point(1, 2),))
def named_argument(p: Point) -> int:
    return p.x * 10 + p.y


@program(args=lambda: (Point(1, 2),))
def named_as_tuple(p: Point) -> Tuple[int, int, int]:
    x, y = p
    return x + p[1], y, len(p)


@program(args=lambda: (torch.ones(4),))
def named_with_tensor(x: torch.Tensor) -> Stats:
    return Stats(mean=x.mean(), count=x.numel())


@program(args=lambda: (Segment(Point(0, 0), Point(3, 4)),))
def named_nested(s: Segment) -> Tuple[int, Segment]:
    dx = s.b.x - s.a.x
    dy = s.b.y - s.a.y
    return dx * dx + dy * dy, Segment(s.b, s.a)


@program(args=lambda: ([Point(1, 2), Point(3)],))
def named_in_list(ps: List[Point]) -> int:
    total = 0
    ps.append(Point(10, 10))
    for p in ps:
        total += p.x + p.y
    return total


@program(args=lambda: (Holder([1], {"a": 1}),))
def named_holding_mutables(h: Holder) -> Holder:
    h.items.append(2)
    h.table["b"] = len(h.items)
    return h


@program(args=lambda: (torch.ones(2),))
def named_old_style(x: torch.Tensor) -> torch.Tensor:
    p = Old(left=x, right=x * 3)
    return p.left - p.right


@program(args=lambda: (Point(1, 2), Point(1, 2)))
def named_equality(p: Point, q: Point) -> Tuple[bool, bool]:
    return p == q, p == Point(2, 1)


@program(args=lambda: (Point(1, 2),), optional=True, torchscript=False)
def named_replace(p: Point) -> Tuple[Point, Point]:
    return p._replace(x=9), p


@program(args=lambda: (3.0,), torchscript=False)
def named_method(a: float) -> float:
    return Vector(a, 4.0).norm2()


@program(args=lambda: (torch.tensor([3.0, 1.0, 2.0]),))
def returned_by_torch(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    s = torch.sort(x)
    m = x.max(dim=0)
    return s.values + m.values, s.indices + m[1]


def _split(p: Point) -> Tuple[Point, Optional[Point]]:
    if p.x > 1:
        return Point(1, p.y), Point(p.x - 1, p.y)
    return p, None


@program(args=lambda: (Point(4, 2),), torchscript=False)
def named_through_helpers(p: Point) -> int:
    rest: Optional[Point] = p
    turns = 0
    while rest is not None:
        _, rest = _split(rest)
        turns += 1
    return turns


@program(args=lambda: ((torch.zeros(2), [1]),))
def mutable_inside_tuple(p: Tuple[torch.Tensor, List[int]]) -> Tuple[torch.Tensor, List[int]]:
    p[0].add_(1)
    p[1].append(2)
    return p


@program(args=lambda: ((1, 2), 3, [1], "s"), torchscript=False)
def abstract_classes(a: Tuple[int, int], b: int, c: List[int], d: str) -> Tuple[bool, ...]:
    iterable = collections.abc.Iterable
    return (
        isinstance(a, iterable),
        isinstance(b, iterable),
        isinstance(c, collections.abc.Sequence),
        isinstance(d, iterable),
        isinstance(a, (int, collections.abc.Mapping)),
    )


@program(
    calls=lambda: [((torch.ones(2), 3), [1, 2]), (None, [1]), ((torch.ones(2), 3), None)],
    raises=TypeError,
    torchscript=False,
)
def optional_containers_read(t: Optional[Tuple[torch.Tensor, int]], xs: Optional[List[int]]):
    first, part = t[0] * 2, t[1:]
    x, n = t
    for k in xs:
        n += k
    return first, part, x + n, t[-1], [k * 2 for k in xs], [v for v in t]


@program(calls=lambda: [(1, 2.0), (3, 3.0), (2, 0.5)], torchscript=False)
def of_unlike_numbers(n: int, x: float):
    low, high = min((n, x), (n, 2)), max([n, 2], [x, n], [n, n])
    return low, high, (n, x) < (n, 2), max((1, 1.0), (1, 1)), max((1, 1), (1, 1.0))
