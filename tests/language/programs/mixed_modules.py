"""Many features in one small program each: functions as values, text, shapes, modules."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.language.support import call, jit, module_program, program, via


def _compose(*fns: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for f in fns:
            x = f(x)
        return x

    return run


@program(args=lambda: (torch.linspace(-1, 1, 4),), torchscript=False)
def composed(x: Tensor) -> Tensor:
    return _compose(torch.relu, torch.exp)(x)


@program(args=lambda: (3,), torchscript=False)
def closure_counter(n: int):
    state = {"n": n}

    def bump(by: int = 1) -> int:
        state["n"] += by
        return state["n"]

    a = bump()
    b = bump(5)
    return a, b, state


@program(calls=lambda: [(3,), (0,)], torchscript=False)
def lambda_in_branches(n: int):
    if n > 1:
        f = lambda v: v + 1
    else:
        f = lambda v: v - 1
    return f(n)


@program(args=lambda: ([3, 1],), torchscript=False)
def method_as_value(xs: List[int]):
    add = xs.append
    add(5)
    up = "abc".upper
    return xs, up()


@program(args=lambda: (torch.ones(2),), torchscript=False)
def bound_tensor_method(x: Tensor):
    f = x.add
    g = torch.Tensor.mul
    return f(1), g(x, 3), getattr(x, "sum")(), Tensor.neg(x)


@program(args=lambda: (["b", "a"],), torchscript=False)
def map_methods(xs: List[str]):
    return (
        list(map(str.upper, xs)),
        sorted(xs, key=str.lower),
        [len(s) for s in map(str, [1, 22])],
        max(xs, key=len),
        list(map(int, "123")),
        list(map(lambda a, b: a + str(b), xs, [1, 2])),
    )


@program(args=lambda: (5,), torchscript=False)
def generator_expressions(n: int):
    return (
        sum(i * i for i in range(n)),
        any(i > 3 for i in range(n)),
        list(i for i in range(3)),
        tuple(x * 2 for x in [1, 2]),
        max(abs(i - 3) for i in range(n)),
        ",".join(str(i) for i in range(n)),
        dict((i, i * 2) for i in range(2)),
        set(i % 2 for i in range(n)) == {0, 1},
        min((i for i in [3, 1]), default=0),
    )


@program(args=lambda: (3, 0), torchscript=False)
def short_circuit(a: int, b: int):
    log = []

    def note(v: int) -> int:
        log.append(v)
        return v

    r = note(a) and note(b) and note(9)
    s = note(b) or note(a) or note(8)
    t = note(1) if b else note(2)
    return r, s, t, log


@program(calls=lambda: [({"a": None, "b": 2},)], torchscript=False)
def dict_optional_values(d: Dict[str, Optional[int]]):
    out = 0
    for k in d:
        v = d[k]
        if v is not None:
            out += v
    d["c"] = None
    return out, d.get("a"), d.get("zz", 5), len([v for v in d.values() if v])


@program(args=lambda: (torch.arange(5),), torchscript=False)
def tensor_truthiness(x: Tensor):
    n = 0
    for v in x:
        if v % 2 == 0:
            n += int(v)
        elif v:
            n += 100
    return n, bool(x[1]) and not x[0], int(x.sum()) if x.any() else -1


@program(
    args=lambda: (torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),), torchscript=False
)
def reductions(x: Tensor):
    v, i = x.max(dim=1)
    vals, idx = torch.sort(x, dim=0, descending=True)
    return (
        v,
        i,
        x.argmin(1),
        vals,
        idx,
        x.std(dim=0, unbiased=False),
        x.var(),
        x.norm(p=1),
        x.cumsum(0),
        x.prod(1),
        torch.logsumexp(x, 1),
        x.median(),
        x.quantile(0.5),
        x.topk(2, dim=1)[0],
        x.aminmax()[1],
    )


@program(args=lambda: (torch.zeros(4, 4),), torchscript=False)
def scatter_like(x: Tensor):
    idx = torch.tensor([[0, 1], [2, 3]])
    x.scatter_(1, idx, 1.0)
    x.index_add_(0, torch.tensor([0, 3]), torch.ones(2, 4))
    x[torch.tensor([1, 2]), torch.tensor([3, 0])] = 7
    x.masked_fill_(x > 6, -1)
    x[1:3, 1:3] = torch.eye(2)
    x.index_put_((torch.tensor([0]),), torch.tensor(2.0), accumulate=True)
    return x, torch.gather(x, 1, idx), x.nonzero(), x.take(torch.tensor([0, 5])), torch.where(x > 0)


class Tree(NamedTuple):
    value: int
    children: List[Any]


@program(args=lambda: (Tree(1, [Tree(2, []), Tree(3, [Tree(4, [])])]),), torchscript=False)
def tree_sum(t: Tree) -> int:
    total = 0
    stack: List[Tree] = [t]
    while len(stack) > 0:
        top = stack.pop()
        total += top.value
        for child in top.children:
            stack.append(child)
    return total


@program(args=lambda: (7,), torchscript=False)
def fstring_nesting(n: int):
    w = 6
    x = 3.14159
    return (
        f"{n:0{w}d}|{x:.{n - 4}e}|{{}}|{n=}|{'a' if n else 'b'}|{[1, 2]!r}|{x:+.1f}|{n:#x}|"
        + f"{10**6:,}|{0.25:%}|{'s':^5}|{n!s:>4}"
    )


@program(args=lambda: ("x={} y={:.1f} {name}",), torchscript=False)
def format_calls(s: str):
    return (
        s.format(1, 2.25, name="n"),
        "%s-%5.2f-%03d-%r" % ("a", 1.5, 7, "q"),
        "{0}{1}{0}".format("a", "b"),
        "%d%%" % 5,
        "%s" % (3,),
        "{:>{w}}".format("r", w=4),
    )


@program(args=lambda: (torch.ones(2, 3),), torchscript=False)
def shape_arith(x: Tensor):
    b, c = x.shape
    n = x.shape[0] * x.size(-1)
    s = list(x.shape) + [1]
    t = (*x.shape, 2)
    y = x.reshape(-1, *x.shape[1:]).repeat(*[2] * 2)
    return (
        n,
        s,
        t,
        y,
        x.view(x.shape[::-1]),
        torch.zeros(x.shape),
        x.shape == (2, 3),
        x.shape[:1] + (5,),
        len(x.shape),
        x.shape.numel(),
        torch.Size([2, 3]) == x.shape,
        b / c,
    )


@program(args=lambda: (2,), torchscript=False)
def while_with_complex_state(n: int):
    a, b = 0, 1
    seen: Dict[int, List[int]] = {}
    while b < 60:
        a, b = b, a + b
        if a % 2 == 0:
            seen.setdefault(a % 3, []).append(a)
        elif a > 30:
            continue
        for i in range(a % 4):
            if i == n:
                break
        else:
            seen[100 + a] = [i for i in range(2)]
    return a, b, seen


@program(args=lambda: (torch.ones(3, requires_grad=True),), grad=True, torchscript=False)
def grads_through_control(x: Tensor):
    total = x.sum() * 0
    for i in range(4):
        if i % 2 == 0:
            total = total + (x * i).sin().sum()
        else:
            with torch.no_grad():
                total = total + x.sum()
    y = x.detach() * x
    return total * y.prod()


@program(args=lambda: (torch.ones(3, requires_grad=True),), torchscript=False)
def autograd_inside(x: Tensor):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, [x])
    return g * 2


class Matrix:
    def __init__(self, rows: List[List[float]]):
        self.rows = rows

    def __matmul__(self, o: "Matrix") -> "Matrix":
        return Matrix([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in self.rows])

    def __getitem__(self, ij: Tuple[int, int]) -> float:
        return self.rows[ij[0]][ij[1]]

    def __setitem__(self, ij: Tuple[int, int], v: float):
        self.rows[ij[0]][ij[1]] = v

    def __rmul__(self, k: float) -> "Matrix":
        return Matrix([[k * v for v in r] for r in self.rows])

    def __abs__(self) -> float:
        return math.sqrt(sum(v * v for r in self.rows for v in r))

    def __invert__(self):
        return Matrix([list(c) for c in zip(*self.rows)])

    def __int__(self):
        return 4

    def __float__(self):
        return 2.5

    def __round__(self, n: int = 0):
        return 7

    def __format__(self, spec: str) -> str:
        return "M" + spec

    def __ge__(self, o: "Matrix") -> bool:
        return abs(self) >= abs(o)

    def __delitem__(self, i: int):
        del self.rows[i]


@program(args=lambda: (2.0,), torchscript=False)
def matrix_class(k: float):
    a = Matrix([[1.0, 2.0], [3.0, 4.0]])
    b = k * a
    c = a @ b
    c[0, 1] = -1.0
    d = ~c
    del a[0]
    return (
        c.rows,
        d[1, 0],
        round(abs(b), 3),
        b >= a,
        len(a.rows),
        int(a),
        float(a),
        f"{a:>x}",
        round(a, 2),
    )


@module_program(args=lambda: (torch.ones(2, 3),), attributes=("log",), torchscript=False)
class HooksAndProps(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self._gain = 2.0
        self.log: List[str] = []

    @property
    def gain(self) -> float:
        return self._gain * 2

    @gain.setter
    def gain(self, v: float):
        self._gain = v

    def forward(self, x):
        self.gain = self.gain + 1
        self.log.append("f")
        return self.fc(x) * self.gain


@module_program(args=lambda: (torch.ones(2, 3),), torchscript=False)
class NestedSubmodules(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList(
            [nn.ModuleDict({"l": nn.Linear(3, 3), "n": nn.LayerNorm(3)}) for _ in range(2)]
        )
        self.b = nn.Sequential(nn.Identity(), nn.Flatten(0))

    def forward(self, x):
        for d in self.a:
            x = d["n"](d["l"](x))
            for k, m in d.items():
                if isinstance(m, nn.Linear) and k == "l":
                    x = x + m.weight.sum() + m.in_features
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                x = x + p.mean()
        return self.b(x), sum(1 for _ in self.modules()), self.training


@module_program(args=lambda: (torch.ones(2, 5, 4), torch.tensor([5, 3])), torchscript=False)
class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.attn = nn.MultiheadAttention(6, 2, batch_first=True)
        self.emb = nn.Embedding(10, 6)

    def forward(self, x, lengths):
        out, (h, c) = self.rnn(x)
        mask = torch.arange(x.size(1))[None, :] >= lengths[:, None]
        y, w = self.attn(out, out, out, key_padding_mask=mask)
        return y + self.emb(lengths)[:, None], w is not None, h.shape, c.sum()


class _Mixin:
    def scaled(self, x):
        return x * self.scale

    @staticmethod
    def half(x):
        return x / 2

    @classmethod
    def make(cls):
        return cls.__name__


@module_program(args=lambda: (torch.ones(2),), torchscript=False)
class WithMixin(_Mixin, nn.Module):
    scale: float = 3.0

    def forward(self, x):
        return self.scaled(self.half(x)) + len(self.make())


@module_program(
    calls=lambda: [
        (torch.ones(2),),
        (torch.ones(2), torch.ones(2), 3.0),
        call(torch.ones(2), scale=2.0),
    ],
    torchscript=False,
)
class DefaultsInForward(nn.Module):
    def forward(
        self,
        x: Tensor,
        y: Optional[Tensor] = None,
        scale: float = 1.0,
        flags: Tuple[bool, bool] = (True, False),
    ):
        if y is not None and flags[0]:
            x = x + y
        return (x * scale,) if flags[1] else x * scale


@module_program(args=lambda: (torch.ones(1, 3, 8, 8),), grad=True, torchscript=False)
class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)  # whose gradient would be rounding
        self.bn = nn.BatchNorm2d(4)
        self.c2 = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.pool = nn.AdaptiveAvgPool2d((2, 2))

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.bn(self.c1(x))), 2)
        z = self.c2(y)
        return self.pool(z).flatten(1), F.interpolate(
            z, size=x.shape[-2:], mode="bilinear", align_corners=False
        )


@module_program(
    calls=lambda: [
        (torch.ones(2),),
        call(torch.ones(2), scale=3),
        call(torch.ones(2), scale=3, bias=torch.ones(2)),
    ],
    torchscript=False,
)
class Options(nn.Module):
    def forward(self, x: Tensor, **options):
        y = x * options.get("scale", 2)
        if "bias" in options:
            y = y + options["bias"]
        return y, sorted(options)
