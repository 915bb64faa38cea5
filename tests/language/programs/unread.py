"""What nobody reads, but Python raises when it is made."""

from typing import Dict, List

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program


def _x() -> Tensor:
    return torch.arange(12.0).view(3, 4)


@program(calls=lambda: [(_x(), 6), (_x(), 5)], raises=RuntimeError, torchscript=False)
def viewed(x: Tensor, n: int) -> Tensor:
    y = x.view(2, n)
    return x + 1


@program(calls=lambda: [(_x(), 2), (_x(), 7)], raises=IndexError, torchscript=False)
def rows(x: Tensor, i: int) -> Tensor:
    x[i]
    return x + 1


@program(
    calls=lambda: [(_x(), torch.ones(4)), (_x(), torch.ones(5))],
    raises=RuntimeError,
    torchscript=False,
)
def assigned_last(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    w = z + 1
    z = z + y
    return w


@program(
    calls=lambda: [(_x(), torch.ones(4)), (_x(), torch.ones(5))],
    raises=RuntimeError,
    torchscript=False,
)
def assigned_anew(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    z = x * 2
    for _ in range(2):
        z = z * 2
    return z


@program(calls=lambda: [(_x(), 1), (_x(), 7)], raises=IndexError, torchscript=False)
def summed(x: Tensor, dim: int) -> Tensor:
    total = x.sum(dim)
    more = total * 2
    return x + 1


@program(
    calls=lambda: [(_x(), torch.ones(4, 2)), (_x(), torch.ones(3, 3))],
    raises=RuntimeError,
    torchscript=False,
)
def multiplied(x: Tensor, y: Tensor) -> Tensor:
    _ = x @ y
    return x + 1


@program(
    calls=lambda: [(_x(), torch.ones(4)), (_x(), torch.ones(5))],
    raises=RuntimeError,
    torchscript=False,
)
def broadcast(x: Tensor, y: Tensor) -> Tensor:
    both: Tensor = torch.relu(x + y)
    return x + 1


@program(
    calls=lambda: [(_x(), torch.tensor([2])), (_x(), torch.tensor([7]))],
    raises=IndexError,
    torchscript=False,
)
def gathered(x: Tensor, i: Tensor) -> Tensor:
    x[i]
    return x + 1


@program(calls=lambda: [([1], 0), ([1], 3)], raises=IndexError, torchscript=False)
def item(xs: List[int], i: int) -> int:
    first = xs[i]
    return i + 1


@program(calls=lambda: [({"a": 1}, "a"), ({"a": 1}, "b")], raises=KeyError, torchscript=False)
def value(d: Dict[str, int], key: str) -> int:
    d[key]
    return 1


@program(calls=lambda: [("3",), ("x",)], raises=ValueError, torchscript=False)
def number(text: str) -> int:
    int(text)
    return 1


@program(calls=lambda: [(3,), (0,)], raises=ZeroDivisionError, torchscript=False)
def divided(n: int) -> int:
    part = 1 // n
    return n


@program(calls=lambda: [(_x(), 3), (_x(), 5)], raises=IndexError, torchscript=False)
def in_a_loop(x: Tensor, n: int) -> Tensor:
    total = torch.zeros(4)
    for i in range(n):
        row = x[i]
        total = total + i
    return total


@program(calls=lambda: [(_x(), True), (_x(), False)], raises=RuntimeError, torchscript=False)
def in_a_branch(x: Tensor, flat: bool) -> Tensor:
    if flat:
        x.view(12)
    else:
        x.view(13)
    return x * 2


@program(args=lambda: (_x().requires_grad_(),), grad=True)
def harmless(x: Tensor) -> Tensor:
    y = torch.exp(x) * 2
    z = y.sum(0)
    b, n = x.shape
    for _ in range(3):
        x = torch.tanh(x)
        unread = x.t()
    return x * n


@module_program(
    calls=lambda: [(torch.ones(2, 3),), (torch.ones(2, 4),)],
    raises=RuntimeError,
    torchscript=False,
)
class Checks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.fc(x)
        return x * 2


@program(calls=lambda: [([1, 2],), ([1, 2, 3],)], raises=ValueError, torchscript=False)
def unpacked(xs: List[int]) -> int:
    a, b = xs
    return 1


@program(calls=lambda: [(_x(),), (_x()[:2],)], raises=ValueError, torchscript=False)
def unpacked_rows(x: Tensor) -> int:
    a, (b, *c), d = x
    return 1


@program(calls=lambda: [(_x()[0, :1],), (_x(),)], raises=RuntimeError, torchscript=False)
def asked(x: Tensor) -> int:
    bool(x)
    return 1


@program(calls=lambda: [([1],), ([[1]],)], raises=TypeError, torchscript=False)
def hashed(xs: List[object]) -> int:
    {x for x in xs}
    return 1


@program(calls=lambda: [(1, "a")], raises=TypeError, torchscript=False)
def looked_for(n: int, text: str) -> int:
    n in text
    return 1


@program(calls=lambda: [([4, 3],), ([],)], raises=ValueError, torchscript=False)
def overwritten(xs: List[int]) -> int:
    n = min(xs)
    n = 5
    return n


@program(calls=lambda: [([4, 3],), ([],)], raises=ValueError, torchscript=False)
def overwritten_at_once(xs: List[int]) -> int:
    n, n = min(xs), 3
    return n


@program(
    calls=lambda: [(_x(), torch.ones(4)), (_x(), torch.ones(5))],
    raises=RuntimeError,
    torchscript=False,
)
def beside_one_that_is_read(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    a, z = x + y, x
    a = z
    return a


@program(calls=lambda: [([4, 3],), ([],)], raises=ValueError, torchscript=False)
def decided_without_it(xs: List[int]) -> int:
    n = min(xs)
    n = 5 if n is None else 6
    return n


@program(calls=lambda: [([4, 3],), ([],)], raises=ValueError, torchscript=False)
def another_item(xs: List[int]) -> int:
    return (min(xs), 4)[1]


@program(
    calls=lambda: [(_x(), torch.ones(4)), (_x(), torch.ones(5))],
    raises=RuntimeError,
    torchscript=False,
)
def counted(x: Tensor, y: Tensor) -> int:
    return len([x + y, x])


@program(calls=lambda: [([4, 1], 1), ([4, 1], 5)], raises=IndexError, torchscript=False)
def each_reads_the_last(xs: List[int], turns: int) -> int:
    k = 0
    for _ in range(turns):
        k = xs[k + 1] + k
    return turns
