"""Many features in one small program each, as scripts have them."""

import collections
import dataclasses
import enum
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.language.support import call, module_program, program


@program(args=lambda: ([3, 1, 2],), torchscript=False)
def star_args_in_middle(xs: List[int]):
    a, *b, c = xs
    first, *_ = b + [9]
    return a, b, c, first, [*xs, *b], (*xs, 1)


@program(args=lambda: ("a,b;c",), torchscript=False)
def str_chain(s: str):
    return (
        [p.split(",") for p in s.split(";")],
        s.upper().center(9, "*"),
        s.zfill(8),
        s.title(),
        s.rjust(7),
        s.expandtabs(),
        s.splitlines(),
        s.casefold(),
    )


@program(args=lambda: (5,), torchscript=False)
def lambda_default_capture(n: int):
    fs = [lambda x, k=k: x * k for k in range(n)]
    return [f(2) for f in fs]


@program(args=lambda: (5,), torchscript=False)
def nested_def_nonlocal_read(n: int):
    total = [0]

    def add(k: int) -> None:
        total[0] += k

    for i in range(n):
        add(i)
    return total[0]


@program(args=lambda: (3,), torchscript=False)
def conditional_expression_types(n: int):
    x = 1 if n > 2 else 2.5
    y = "a" if n > 5 else None
    z = [x] if y is None else []
    return x, y, z


@program(args=lambda: ([1, 2, 3, 4],), torchscript=False)
def slice_assign(xs: List[int]):
    xs[1:3] = [9, 9, 9]
    xs[::2] = [0, 0, 0]
    del xs[-1:]
    xs *= 2
    return xs


@program(args=lambda: ({"a": 1},), torchscript=False)
def dict_union(d: Dict[str, int]):
    e = d | {"b": 2}
    e |= {"c": 3}
    return (
        e,
        {**d, "z": 0},
        dict(a=1, b=2),
        dict([("k", 1)]),
        dict(zip(["x", "y"], [1, 2])),
        dict.fromkeys(["p", "q"], 0),
    )


@program(args=lambda: ([("b", 2), ("a", 1)],), torchscript=False)
def sort_pairs(ps: List[Tuple[str, int]]):
    return sorted(ps), sorted(ps, key=lambda p: -p[1]), max(ps, key=lambda p: p[1]), min(ps)


@program(args=lambda: (torch.arange(6.0).reshape(2, 3),), torchscript=False)
def tensor_iter_unpack(x: Tensor):
    a, b = x
    c, d = x.shape
    (e, f), g = (x[0, 0], x[0, 1]), x[1]
    return a + b, c * d, e + f, g


@program(args=lambda: (torch.arange(6.0),), torchscript=False)
def inplace_chain(x: Tensor):
    y = x.clone()
    y[y > 2] *= -1
    y[1:3].fill_(7)
    y.view(2, 3)[0, 0] = 5
    z = y.view(2, 3)
    z += 1
    y -= z.view(-1) * 0.5
    return y, z, x


@program(
    args=lambda: (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),), torchscript=False
)
def linalg(x: Tensor):
    q, r = torch.linalg.qr(x)
    u, s, v = torch.linalg.svd(x)
    return (
        (q @ r).allclose(x, atol=1e-5),
        torch.linalg.det(x),
        s,
        torch.linalg.norm(x),
        torch.linalg.inv(x) @ x,
    )


@program(args=lambda: (torch.tensor([1.0, float("nan"), float("inf")]),), torchscript=False)
def nan_things(x: Tensor):
    return (
        torch.isnan(x),
        torch.nan_to_num(x),
        x == x,
        torch.isfinite(x).any().item(),
        math.isnan(float(x[1])),
    )


@program(args=lambda: (7, 2), torchscript=False)
def int_methods(a: int, b: int):
    return (
        a.bit_length(),
        (a / b).is_integer(),
        int("ff", 16),
        round(a / b, 1),
        -a // b,
        -a % b,
        a.__add__(b),
    )


@program(args=lambda: (2.5,), torchscript=False)
def float_methods(x: float):
    return x.hex(), x.as_integer_ratio(), round(x), round(-x), int(x), x // 1, x % 1, divmod(x, 1)


class Op(enum.IntEnum):
    ADD = 1
    MUL = 2


class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@program(calls=lambda: [(Op.ADD, 3), (Op.MUL, 3)], torchscript=False)
def int_enum(op: Op, n: int):
    return (
        op + n,
        op == 1,
        op in (Op.ADD,),
        Op(2).name,
        [o.name for o in Op],
        Op["ADD"].value,
        op is Op.ADD,
    )


