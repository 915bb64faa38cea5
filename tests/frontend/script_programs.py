"""Programs of the script language: each is run as Python, as IR, and as tidied IR."""

# ruff: noqa
# The code here is what users write.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, relu

SCALE = 2.5
SHAPE = (2, 3)
DTYPE = torch.float64

Program = tuple[Callable[..., Any], Sequence[Sequence[Any]]]
PROGRAMS: list[Program] = []


def program(*argument_lists: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append((fn, argument_lists))
        return fn

    return add


def t(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = t(3, 4), t(3, 4, seed=1)


@program((t(5, 4), t(6, 4, seed=1)))
def intersection(boxes1, boxes2):
    x_min1, y_min1, x_max1, y_max1 = boxes1.chunk(4, dim=1)
    x_min2, y_min2, x_max2, y_max2 = boxes2.chunk(4, dim=1)
    all_pairs_min_ymax = torch.min(y_max1, y_max2.t())
    all_pairs_max_ymin = torch.max(y_min1, y_min2.t())
    heights = torch.clamp(all_pairs_min_ymax - all_pairs_max_ymin, min=0)
    widths = torch.clamp(torch.min(x_max1, x_max2.t()) - torch.max(x_min1, x_min2.t()), min=0)
    return heights * widths


@program((X, 0), (X, 3), (X, 7), (X, -1))
def nested_early_return(x, n: int):
    for i in range(n):
        for j in range(3):
            if i * j == 4:
                return x + i
            if j > i:
                break
            if j == 1:
                continue
            x = x * 2
    return x - 1


@program((X, 0), (X, 1), (X, 5))
def while_break(x, n: int):
    i = 0
    while True:
        if i >= n:
            break
        i += 1
        if i == 2:
            continue
        x = x + i
    return x, i


@program((X, 4))
def while_condition(x, n: int):
    k = 1
    while k < n and k != 3:
        x = torch.sin(x)
        k += 1
    return x * k


@program((X, 1), (X, 2), (X, 9))
def elif_chain(x, n: int):
    if n == 1:
        y = x + 1
    elif n == 2:
        y = x * 2
    else:
        y = -x
    return y


@program((X, True), (X, False))
def return_in_branch(x, flag: bool):
    if flag:
        return x.sum()
    y = x.exp()
    return y.mean()


@program((X, 1, 1), (X, 1, -1), (X, -1, 1), (X, -1, -1))
def return_deep(x, a: int, b: int):
    if a > 0:
        if b > 0:
            return x
        x = x + 1
    else:
        x = x + 2
    y = x * 2
    return y


@program((X, None), (X, Y))
def optional_mask(x, mask: Tensor | None = None):
    if mask is None:
        return x
    if mask is not None and mask.dim() > 5:
        return mask
    return x * mask


@program((X,))
def none_then_tensor(x):
    best = None
    for i in range(3):
        if best is None:
            best = x + i
        else:
            best = best * 2
    assert best is not None
    return best.sum()


@program((X,))
def loss_from_zero(x):
    loss = 0
    for i in range(x.shape[0]):
        loss = loss + x[i].sum()
    return loss / x.shape[0]


@program((X,))
def loss_from_zero_in_place(x):
    loss = 0.0
    for i in range(x.size(0)):
        loss += x[i].sum()
    return loss


@program((X,))
def in_place_chain(x):
    y = x.clone()
    y += 1
    y[0] = 5
    y[1:, ::2] *= 3
    y[y > 4] = 0
    y.add_(2).mul_(3)
    y.zero_()
    y[..., -1] += x[..., 0]
    return y


@program((X,))
def in_place_alias(x):
    y = x.clone()
    z = y
    z += 1
    v = y[0]
    v.mul_(10)
    return y, z


@program((X,))
def list_changed_in_the_next_iteration(x):
    known = [x[0]]
    other = [x[1]]
    for i in range(x.shape[0]):
        other.append(x[i] * 3)
        other[0] = x[i]
        other = known
    return known[0], len(known)


@program((X,))
def tuple_made_anew_of_one_list(x):
    rows = [x[0]]
    pair = (rows, x[0])
    for i in range(x.shape[0]):
        pair[0].append(pair[1])
        pair = (rows, x[i])
    return len(rows), pair[1]


@program((X,))
def empty_list_of_two_names(x):
    rows = []
    same = rows
    for i in range(x.shape[0]):
        rows += [x[i]]
    return rows, same


@program((X,))
def buffer_in_loop(x):
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[i].max()
    return out


@program((X, torch.tensor([0, 2]), X > 0))
def subscripts(x, idx, mask):
    a = x[0]
    b = x[-1, 2]
    c = x[1:, None, ::2]
    d = x[..., 0]
    e = x[idx]
    f = x[mask]
    g = x[:, [0, 2]]
    i, j = 1, 3
    h = x[i:j, j]
    index = (0, None, 1)
    k = x[index], x[slice(0, 2), 1]
    return a, b, c, d, e, f, g, h, k, x[None][0, idx, 1:]


@program((X,))
def shapes(x):
    n, m = x.shape
    last = x.shape[-1]
    twice = x.size(0) * 2
    shape = x.shape[:-1] + (m * 1, 1)
    y = x.reshape(shape).expand(n, m, 2).view(-1, 2)
    return y, x.ndim, x.dim(), len(x), len(x.shape), last, twice, x.numel(), x.shape == (3, 4)


@program((X,))
def dtypes_and_devices(x):
    if x.dtype == torch.float32 and x.device.type == "cpu":
        y = x.to(DTYPE).to(x.device)
    else:
        y = x.double()
    eps = torch.finfo(torch.float32).eps
    return y.to(torch.float32) + eps, torch.zeros(SHAPE, dtype=x.dtype, device=x.device)


@program((X, Y))
def operators(x, y):
    a = x + y - 1 * x / (y * y + 1)
    b = -a @ x.t()
    c = (x > 0) & (y < 0) | ~(x == y) ^ (x != y)
    d = 2 ** x.abs() % 3 // 1
    return a, b, c, d, 1 - x, 2 / (x + 10), abs(x), x**2, x @ x.mT


@program((7, 3), (-7, 3), (7.5, 2.0), (1, 1))
def numbers(a, b):
    c = a // b + a % b * 2 - a / b
    d = min(a, b, 2), max([a, b]), abs(a), int(c), float(a), round(c, 2)
    e = a < b < 10, a == b, not a > b, (a != b and b > 0) or a < 0
    f = math.sqrt(b) + math.pi, math.floor(c), divmod(a, b), pow(b, 2)
    return c, d, e, f, a if a > b else b, sum([a, b, 1]), SCALE * a


@program((3, 5))
def integers(a: int, b: int):
    return a << 2, b >> 1, a & b, a | b, a ^ b, ~a, -a, +a, a**2, bool(a), str(a), a in (1, 3)


@program((X,))
def tuples_and_lists(x):
    pair = (x, x + 1)
    a, (b, c) = x, pair
    first, second = pair
    xs = [a, b]
    xs.append(c)
    xs += [first * 2]
    xs.insert(0, second)
    last = xs.pop()
    xs[0] = last
    ys = list(xs)
    ys.reverse()
    return torch.stack(xs), xs[-1], xs[1:], len(xs), ys[0], pair[1], (a, b, c)[1:]


@program((X, 0), (X, 4))
def list_append_in_loop(x, n: int):
    outs = []
    for i in range(n):
        if i == 2:
            continue
        outs.append(x * i)
    outs.append(x)
    return torch.stack(outs).sum(0), outs


@program((X,))
def comprehensions(x):
    a = [x * i for i in range(3)]
    b = [i * j for i in range(2) for j in range(3) if i != j]
    c = torch.cat([row[None] for row in x])
    d = [n + 1 for n in x.shape if n > 3]
    e = sum(v.sum() for v in a)
    f = any(k > 2 for k in b), all([k >= 0 for k in b])
    return a, b, c, d, e, f, sum(x.shape), sum([v.mean() for v in a])


@program((X, Y))
def iteration(x, y):
    total = torch.zeros(4)
    for row in x:
        total = total + row
    for i, (a, b) in enumerate(zip(x, y)):
        total = total + i * a * b
    for name, w in (("a", 1), ("b", 2.5)):
        total = total * w
    for k in reversed(range(1, 7, 2)):
        total = total - k
    for v in [x, y]:
        total = total + v.sum()
    for i, v in enumerate(x.chunk(2, 1), 1):
        total = total + v.mean() * i
    return total


def helper(x, scale: float = 2.0, *, shift=0):
    if scale == 0:
        return x
    return x * scale + shift


def find(x, n: int):
    for i in range(n):
        if i * i > 5:
            return i
    return -1


@program((X, 2), (X, 9))
def inlined(x, n: int):
    scale = helper(x, 3.0)
    k = find(x, n)
    return helper(scale, shift=1) + helper(x=x, scale=0) + k


def make_closure(k):
    def closure(x):
        return x * k + SCALE

    return closure


program((X,))(make_closure(3))


class Boxes:
    @staticmethod
    def area(b):
        return (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])


@program((X,))
def static_method(x):
    return Boxes.area(x)


class Stats(NamedTuple):
    mean: Tensor
    count: int = 1


@program((X,))
def named_tuples(x):
    values, indices = torch.max(x, 1)
    m = x.max(dim=0)
    s = Stats(x.mean(), count=x.numel())
    top = torch.topk(x, 2)
    return values, indices, m.values, m.indices, s.mean / s.count, top.values, x.sort(1)[0]


@program((X,))
def left_to_torch(x):
    a = torch.cumsum(x, dim=1)
    b = F.conv2d(x[None, None], torch.ones(1, 1, 2, 2), padding=1)
    q, r = torch.linalg.qr(x)
    c = torch.fft.rfft(x).abs()
    d = x.sort(dim=1, descending=True).indices
    return a, b, q @ r, c, d, relu(x), torch.linalg.norm(x), F.relu(x), F.softmax(x, dim=-1)


@program((X, torch.tensor(1.0)), (X, torch.tensor(-1.0)))
def tensor_condition(x, t):
    if t > 0:
        y = x + 1
    else:
        y = x - 1
    while y.sum() < 100:
        y = y + 1 + y.abs()
    z = y if t < 0 else -y
    return z, float(t), int(t), bool(t > 0) and x.shape[0] == 3


@program((X,))
def item(x):
    n = int(x.shape[0]) + int(x[0, 0].item() > 0)
    v = x.max().item()
    return n, v * 2, x.tolist()[0][0]


@program((X, 3))
def shadowing(x, n: int):
    i = 10
    for i in range(n):
        x = x + i
    sum = x.sum()
    for n in (1, 2):
        sum = sum * n
    return sum, i, n


@program((X, 3), (X, 30))
def fstring(x, n: int):
    name = f"{n:>4}|{x.shape[0]!r}|{{}}"
    return name, "a" + "b" * 2, "n=%d" % n, name[0], len(name)


@program((X, "sum"), (X, "mean"), (X, "none"))
def reduction(x, reduction: str = "mean"):
    if reduction == "mean":
        return x.mean()
    elif reduction == "sum":
        return x.sum()
    return x


@program((X,))
def annotated(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    y: Tensor = x + 1
    xs: list[Tensor] = []
    z: Tensor | None = None
    if z is None:
        z = y
    a = b = z
    return a + b, xs


@program((X,), ([X, Y],), ((X, Y),))
def by_kind(x):
    if isinstance(x, Tensor):
        return x
    if isinstance(x, (list, tuple)):
        return x[0] + x[1]
    return None


@program((X, 2), (X, -2))
def raises_in_branch(x, n: int):
    if n < -5:
        raise ValueError(f"n is {n}")
    if n > 0:
        y = x
    else:
        if n < -3:
            raise RuntimeError("no")
        y = -x
    assert n != 100, "too large"
    return y


@program((X,))
def nothing(x):
    """A docstring alone."""


@program((X, [1, 2, 3]), (X, []))
def over_list(x, ns: list[int]):
    for n in ns:
        x = x + n
        if n == 2:
            break
    return x, len(ns), 2 in ns, ns == [1, 2, 3]


@program((X,))
def starred_call(x):
    size = (2, 6)
    return torch.zeros(*size), x.reshape(*x.shape), x.permute(*[1, 0]), x.view(*x.shape[:1], -1)


@program((X, 5))
def power_loop(x, n: int):
    result = torch.ones_like(x)
    base = x
    while n > 0:
        if n % 2 == 1:
            result = result * base
        base = base * base
        n //= 2
    return result


@program((t(2, 3), t(2, 4), t(4, 3), t(4, 4)))
def rnn(x, h, w, u):
    outputs = []
    for step in range(5):
        h = torch.tanh(x @ w.t() + h @ u)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


@program((X,))
def unrolled_by_type(x):
    state = ()
    for i in range(3):
        state = state + (x * i,)
    return state


@program((X, 1), (X, 4))
def return_in_while(x, n: int):
    i = 0
    while i < 10:
        for j in range(i):
            if j == n:
                return x * i, j
        i += 1
    return x, -1
