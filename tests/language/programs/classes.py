"""Scripted classes: methods, properties, operators, instances in containers, context managers."""

from typing import Any, Dict, List, Optional, Tuple

import torch

from tests.language import jit
from tests.language.support import program


@jit.script
class Counter:
    def __init__(self, start: int):
        self.count = start
        self.log: List[int] = []

    def step(self, by: int = 1) -> int:
        self.count += by
        self.log.append(self.count)
        return self.count


class Accumulator:
    def __init__(self, size: int, decay: float = 0.5):
        self.total = torch.zeros(size)
        self.decay = decay
        self.turns = 0

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total * self.decay + x
        self.turns += 1
        return self.total

    def mean(self) -> torch.Tensor:
        return self.total / float(self.turns)

    def add_all(self, xs: List[torch.Tensor]) -> None:
        for x in xs:
            self.add(x)


class Vec:
    def __init__(self, x: float, y: float):
        self.x = x
        self.y = y

    def __add__(self, other: "Vec") -> "Vec":
        return Vec(self.x + other.x, self.y + other.y)

    def __sub__(self, other: "Vec") -> "Vec":
        return Vec(self.x - other.x, self.y - other.y)

    def __mul__(self, k: float) -> "Vec":
        return Vec(self.x * k, self.y * k)

    def __neg__(self) -> "Vec":
        return Vec(-self.x, -self.y)

    def __eq__(self, other: "Vec") -> bool:
        return self.x == other.x and self.y == other.y

    def __lt__(self, other: "Vec") -> bool:
        return self.norm2() < other.norm2()

    def norm2(self) -> float:
        return self.x * self.x + self.y * self.y


