"""Beyond TorchScript: sets, try, match, generators, star arguments. To run equal, or be refused."""

import functools
import itertools
import operator
from collections import OrderedDict, defaultdict, deque
from typing import Any, Callable, Dict, List, Set, Tuple

import torch
from torch import Tensor, nn

from tests.language import jit as jit
from tests.language.support import module_program, program


@program(args=lambda: ([1, 2, 2],), optional=True, torchscript=False)
def set_made(xs: List[int]) -> Tuple[int, bool]:
    s = set(xs)
    return len(s), 2 in s


@program(args=lambda: (2,), optional=True, torchscript=False)
def set_literal(n: int) -> bool:
    return n in {1, 2, 3}


@program(args=lambda: ({1, 2}, {2, 3}), optional=True, torchscript=False)
def set_operators(a: Set[int], b: Set[int]) -> Tuple[Set[int], Set[int], Set[int], Set[int]]:
    return a | b, a & b, a - b, a ^ b


@program(args=lambda: ({1, 2},), optional=True, torchscript=False)
def set_changed_in_place(a: Set[int]) -> None:
    a.add(5)
    a.discard(1)
    a.update([7, 8])


@program(args=lambda: ([3, 1, 3],), optional=True, torchscript=False)
def set_comprehension(xs: List[int]) -> List[int]:
    return sorted({x * 2 for x in xs})


@program(calls=lambda: [(1,), (0,)], optional=True, torchscript=False)
def try_except(n: int) -> str:
    try:
        if n == 0:
            raise ValueError("zero")
        r = "fine"
    except ValueError as e:
        r = "caught " + str(e)
    return r


@program(calls=lambda: [(1,), (0,)], optional=True, torchscript=False)
def try_finally(n: int) -> List[str]:
    log: List[str] = []
    try:
        log.append("try")
        if n == 0:
            return log
    finally:
        log.append("finally")
    return log


@program(calls=lambda: [("add", 2), ("mul", 5), ("other", 1)], optional=True, torchscript=False)
def match_on_strings(op: str, n: int) -> int:
    match op:
        case "add":
            return n + 1
        case "mul" | "times":
            return n * 2
        case _:
            return 0


