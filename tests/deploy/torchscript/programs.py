"""Programs for each part of TorchScript's language, of which archives are made.

In: functions and modules as a user of torch.jit writes them. Out: `CASES`.
"""

# ruff: noqa
# The code here is what users write.

import math
import warnings
from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.deploy.torchscript.compared import Case

CASES: List[Case] = []


def x3(seed: int = 0) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def program(*calls: Any, grad: bool = False, attributes: Tuple[str, ...] = ()):
    def add(made: Any) -> Any:
        def make() -> Any:
            torch.manual_seed(3)
            is_class = isinstance(made, type)
            return torch.jit.script(made() if is_class else made)

        def fresh() -> List[Any]:
            return [c() if callable(c) else c for c in calls]

        CASES.append(Case(made.__name__, make, fresh, attributes, grad))
        return made

    return add


def X() -> Tuple[Tensor]:
    return (x3(),)


# ---- dtypes, layouts, devices -------------------------------------------------------------------


@program(X, lambda: (x3().double(),), lambda: (x3().half(),))
def dtypes_compared(x: Tensor):
    if x.dtype == torch.float16:
        return x.float()
    if x.dtype in [torch.float64, torch.int64]:
        x = x + 1
    return x.to(torch.int32) if x.dtype != torch.float32 else x * 2


@program(X, lambda: (x3().to(torch.bfloat16),))
def dtype_returned(x: Tensor):
    return x.dtype, [x.dtype, torch.float64], x.layout, str(x.device), x.is_cuda


@program(lambda: (x3(), 7), lambda: (x3(), 3), lambda: (x3(), torch.float64), lambda: (x3(), None))
def dtype_given(x: Tensor, dtype: Optional[int] = None):
    if dtype is None:
        dtype = x.dtype
    return torch.zeros([2], dtype=dtype), x.to(dtype), torch.full([2], 3, dtype=dtype)


@program(lambda: (x3(), 2), lambda: (x3(), 2.5))
def float_given(x: Tensor, k: float):
    return k / 3, x * k, [k]


@program(X)
def devices(x: Tensor):
    d = torch.device("cpu")
    return x.to(d), torch.zeros([1], device=d), d.type, x.device == d, d.index


@program(X)
def memory_formats(x: Tensor):
    y = x.view(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    return y, torch.empty_like(y).zero_(), y.is_contiguous(memory_format=torch.channels_last)


# ---- numbers, strings ---------------------------------------------------------------------------


@program((7, 3), (-7, 3), (7, -3), (-7, -3))
def integers(a: int, b: int):
    return a // b, a % b, a / b, a**2, a**b, -a, abs(a), a & b, a | b, a ^ b, a << 2, a >> 1


@program((7.5, 2.0), (-7.5, 2.0), (0.5, 3.0), (2.5, -1.5))
def floats(a: float, b: float):
    return a // b, a % b, a / b, a**2, round(a), int(a), float(int(b)), max(a, b), min(a, 2), abs(a)


@program((0.3, 2.7), (0.9, 1.5))
def mathematics(a: float, b: float):
    one = [math.sqrt(b), math.exp(a), math.log(b), math.log(b, 2.0), math.log10(b), math.log1p(a)]
    two = [math.sin(a), math.cos(a), math.tan(a), math.asin(a), math.acos(a), math.atan(a)]
    three = [math.atan2(a, b), math.sinh(a), math.cosh(a), math.tanh(a), math.fmod(b, a)]
    four = [math.pow(a, b), math.copysign(a, -b), math.degrees(a), math.radians(b), math.gamma(b)]
    return one, two, three, four, math.floor(b), math.ceil(b), math.gcd(12, 18), math.factorial(5)


@program(X)
def special_numbers(x: Tensor):
    return x * float("inf"), float("nan"), -math.inf, math.pi, [1e-30, 1e300], x + 1e-7, 3.0


@program((2.0,))
def complex_numbers(a: float):
    z = complex(a, -1.0)
    return z * z, z + 1, abs(z), 2j


@program(
    lambda: (torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(1)),)
)
def complex_tensors(z: Tensor):
    return z.abs(), z.real, z.imag, torch.view_as_real(z), z * 2j, z.conj().resolve_conj()


@program(("Gruss, 世界", 3), ("a'b\"c\\d\n\t", 0))
def strings(s: str, n: int):
    t = s.upper() + f"{n}-{s}" + "%d %s" % (n, s) + "{}: {}".format(n, s)
    more = [s.strip(), s.replace("a", "b"), "é\x00\u2028"]
    return t, more, len(s.split(",")), "a" in s, s.startswith("G"), ",".join(["x", s]), s == "é"


@program((5,))
def percent(n: int):
    return "%d" % n, "%s%%" % "a", "%f" % 2.0, "%i and %s" % (n, "b")


@program((["b", "a"], {"k": 2, "j": 1}))
def sorting(words: List[str], table: Dict[str, int]):
    a = sorted(words)
    words.sort(reverse=True)
    pairs = [(2, "b"), (1, "c")]
    pairs.sort()
    return a, words, sorted(table.keys()), pairs, sorted([3, 1, 2]), sorted([1.5, -1.0])