@program(args=lambda: (Flag.A | Flag.B,), torchscript=False)
def flag_enum(f: Flag):
    return Flag.A in f, (f & Flag.B) == Flag.B, f.value


@dataclasses.dataclass(order=True)
class Item:
    rank: int
    name: str = dataclasses.field(default="x", compare=False)
    tags: List[str] = dataclasses.field(default_factory=list)

    def bump(self) -> "Item":
        return dataclasses.replace(self, rank=self.rank + 1)


@program(args=lambda: (3,), torchscript=False)
def dataclass_ops(n: int):
    a, b = Item(n), Item(n + 1, "y", ["t"])
    a.tags.append("new")
    return a < b, a == b, a.bump().rank, repr(b), dataclasses.asdict(b), sorted([b, a])[0].rank


class Base(ABC):
    @abstractmethod
    def value(self) -> int: ...
    def twice(self) -> int:
        return self.value() * 2


class One(Base):
    def value(self) -> int:
        return 1


@program(args=lambda: (3,), torchscript=False)
def abstract_base(n: int):
    one = One()
    return one.twice() + n, isinstance(one, Base)


class Temp:
    total: ClassVar[int] = 4

    def __init__(self, c: float):
        self._c = c

    @property
    def f(self) -> float:
        return self._c * 1.8 + 32

    @f.setter
    def f(self, v: float):
        self._c = (v - 32) / 1.8

    @classmethod
    def of_f(cls, v: float) -> "Temp":
        t = cls(0.0)
        t.f = v
        return t

    def __iadd__(self, d: float) -> "Temp":
        self._c += d
        return self

    def __repr__(self):
        return f"T({self._c:.1f})"

    def __hash__(self):
        return 7

    def __iter__(self):
        return iter([self._c, self.f])

    def __len__(self):
        return 2

    def __contains__(self, v: float):
        return v == self._c


@program(args=lambda: (10.0,), torchscript=False)
def class_protocols(c: float):
    t = Temp(c)
    t += 5
    t.f += 1.8
    u = Temp.of_f(50.0)
    lo, hi = u
    return (
        repr(t),
        str(u),
        len(t),
        round(lo),
        round(hi),
        list(u)[0] > 0,
        Temp.total + t.total,
        f"{u!r:>9}",
        hash(u),
        3.0 in t,
    )


@program(args=lambda: (3,), torchscript=False)
def early_returns(n: int) -> Union[int, str]:
    if n > 2:
        for i in range(n):
            if i == 1:
                return "found"
    return n


@program(args=lambda: (10,), torchscript=False)
def while_else_break(n: int):
    i = 0
    while True:
        i += 1
        if i > n:
            break
        if i % 2:
            continue
    else:
        i = -1
    while i > 5:
        i -= 3
    else:
        i += 100
    return i


@program(args=lambda: ([[1, 2], [3, 4]],), torchscript=False)
def matrix_lists(m: List[List[int]]):
    t = [list(r) for r in zip(*m)]
    flat = [v for r in m for v in r if v != 2]
    m[0], m[1] = m[1], m[0]
    return t, flat, m, sum(map(sum, m)), [[0] * 2 for _ in range(2)]


@program(args=lambda: (torch.ones(2, 2),), torchscript=False)
def tensor_kwargs(x: Tensor):
    return (
        x.sum(dim=0, keepdim=True),
        torch.add(x, 1, alpha=2),
        torch.cat(tensors=[x, x], dim=-1),
        x.mean(dtype=torch.float64),
        torch.full(size=(2,), fill_value=3.0),
        torch.arange(start=1, end=5, step=2),
        x.new_zeros(2, 3),
        x.expand(-1, 2),
        torch.empty_like(x).fill_(1),
    )


@program(
    args=lambda: (torch.ones(2, 3, dtype=torch.int32), torch.ones(3, dtype=torch.float16)),
    torchscript=False,
)
def promotion(a: Tensor, b: Tensor):
    return (
        a + b,
        a / 2,
        a // 2,
        a + 1.5,
        b * 2,
        a.float() + b.double(),
        a == b,
        True + a,
        a & 1,
        ~(a > 0),
    )


@program(args=lambda: (3, 4.0, "s", None, [1], (1, 2)), torchscript=False)
def many_args(a: int, b: float = 1.0, *rest: Any, key: int = 3):
    return a, b, len(rest), rest[0], key


@program(calls=lambda: [call(1, b=2), call(1, 2, c=4)], torchscript=False)
def keyword_only(a: int, b: int, *, c: int = 3):
    return a + b * c


@program(args=lambda: (torch.ones(3),), torchscript=False)
def assert_message_computed(x: Tensor):
    assert x.sum() == 3, f"sum is {x.sum()}"
    assert isinstance(x, Tensor) and x.dim() == 1, "bad"  # noqa: PT018
    return x