@program(args=lambda: (6,), optional=True, torchscript=False)
def walrus(n: int) -> List[int]:
    out: List[int] = []
    while (m := n // 2) > 0:
        out.append(m)
        n = m
    return out


def _total(*values: int) -> int:
    t = 0
    for v in values:
        t += v
    return t


@program(args=lambda: (3,), optional=True, torchscript=False)
def varargs_helper(n: int) -> int:
    return _total(n, 2, 3) + _total()


def _options(**options: int) -> int:
    return len(options)


@program(args=lambda: (3,), optional=True, torchscript=False)
def keyword_varargs_helper(n: int) -> int:
    return _options(a=n, b=2)


def _two(a: int, b: int = 1) -> str:
    return str(a) + "," + str(b)


@program(args=lambda: (3,), optional=True)
def starred_call(n: int) -> str:
    args = (n, 2)
    return _two(*args)


@program(args=lambda: (3,), optional=True, torchscript=False)
def double_starred_call(n: int) -> str:
    options = {"a": n, "b": 5}
    return _two(**options)


@functools.lru_cache(maxsize=None)
def _cached(n: int) -> int:
    return n * n


@program(args=lambda: (3,), optional=True)
def decorated_helper(n: int) -> int:
    return _cached(n) + 1


@program(args=lambda: (["a", "b", "a"],), optional=True, torchscript=False)
def counting_with_defaultdict(xs: List[str]) -> Dict[str, int]:
    d: Dict[str, int] = defaultdict(int)
    for x in xs:
        d[x] += 1
    return dict(d)


@program(args=lambda: (torch.ones(1),), optional=True)
def ordered_dict(x: Tensor) -> Dict[str, Tensor]:
    out = OrderedDict()
    out["first"] = x
    out["second"] = x + 1
    return dict(out)


@program(args=lambda: ([1, 2, 3],), optional=True, torchscript=False)
def deque_rotated(xs: List[int]) -> List[int]:
    q = deque(xs)
    q.rotate(1)
    q.appendleft(9)
    return list(q)


@program(args=lambda: ([1, 5],), optional=True)
def generators_consumed(xs: List[int]) -> Tuple[bool, bool, int]:
    return any(x > 4 for x in xs), all(x > 4 for x in xs), sum(x * x for x in xs)


@program(args=lambda: ([1, 5, 2],), optional=True, torchscript=False)
def map_and_filter(xs: List[int]) -> List[int]:
    return list(map(abs, filter(lambda x: x > 1, xs)))


@program(args=lambda: (["ccc", "a", "bb"],), optional=True, torchscript=False)
def sorted_with_key(xs: List[str]) -> List[str]:
    return sorted(xs, key=len, reverse=True)


@program(args=lambda: ([("a", 3), ("b", 1)],), optional=True, torchscript=False)
def sorted_by_lambda(xs: List[Tuple[str, int]]) -> Tuple[str, int]:
    best = max(xs, key=lambda p: p[1])
    return sorted(xs, key=lambda p: p[1])[0] + best


@program(args=lambda: ([1, 2], [3, 4]), optional=True, torchscript=False)
def itertools_product(a: List[int], b: List[int]) -> List[int]:
    return [x * y for x, y in itertools.product(a, b)]


@program(args=lambda: (3,), optional=True, torchscript=False)
def partial_application(n: int) -> str:
    f = functools.partial(_two, b=7)
    return f(n)


def _apply(f: Callable[[int], int], n: int) -> int:
    return f(n) + 1


def _triple(n: int) -> int:
    return n * 3


@program(args=lambda: (3,), optional=True, torchscript=False)
def function_as_argument(n: int) -> int:
    return _apply(_triple, n)


@program(args=lambda: (3,), optional=True, torchscript=False)
def nonlocal_counter(n: int) -> int:
    count = 0

    def tick(by: int) -> None:
        nonlocal count
        count += by

    for i in range(n):
        tick(i)
    return count


@program(args=lambda: (3,), optional=True, torchscript=False)
def import_inside(n: int) -> float:
    import math

    return math.sqrt(n)


@module_program(args=lambda: (torch.ones(2),), optional=True, torchscript=False)
class FunctionChosenByName(nn.Module):
    def __init__(self, name: str = "tanh"):
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(torch, self.name)(x)


@module_program(args=lambda: (torch.ones(2), 2), optional=True, torchscript=False)
class VarargsForward(nn.Module):
    def forward(self, x: Tensor, *rest: int) -> Tensor:
        for r in rest:
            x = x * r
        return x


@program(args=lambda: ([1, 2, 3], [4, 5]), torchscript=False)
def itertools_lists(a: List[int], b: List[int]) -> List[int]:
    out = list(itertools.chain(a, b, (7,)))
    out += list(itertools.repeat(9, len(a)))
    out += [x + y for x, y in itertools.pairwise(a)]
    out += list(itertools.chain.from_iterable([a, b]))
    out += list(itertools.islice(a, 1, 3)) + list(itertools.islice(b, 1))
    return out + list(itertools.starmap(operator.mul, [(2, 3), (4, 5)]))


@program(args=lambda: (torch.arange(3.0), 2), torchscript=False)
def itertools_known(x: Tensor, n: int) -> Tensor:
    for i, j in itertools.product(range(2), repeat=2):
        x = x * i + j
    for scale in itertools.repeat(n, 3):
        x = x * scale
    return x


@program(calls=lambda: [([1, 2, 3],), ([],)], raises=TypeError, torchscript=False)
def functools_reduce(xs: List[int]) -> Tuple[int, int]:
    return functools.reduce(lambda a, b: a * 2 + b, xs, 1), functools.reduce(operator.add, xs)


@program(args=lambda: (torch.ones(3), 4), torchscript=False)
def operators_as_functions(x: Tensor, n: int) -> Tuple[Tensor, bool, int]:
    return operator.truediv(x, n), operator.lt(n, 5), operator.mod(n, 3)


@program(args=lambda: ([1, 0, 3, 0],), torchscript=False)
def filter_of_truth(xs: List[int]) -> List[int]:
    return list(filter(None, xs))


@program(args=lambda: (torch.ones(2), torch.ones(2, dtype=torch.cfloat)), torchscript=False)
def facts_of_dtypes(x: Tensor, z: Tensor) -> Tuple[bool, bool, bool, Tensor]:
    both = torch.promote_types(x.dtype, torch.float64)
    other = torch.result_type(x, z)
    return other.is_complex, both.is_complex, both.is_floating_point, x.to(both)


@program(args=lambda: (torch.ones(2),), torchscript=False)
def forward_mode_is_off(x: Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(x).tangent is None


def _needing(x: Tensor) -> Tensor:
    return x.requires_grad_()


@program(args=lambda: (_needing(torch.ones(2)), _needing(torch.ones(2))), torchscript=False)
def gradients_that_there_are(x: Tensor, y: Tensor) -> Tuple[bool, bool, Tensor]:
    found = torch.autograd.grad([(x * x).sum()], [x, y], allow_unused=True)
    return isinstance(found, tuple), found[1] is None, found[0] * 2


@program(args=lambda: (torch.ones(2),), torchscript=False)
def nobody_looks_on(x: Tensor) -> Tuple[bool, bool, bool]:
    compiling = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return compiling, torch._C._get_tracing_state() is None, x.device.index is None


@jit.ignore
def _doubled(x: Tensor) -> Any:
    return x * 2, x.shape


@program(args=lambda: (torch.ones(2, 3),), torchscript=False)
def attributes_of_what_only_the_run_knows(x: Tensor) -> Tuple[int, int, Tensor]:
    y, shape = _doubled(x)
    rows, columns = y.shape
    total = sum(n for n in y.shape)
    return y.shape[0] + len(y.shape) + rows * columns, total, y.view(shape[1], -1) * y.T.shape[0]


@program(calls=lambda: [(torch.tensor([1, 2]),), (torch.tensor([0, 0]),)])
def as_many_steps_as_a_number(x: Tensor) -> Tensor:
    for i in range(x.sum().item()):
        x = x + i
    return x


@program(args=lambda: (torch.ones(2, 3), 3, 0.5), torchscript=False)
def a_count_among_floats(x: Tensor, k: int, e: float) -> Tensor:
    rows, columns, steps, factor = *x.shape, k, e
    for _ in range(steps):
        x = x * factor
    return x.view(columns, rows)