# ---- lists, dicts, tuples -----------------------------------------------------------------------


@program(X)
def lists(x: Tensor):
    xs = [x, x + 1]
    xs += [x * 2]
    xs.append(x)
    xs.insert(0, x - 1)
    last = xs.pop()
    ys = [[1], [2, 3]]
    ys[0] += [5]
    ys.extend([[7]])
    del ys[1]
    zs = [0] * 3
    zs[1] = 4
    zs.reverse()
    return xs[1:], last, ys, zs, len(xs), zs.index(4), zs.count(0), [v for v in zs], 4 in zs, xs[-1]


@program((3,))
def list_comparisons(n: int):
    return [1, 2] == [1, 2], [1] != [n], ["a"] == ["b"], list(range(n, 0, -1))


@program(X)
def dicts(x: Tensor):
    a: Dict[int, Tensor] = {1: x}
    a[2] = x + 1
    b: Dict[float, str] = {0.5: "half"}
    c: Dict[bool, List[int]] = {True: [1]}
    d: Dict[str, Tuple[int, Tensor]] = {"k": (1, x)}
    n = 0
    for k in a:
        n += k
    for k2, v2 in d.items():
        n += v2[0]
    return a, b.get(0.5), b.get(1.0, "none"), c, d, n, list(a.keys()), 2 in a, len(d), a.pop(1)


@program(lambda: (torch.tensor([1.0, 2.0]),))
def tensor_keys(x: Tensor):
    d: Dict[Tensor, int] = {}
    d[x] = 1
    return d[x], len(d)


@program(X)
def nested_tuples(x: Tensor):
    a = (1, (x, ("s", [2.0])))
    b, (c, (d, e)) = a
    return a[1][1], b, c, d, e, (x,), a[:1]


class Point(NamedTuple):
    x: Tensor
    y: int = 3
    name: str = "p"


@program(X)
def named_tuples(x: Tensor):
    p = Point(x)
    q = Point(x + 1, y=5)
    return p, q.x, q.y + p.y, p.name, p[1]


class Color(Enum):
    RED = "r"
    BLUE = "b"


class Level(Enum):
    LOW = 0.5
    HIGH = 2.5


class Kind(Enum):
    A = 1
    B = 2


@program((Color.BLUE, Kind.A), (Color.RED, Kind.B))
def enums(c: Color, k: Kind):
    levels = [Level.LOW, Level.HIGH]
    picked = levels[0] if k == Kind.A else levels[1]
    return c.value, c.name, k == Kind.B, k != Kind.B, picked.value, [m.value for m in Kind], c


@program((None, 1), (2, "s"), (3, 4))
def optional_and_union(a: Optional[int], b: Union[int, str]):
    n = 0
    if a is not None:
        n += a
    if isinstance(b, str):
        return b + str(n), a
    return str(b + n), a


@program((1,), ("a",), (2.5,), ([1, 2],))
def anything(v: Any):
    if isinstance(v, int):
        return "int" + str(v + 1)
    if isinstance(v, str):
        return "str" + v
    if torch.jit.isinstance(v, List[int]):
        return "list" + str(len(v))
    return "other"


# ---- classes ------------------------------------------------------------------------------------


@torch.jit.script
class Vector:
    def __init__(self, a: float, b: float = 1.0):
        self.a = a
        self.b = b
        self.log: List[str] = []

    def __add__(self, other: "Vector") -> "Vector":
        return Vector(self.a + other.a, self.b + other.b)

    def __eq__(self, other: "Vector") -> bool:
        return self.a == other.a and self.b == other.b

    def __lt__(self, other: "Vector") -> bool:
        return self.a < other.a

    def __getitem__(self, k: int) -> float:
        return self.a if k == 0 else self.b

    def __len__(self) -> int:
        return 2

    def scale(self, k: float) -> "Vector":
        self.log.append("scale")
        self.a *= k
        return self

    @property
    def norm(self) -> float:
        return math.sqrt(self.a * self.a + self.b * self.b)

    @staticmethod
    def unit() -> "Vector":
        return Vector(1.0, 0.0)


@program((2.0,))
def plain_classes(k: float):
    v = Vector(k) + Vector.unit()
    w = v.scale(2.0)
    vs = [v, Vector(0.5)]
    vs.sort()
    return v.a, w.norm, v == w, v[1], len(v), len(v.log), vs[0].a, v < vs[0]


@torch.jit.script
class Guarded:
    def __init__(self, log: List[str]):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, a: Any, b: Any, c: Any):
        self.log.append("exit")


@program((2,))
def with_a_class(n: int):
    log: List[str] = []
    with Guarded(log) as g:
        log.append(str(n))
    return log, len(g.log)


@program(lambda: (x3().requires_grad_(),))
def with_no_grad(x: Tensor):
    y = x * 2
    with torch.no_grad():
        z = y * 2
    return y, z, torch.is_grad_enabled()


# ---- flow ---------------------------------------------------------------------------------------