@program(args=lambda: (torch.ones(3),), raises=AssertionError, torchscript=False)
def assert_fails(x: Tensor):
    assert x.sum() > 3, "sum is " + str(int(x.sum()))
    return x


class MyError(Exception):
    def __init__(self, code: int, text: str = "none"):
        super().__init__(f"{code}: {text}")
        self.code = code


@program(args=lambda: (3,), raises=MyError, torchscript=False)
def custom_error(n: int):
    if n > 2:
        raise MyError(n, text="big")
    return n


@program(calls=lambda: [(0,), (1,), (2,)], raises=Exception, torchscript=False)
def python_errors(n: int):
    xs = [1, 2]
    d = {"a": 1}
    if n == 0:
        return xs[5]
    if n == 1:
        return d["b"]
    return 1 // (n - 2)


@program(args=lambda: (torch.ones(2), torch.ones(3)), raises=RuntimeError, torchscript=False)
def torch_error(a: Tensor, b: Tensor):
    return a + b


@program(args=lambda: (4,), torchscript=False)
def global_constant_uses(n: int):
    return n * LIMIT + TABLE["a"] + NAMES.index("y") + PAIR[1] + len(NAMES[0]) + GRID[1][0]


LIMIT = 5
TABLE = {"a": 7}
NAMES = ["x", "y"]
PAIR = (1, 2)
GRID = [[1, 2], [3, 4]]
NT = collections.namedtuple("NT", ["p", "q"])


@program(args=lambda: (NT(1, 2),), torchscript=False)
def plain_namedtuple(t: NT):
    u = NT(t.q, q=t.p)
    v = u._replace(p=9)
    return u, v.p, v._asdict(), u + t, list(v), NT._fields


@program(args=lambda: (torch.arange(10.0),), torchscript=False)
def chunk_loop(x: Tensor):
    out = []
    for i, part in enumerate(x.chunk(3)):
        out.append(part * i)
    for part in torch.split(x, 4):
        out.append(part.sum())
    return out


@program(args=lambda: (torch.ones(2, 3),), torchscript=False)
def type_checks(x: Tensor):
    return (
        isinstance(x, torch.Tensor),
        torch.is_tensor(x),
        type(x) is Tensor,
        isinstance(x.shape, torch.Size),
        isinstance(x.shape[0], int),
        x.is_floating_point(),
        callable(len),
    )


@program(args=lambda: (3,), torchscript=False)
def chained_assign_and_swap(n: int):
    a = b = c = [n]
    a.append(1)
    x, y = 1, 2
    x, y = y, x + y
    (p, q), r = (x, y), c
    i = 0
    arr = [5, 6, 7]
    i, arr[i] = 2, 9
    return a is b, c, x, y, p, q, r, i, arr


@program(args=lambda: (torch.zeros(2, 3, 4),), torchscript=False)
def ellipsis_index(x: Tensor):
    x[..., 1] = 1
    x[0, ..., 2:] = 2
    return x, x[..., None].shape, x[0, ...].sum(), x[:, None, ..., 0].shape, x[-1:, ::2]


@program(args=lambda: (b"bytes",), torchscript=False)
def bytes_arg(b: Any):
    return len(b)


@program(args=lambda: (5,), torchscript=False)
def walrus_uses(n: int):
    if (m := n * 2) > 5 and (k := m + 1) > 3:
        return m + k
    return [y := n, y**2]


@program(args=lambda: ([1.5, 2.5],), torchscript=False)
def statistics_by_hand(xs: List[float]):
    m = sum(xs) / len(xs)
    var = sum((x - m) ** 2 for x in xs) / (len(xs) - 1)
    return (
        m,
        math.sqrt(var),
        math.fsum(xs),
        math.prod(xs),
        math.hypot(3, 4),
        math.isclose(m, 2.0),
        math.comb(5, 2),
        math.floor(m),
        math.trunc(-m),
    )


@program(args=lambda: (torch.linspace(0, 1, 5),), torchscript=False)
def functional_mix(x: Tensor):
    return (
        F.relu(x - 0.5),
        F.pad(x, [1, 1]),
        F.one_hot(torch.tensor([0, 2]), 3),
        F.normalize(x, dim=0),
        F.cosine_similarity(x, x, dim=0),
        F.interpolate(x[None, None], scale_factor=2.0),
        F.mse_loss(x, x * 2),
        torch.einsum("i,j->ij", x, x),
        torch.meshgrid(x[:2], x[:2], indexing="ij")[0],
    )