class Bag:
    def __init__(self, items: List[int]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> int:
        return self.items[i]

    def __setitem__(self, i: int, v: int) -> None:
        self.items[i] = v

    def __contains__(self, v: int) -> bool:
        return v in self.items

    def __call__(self, k: int) -> int:
        return sum(self.items) * k

    def __str__(self) -> str:
        return "Bag" + str(len(self.items))

    def __bool__(self) -> bool:
        return len(self.items) > 1


class Rest:
    def __init__(self, n: int):
        self.n = n

    def __truediv__(self, other: "Rest") -> float:
        return self.n / other.n

    def __floordiv__(self, other: "Rest") -> int:
        return self.n // other.n

    def __mod__(self, other: "Rest") -> int:
        return self.n % other.n

    def __pow__(self, k: int) -> int:
        r = 1
        for _ in range(k):
            r *= self.n
        return r

    def __and__(self, other: "Rest") -> int:
        return self.n & other.n

    def __or__(self, other: "Rest") -> int:
        return self.n | other.n

    def __xor__(self, other: "Rest") -> int:
        return self.n ^ other.n

    def __ne__(self, other: "Rest") -> bool:
        return self.n != other.n

    def __gt__(self, other: "Rest") -> bool:
        return self.n > other.n

    def __ge__(self, other: "Rest") -> bool:
        return self.n >= other.n

    def __le__(self, other: "Rest") -> bool:
        return self.n <= other.n


class Temperature:
    def __init__(self, celsius: float):
        self._celsius = celsius
        self.writes = 0

    @property
    def celsius(self) -> float:
        return self._celsius

    @celsius.setter
    def celsius(self, value: float) -> None:
        self._celsius = value
        self.writes += 1

    @property
    def fahrenheit(self) -> float:
        return self._celsius * 1.8 + 32.0


class Tools:
    def __init__(self):
        self.k = 2

    @staticmethod
    def twice(x: int) -> int:
        return x * 2

    def scaled(self, x: int) -> int:
        return Tools.twice(x) * self.k

    def through_instance(self, x: int) -> int:
        return self.twice(x) + self.k


class Constants:
    FACTOR = 3

    def __init__(self):
        self.k = 2

    def by_constant(self, x: int) -> int:
        return x * self.FACTOR + Constants.FACTOR * self.k

    @classmethod
    def triple(cls, x: int) -> int:
        return x * cls.FACTOR


class Node:
    def __init__(self, value: int):
        self.value = value
        self.next: Optional["Node"] = None


class Guard:
    def __init__(self, log: List[str]):
        self.log = log
        self.depth = 0

    def __enter__(self) -> "Guard":
        self.depth += 1
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.depth -= 1
        self.log.append("exit")


class NumberGuard:
    def __init__(self, n: int):
        self.n = n

    def __enter__(self) -> int:
        return self.n * 2

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.n = 0


class Base:
    def __init__(self, n: int):
        self.n = n

    def value(self) -> int:
        return self.n

    def describe(self) -> str:
        return "v" + str(self.value())


class Derived(Base):
    def __init__(self, n: int):
        super().__init__(n)
        self.extra = 10

    def value(self) -> int:
        return self.n + self.extra


class Stack:
    def __init__(self):
        self.data: List[torch.Tensor] = []
        self.names: Dict[str, int] = {}

    def push(self, name: str, x: torch.Tensor) -> None:
        self.names[name] = len(self.data)
        self.data.append(x)

    def get(self, name: str) -> Optional[torch.Tensor]:
        if name in self.names:
            return self.data[self.names[name]]
        return None


@program(args=lambda: (3,))
def methods_and_state(n: int) -> Tuple[int, List[int]]:
    c = Counter(10)
    for i in range(n):
        c.step(i)
    c.step()
    return c.count, c.log


@program(args=lambda: (torch.ones(3),))
def tensor_attributes(x: torch.Tensor) -> Tuple[torch.Tensor, int]:
    acc = Accumulator(3)
    acc.add(x)
    acc.add_all([x * 2, x * 3])
    return acc.mean(), acc.turns


@program(args=lambda: (torch.ones(3),))
def keyword_construction(x: torch.Tensor) -> torch.Tensor:
    acc = Accumulator(decay=0.25, size=3)
    acc.add(x)
    return acc.add(x=x)


@program(args=lambda: (1.5,))
def operators(a: float) -> Tuple[float, float, bool, bool]:
    v = Vec(a, 2.0) + Vec(1.0, 1.0) * 2.0 - Vec(0.5, 0.5)
    w = -v
    return v.x + w.y, v.norm2(), v == w, Vec(0.0, 0.0) < v


@program(args=lambda: (12, 5), torchscript=False)
def more_operators(a: int, b: int) -> Tuple[float, List[int], List[bool]]:
    p = Rest(a)
    q = Rest(b)
    numbers = [p // q, p % q, p**3, p & q, p | q, p ^ q]
    return p / q, numbers, [p != q, p > q, p >= q, p <= q]


@program(args=lambda: ([1, 2, 3],))
def container_protocol(xs: List[int]) -> Tuple[int, int, bool, bool]:
    b = Bag(xs)
    b[0] = 10
    return len(b), b[0] + b[-1], 10 in b, 99 in b


@program(args=lambda: ([1, 2, 3],), torchscript=False)
def item_augmented(xs: List[int]) -> List[int]:
    b = Bag(xs)
    b[1] += 40
    return xs


@program(args=lambda: ([1, 2, 3],))
def called_like_function(xs: List[int]) -> int:
    b = Bag(xs)
    return b(2)


@program(args=lambda: ([1, 2, 3],), torchscript=False)
def str_and_bool(xs: List[int]) -> Tuple[str, bool, str]:
    b = Bag(xs)
    if b:
        return str(b), bool(Bag([1])), f"<{b}>"
    return "", False, ""


@program(args=lambda: ([1, 2, 3],))
def iterated_by_getitem(xs: List[int]) -> int:
    b = Bag(xs)
    total = 0
    for i in range(len(b)):
        total += b[i]
    for v in b.items:
        total += v
    return total


@program(args=lambda: (20.0,))
def properties(c: float) -> Tuple[float, float, int]:
    t = Temperature(c)
    before = t.fahrenheit
    t.celsius = 100.0
    t.celsius += 1.0
    return before, t.fahrenheit + t.celsius, t.writes


@program(args=lambda: (5,), torchscript=False)
def static_methods(n: int) -> Tuple[int, int]:
    t = Tools()
    return t.scaled(n), Tools.twice(n)


@program(args=lambda: (5,), torchscript=False)
def static_method_through_instance(n: int) -> Tuple[int, int]:
    t = Tools()
    return t.through_instance(n), t.twice(n)


@program(args=lambda: (5,), torchscript=False)
def class_constants(n: int) -> Tuple[int, int, int]:
    t = Constants()
    return t.by_constant(n), Constants.FACTOR, t.FACTOR


@program(args=lambda: (5,), torchscript=False)
def class_methods(n: int) -> int:
    return Constants.triple(n)


def _bump(c: Counter, by: int) -> Counter:
    c.count += by
    return c


@program(args=lambda: (5,))
def passed_to_functions(n: int) -> Tuple[int, int, bool]:
    c = Counter(n)
    d = _bump(c, 10)
    d.step()
    return c.count, d.count, c is d


@program(args=lambda: (5,))
def stored_in_list(n: int) -> List[int]:
    cs = [Counter(i) for i in range(n)]
    for c in cs:
        c.step(100)
    cs[0].count = -1
    return [c.count for c in cs]


@program(args=lambda: (5,))
def stored_in_dict(n: int) -> int:
    d: Dict[str, Counter] = {"a": Counter(n)}
    d["b"] = d["a"]
    d["b"].step(2)
    return d["a"].count


@program(args=lambda: (5,), torchscript=False)
def attribute_of_class_type(n: int) -> Tuple[int, int]:
    a = Node(n)
    b = Node(n + 1)
    a.next = b
    b.value = 50
    other = a.next
    assert other is not None
    return other.value, a.value


@program(args=lambda: ([4, 5, 6],), torchscript=False)
def linked_list(xs: List[int]) -> List[int]:
    head: Optional[Node] = None
    for x in xs:
        node = Node(x)
        node.next = head
        head = node
    out: List[int] = []
    cur = head
    while cur is not None:
        out.append(cur.value)
        cur = cur.next
    return out


@program(args=lambda: (1.0,))
def returned_to_python(x: float) -> Vec:
    v = Vec(x, 2.0)
    v.x += 1
    return v


@program(args=lambda: (Vec(1.0, 2.0),))
def argument_changed_in_place(v: Vec) -> float:
    v.x = 10.0
    v.y *= 3
    return v.norm2()


@program(args=lambda: ([Vec(3.0, 4.0), Vec(1.0, 0.0)],))
def list_of_instances_as_argument(vs: List[Vec]) -> Vec:
    best = vs[0]
    for v in vs:
        if v < best:
            best = v
    best.x = 7.0
    return best


@program(args=lambda: (3,))
def with_statement(n: int) -> Tuple[int, List[str]]:
    log: List[str] = []
    g = Guard(log)
    with g as inner:
        n += inner.depth
        log.append("body")
    return n + g.depth, log


@program(args=lambda: (3,))
def with_value(n: int) -> int:
    with NumberGuard(n) as k:
        r = k + 1
    return r


@program(args=lambda: (3,))
def with_nested(n: int) -> List[str]:
    log: List[str] = []
    with Guard(log):
        with Guard(log), Guard(log):
            log.append("in" + str(n))
    return log


@program(calls=lambda: [(3,), (-3,)])
def return_inside_with(n: int) -> Tuple[int, List[str]]:
    log: List[str] = []
    with Guard(log):
        if n > 0:
            return n, log
        log.append("negative")
    return -n, log


@program(args=lambda: ([],), raises=ValueError)
def raise_inside_with(log: List[str]) -> None:
    with Guard(log):
        log.append("before")
        if len(log) > 0:
            raise ValueError("inside")
        log.append("after")


@program(args=lambda: (4,))
def break_inside_with(n: int) -> List[str]:
    log: List[str] = []
    for i in range(n):
        with Guard(log):
            if i == 1:
                continue
            if i == 2:
                break
            log.append(str(i))
    return log


@program(args=lambda: (4,), torchscript=False)
def inheritance(n: int) -> Tuple[str, str]:
    return Derived(n).describe(), Base(n).describe()


@program(args=lambda: (4,), torchscript=False)
def isinstance_of_classes(n: int) -> Tuple[bool, bool]:
    d = Derived(n)
    return isinstance(d, Base), isinstance(Base(n), Derived)


@program(args=lambda: (torch.ones(2),))
def lists_and_dicts_as_attributes(x: torch.Tensor) -> torch.Tensor:
    s = Stack()
    s.push("a", x)
    s.push("b", x * 2)
    s.data[0] += 1
    a = s.get("a")
    c = s.get("c")
    assert a is not None
    if c is not None:
        return c
    b = s.get("b")
    if b is None:
        return a
    return a + b


@program(args=lambda: (torch.ones(2),))
def instance_returned_by_branches(x: torch.Tensor) -> float:
    if x.sum() > 1:
        v = Vec(1.0, 2.0)
    else:
        v = Vec(3.0, 4.0)
    return v.x


@program(args=lambda: (3,))
def instance_replaced_in_loop(n: int) -> float:
    v = Vec(1.0, 0.0)
    for i in range(n):
        v = v + Vec(float(i), 1.0)
    return v.norm2()


class Scheduler:
    def __init__(self, base: float, warmup: int):
        self.base = base
        self.warmup = warmup
        self.t = 0
        self.history: List[float] = []

    def rate(self) -> float:
        if self.t < self.warmup:
            return self.base * (self.t + 1) / self.warmup
        return self.base / float(self.t) ** 0.5

    def advance(self) -> float:
        r = self.rate()
        self.history.append(r)
        self.t += 1
        return r


@program(args=lambda: (6,))
def learning_rate_schedule(n: int) -> Tuple[List[float], int]:
    s = Scheduler(0.1, 3)
    while s.t < n:
        s.advance()
    return s.history, s.t


class Matrix:
    def __init__(self, data: torch.Tensor):
        self.data = data

    def __matmul__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.data @ other.data)

    def __iadd__(self, k: float) -> "Matrix":
        self.data += k
        return self

    def __rmul__(self, k: float) -> "Matrix":
        return Matrix(self.data * k)

    def __radd__(self, k: float) -> "Matrix":
        return Matrix(self.data + k)


@program(args=lambda: (torch.eye(2),), torchscript=False)
def matmul_and_in_place_operators(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    m = Matrix(x)
    m += 1.0
    p = m @ m
    return p.data, m.data


@program(args=lambda: (torch.eye(2),), torchscript=False)
def reflected_operators(x: torch.Tensor) -> torch.Tensor:
    return (1.0 + 2.0 * Matrix(x)).data


class _Metres:
    def __init__(self, n: float):
        self.n = n

    def __add__(self, other: Any) -> "_Metres":
        if not isinstance(other, _Metres):
            return NotImplemented
        return _Metres(self.n + other.n)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, _Metres):
            return self.n == other.n
        return NotImplemented

    def __lt__(self, other: Any) -> bool:
        return NotImplemented


class _Feet:
    def __init__(self, n: float):
        self.n = n

    def __radd__(self, other: _Metres) -> _Metres:
        return _Metres(other.n + self.n / 4)

    def __gt__(self, other: _Metres) -> bool:
        return self.n / 4 > other.n


@program(args=lambda: (2.0,), torchscript=False)
def declined_operators(n: float) -> Tuple[float, bool, bool, bool]:
    whole = _Metres(n) + _Metres(1.0) + _Feet(4.0)
    return whole.n, _Metres(n) == _Metres(n), _Metres(n) == _Feet(n), _Metres(n) < _Feet(n)


@program(args=lambda: (2.0,), raises=TypeError, torchscript=False)
def declined_by_both(n: float) -> float:
    return (_Metres(n) + n).n


@program(args=lambda: ([1, 2.0],), torchscript=False)
def declined_at_run_time(values: List[Any]) -> List[bool]:
    one = _Metres(2.0)
    return [one == v for v in values] + [one == one]


class _Doubled(_Metres):
    def __radd__(self, other: _Metres) -> _Metres:
        return _Metres(other.n + 2 * self.n)


@program(args=lambda: (2.0,), torchscript=False)
def derived_operand_is_asked_first(n: float) -> float:
    return (_Metres(n) + _Doubled(n)).n


class _Record:
    def __init__(self, n: int):
        self.n = n

    def __getattr__(self, name: str) -> int:
        return len(name) + self.n


@program(args=lambda: (2,), torchscript=False)
def attributes_made_up(n: int) -> int:
    record = _Record(n)
    return record.n + record.length * 10 + record.x


@program(args=lambda: (7,), torchscript=False)
def power_with_a_modulus(n: int) -> Tuple[int, int, int]:
    return pow(n, 5, 13), pow(n, 2, None), pow(base=2, exp=n, mod=5)