@program((0,), (3,), (12,))
def loops(n: int):
    total, k = 0, 0
    while k < n:
        k += 1
        if k % 2 == 0:
            continue
        if k > 8:
            break
        total += k
    for i in range(n):
        for j in range(i):
            if j == 3:
                break
            total += j
    for i, w in enumerate(["a", "b"]):
        total += i * len(w)
    for a, b in zip([1, 2], [3, 4]):
        total += a * b
    return total, k


@program(lambda: (x3(), 0), lambda: (x3(), 1), lambda: (x3(), 2))
def early_returns(x: Tensor, n: int):
    if n == 0:
        return x
    for k in range(4):
        if k == n + 1:
            return x * k
        x = x + 1
    return x


def helper(x: Tensor, k: int) -> Tensor:
    return x * k


@program(X)
def forks(x: Tensor):
    a = torch.jit.fork(helper, x, 2)
    b = torch.jit.fork(helper, x, 3)
    return torch.jit.wait(a) + torch.jit.wait(b)


class Mine(Exception):
    pass


@program((0,), (1,), (2,), (3,), (4,), (-1,))
def exceptions(n: int):
    assert n >= 0, "n is negative"
    if n == 1:
        raise ValueError("one")
    if n == 2:
        raise KeyError("two")
    if n == 3:
        raise NotImplementedError
    if n == 4:
        raise RuntimeError(f"four {n}")
    return n


@program(X)
def out_of_range(x: Tensor):
    return [1, 2][x.size(0)]


@program(X)
def shapes_that_differ(x: Tensor):
    return x + torch.zeros([5])


@program((2, "a"))
def prints(n: int, s: str):
    print("n is", n, s)
    print()
    warnings.warn("careful")
    return n


# ---- tensors ------------------------------------------------------------------------------------


@program(X)
def in_place(x: Tensor):
    x += 1
    x.mul_(2).clamp_(min=0.0)
    x[0] = 5.0
    x[1, 2] -= 3
    x[:, 1:3] *= 2
    x[x > 8] = 0
    y = x.view(-1)
    y[0] = 7.0
    return x, y


@program(X)
def out_variants(x: Tensor):
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    values, places = torch.empty([3]), torch.empty([3], dtype=torch.int64)
    torch.max(x, 1, max=values, max_values=places)
    return out, values, places


@program((3, 2.5))
def constructors(n: int, v: float):
    a = (
        torch.tensor([1, n]),
        torch.tensor([v, 1.0]),
        torch.tensor(n),
        torch.tensor([[True], [False]]),
    )
    b = torch.full([2], n), torch.full([2], v), torch.arange(n), torch.arange(0.0, 2.0, 0.5)
    c = torch.ones(2, n), torch.zeros([n], dtype=torch.int64), torch.eye(n), torch.linspace(0, 1, n)
    d = torch.as_tensor([n, n]), torch.tensor(v, dtype=torch.float64), torch.scalar_tensor(v)
    return a, b, c, d


@program(lambda: (torch.arange(6).view(2, 3),))
def to_python(x: Tensor):
    a: List[List[int]] = x.tolist()
    return (
        a,
        x[0, 1].item(),
        int(x[1, 1]),
        float(x[0, 2]),
        bool(x[0, 0]),
        x.size(),
        x.shape[1],
        x.numel(),
    )


@program(lambda: (x3(), torch.tensor([2, 0]), torch.tensor(1)))
def indexing(x: Tensor, i: Tensor, j: Tensor):
    y = x[j]
    y += 1
    return (
        x[i],
        x[:, i],
        x[i, i],
        x[..., 0],
        x[None, 1],
        x[-1],
        x[::2, 1:],
        x[j],
        x[:, j],
        x[x > 0],
        y,
    )


@program(X, grad=True)
def results_with_names(x: Tensor):
    v, i = x.max(1)
    s = torch.sort(x, descending=True)
    k = torch.topk(x, 2)
    return v, i, s, k, x.min(0).values, torch.var_mean(x, 1), x.unbind(1), x.split(2, 1), x.chunk(2)


@program(lambda: (x3().requires_grad_(),), grad=True)
def functions_of_nn(x: Tensor):
    a = F.softmax(x, 1) + F.log_softmax(x, dim=-1) + F.gelu(x, approximate="tanh") + F.elu(x)
    b = F.layer_norm(x, [4]) + F.normalize(x, dim=1) + F.leaky_relu(x, 0.2) + F.softplus(x)
    c = F.cross_entropy(x, torch.tensor([0, 1, 2])) + F.mse_loss(x, x * 2, reduction="sum")
    return a, b, c, F.pad(x, [1, 2], value=2.0), F.one_hot(torch.tensor([1, 3]), 4)


@program(X)
def random_numbers(x: Tensor):
    torch.manual_seed(4)
    a = torch.rand(2, 3), torch.randn([3]), torch.randint(0, 9, [4]), torch.rand_like(x)
    return a, F.dropout(x, 0.5, True), torch.bernoulli(torch.full([5], 0.5)), torch.randperm(4)