@program(args=lambda: (3,), torchscript=False)
def sets(n: int):
    s = {1, 2, n}
    t = set([n, 4])
    s.add(9)
    return len(s | t), sorted(s & t), sorted(s - t), n in s, s >= {1}, frozenset([1]) == {1}


@module_program(args=lambda: (torch.ones(2, 4),), grad=True, torchscript=False)
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
        self.gate = nn.Parameter(torch.tensor(0.5))
        self.params = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(2)])
        self.act = F.silu
        self.names = ["a", "b"]
        self.cfg = {"scale": 2.0, "on": True}

    def forward(self, x):
        for i, b in enumerate(self.blocks):
            y = b(x)
            x = x + y * self.gate if i % 2 == 0 else self.act(y)
        for p in self.params:
            x = x * p if self.cfg["on"] else x
        return (
            x * self.cfg["scale"]
            + len(self.names)
            + len(self.blocks)
            + self.blocks[-1][0].weight.sum()
        )


@module_program(
    calls=lambda: [(torch.ones(2, 4),), (torch.ones(3, 4),)],
    attributes=("steps", "cache"),
    torchscript=False,
)
class Caches(nn.Module):
    cache: Optional[Tensor]

    def __init__(self):
        super().__init__()
        self.steps = 0
        self.cache = None
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.lin = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        if self.cache is None:
            self.cache = x.mean(0)
        else:
            self.cache = self.cache * 0.9 + x.mean(0) * 0.1
        self.steps += 1
        self.count += x.size(0)
        with torch.no_grad():
            self.lin.weight.mul_(0.5)
        return self.lin(x) - self.cache


@module_program(args=lambda: ({"x": torch.ones(2, 4), "y": torch.zeros(2, 4)},), torchscript=False)
class DictInOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"x": nn.Linear(4, 2), "y": nn.Linear(4, 3)})

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {k: self.layers[k](v) for k, v in batch.items()}


class _Iface(nn.Module):
    def forward(self, x):
        return self._impl(x) * self.k

    def _impl(self, x):
        raise NotImplementedError

    k = 3


@module_program(args=lambda: (torch.ones(2),), torchscript=False)
class Derived(_Iface):
    def _impl(self, x):
        return super().forward.__self__.k + x if False else x + 1

    def forward(self, x, *args, **kwargs):
        return super().forward(x) + len(args) + len(kwargs)


@module_program(
    args=lambda: (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)), grad=True, torchscript=False
)
class LossInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 5)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x, target):
        logits = self.net(x)
        return {
            "loss": self.loss(logits, target),
            "acc": (logits.argmax(-1) == target).float().mean(),
        }


@program(calls=lambda: [([1, True, 2.5, None],), ([True],), ([],)], torchscript=False)
def ints_and_bools(values: List[Any]) -> List[str]:
    kinds = []
    for v in values:
        if isinstance(v, int) and not isinstance(v, bool):
            kinds.append("int")
        elif isinstance(v, int):
            kinds.append(type(v).__name__)
        else:
            kinds.append("other")
    return kinds


@program(
    calls=lambda: [(torch.ones(2), True), (torch.ones(2), False)],
    torchscript=False,
)
def a_bool_is_an_int(x: Tensor, flag: bool) -> Tensor:
    v = True if flag else 3
    return x * v if isinstance(v, int) else x * 100


@program(calls=lambda: [(True, [True, False]), (False, [])], torchscript=False)
def counted_by_flags(flag: bool, flags: List[bool]):
    total = 0
    for _ in range(flag):
        total += 1
    return total, [list(range(f)) for f in flags], list(enumerate("ab", flag))


@program(
    calls=lambda: [({"of": {"a": 1}, "n": 3},), ({"of": [("q", 2)], "n": 3},)], torchscript=False
)
def copied_options(config: Dict[str, Any]):
    found = dict(config["of"])
    found["b"] = 1
    return found, config


@program(calls=lambda: [("a", 2), (None, 2), ("a", 0)], raises=AttributeError, torchscript=False)
def a_method_of_none(text: Optional[str], n: int):
    first = n[0] if n > 5 else n
    return text.upper(), first


@program(args=lambda: (torch.tensor([1.0, 3.0]), ([(1, 2), (4,)],)), torchscript=False)
def lengths_of_what_the_run_knows(x: Tensor, pairs: Any):
    for p, *q in pairs[0]:
        pass
    return max(x.tolist(), default=0), p, q


@program(args=lambda: (torch.ones(2, 3), torch.tensor([3, 2])), torchscript=False)
def sizes_that_the_run_knows(x: Tensor, size: Tensor):
    return x.view(size.tolist()), torch.zeros(size.tolist()), x.permute((3 - size).tolist()[::-1])
