"""By the sections of the TorchScript language reference: types, expressions and builtins."""

import cmath
import math
from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from tests.language.support import jit, program


class Level(Enum):
    LOW = 1
    HIGH = 10


class Sample(NamedTuple):
    name: str
    values: List[float]
    level: int = 0


@program(calls=lambda: [(None,), (torch.ones(2),), (3,)])
def union_of_three(v: Union[int, Tensor, None]) -> Tensor:
    if v is None:
        return torch.zeros(1)
    elif isinstance(v, int):
        return torch.full((2,), v)
    else:
        return v + 1


@program(calls=lambda: [("x",), (["a", "b"],)])
def union_of_str_and_list(v: Union[str, List[str]]) -> int:
    if isinstance(v, str):
        v = [v]
    return len(v)


@program(calls=lambda: [(3,), ("three",), ([1, 2],), (None,)], torchscript=False)
def any_is_looked_at(v: Any) -> str:
    if isinstance(v, int):
        return "int " + str(v + 1)
    if torch.jit.isinstance(v, List[int]):
        return "list " + str(v[0])
    return "none" if v is None else "other"


@program(args=lambda: (Sample("a", [1.0, 2.0]),))
def named_tuple_default(s: Sample) -> Tuple[str, float, int]:
    name, values, level = s
    return name + s.name, values[-1] + s.values[0], level


@program(args=lambda: (3,))
def named_tuple_made(n: int) -> Sample:
    made = Sample(name="n" + str(n), values=[float(n)])
    return Sample(made.name, made.values, level=made.level + 1)


@program(calls=lambda: [(Level.LOW,), (Level.HIGH,)])
def enum_compared(level: Level) -> Tuple[str, int, bool]:
    return level.name, level.value, level == Level.HIGH


@program(args=lambda: ([Level.LOW, Level.HIGH],))
def enums_counted(levels: List[Level]) -> Dict[int, int]:
    found: Dict[int, int] = {}
    for level in levels:
        found[level.value] = found.get(level.value, 0) + 1
    return found


@program(args=lambda: ({"a": torch.ones(2), "b": torch.zeros(3)},), torchscript=False)
def dict_methods(d: Dict[str, Tensor]) -> Tuple[List[str], int, bool, int]:
    total = 0
    for k, v in d.items():
        total += v.numel() + len(k)
    removed = d.pop("a")
    d.update({"c": removed + 1})
    kept = d.setdefault("b", torch.ones(9))
    return list(d.keys()), total, "a" in d, kept.numel()


@program(args=lambda: ({3: "c", 1: "a"},), torchscript=False)
def dict_of_ints(d: Dict[int, str]) -> Tuple[str, Optional[str], List[int]]:
    copied = d.copy()
    d.clear()
    missing = copied.get(7)
    return copied[3] + copied.get(9, "none"), missing, sorted(copied.keys())


@program(args=lambda: ([3, 1, 2],), torchscript=False)
def list_methods(xs: List[int]) -> Tuple[int, int, List[int], int]:
    xs.insert(1, 9)
    xs.extend([4, 4])
    xs.remove(3)
    last = xs.pop()
    xs.reverse()
    at = xs.index(9)
    xs.sort(reverse=True)
    return last, at, xs.copy(), xs.count(4)


@program(args=lambda: ([[1, 2], [3]],), torchscript=False)
def nested_lists_changed(xs: List[List[int]]) -> List[List[int]]:
    first = xs[0]
    first.append(7)
    xs.append(first)
    xs[1] += [8]
    del xs[0][0]
    return xs


@program(args=lambda: ("  Low,Tide;low  ",))
def str_methods(s: str) -> Tuple[List[str], str, int, bool, str, str]:
    t = s.strip()
    parts = t.replace(";", ",").split(",")
    return (
        parts,
        "-".join([p.lower() for p in parts]),
        t.find("Tide"),
        t.startswith("Low") and not t.endswith("x"),
        t.swapcase(),
        t.partition(",")[2],
    )


@program(args=lambda: ("lowtide", 3))
def str_slices(s: str, n: int) -> Tuple[str, str, str, bool, int]:
    return s[:n], s[-n:], s[::-1], s[1:n] in s, s.count("i") + s.rfind("e")


@program(args=lambda: (3.14159, 42), torchscript=False)
def str_formats(x: float, n: int) -> Tuple[str, str, str]:
    return f"{x:.2f}|{n:>5}|{n!r}", "{} and {}".format(n, n + 1), "%d is %s" % (n, "n")


@program(args=lambda: ("7", "2.5", "x"))
def str_to_numbers(a: str, b: str, c: str) -> Tuple[int, float, int, str, bool]:
    return int(a), float(b), ord(c), chr(ord(c) + 1), c.isalpha() and a.isdigit()


@program(calls=lambda: [(2.5, 2), (-2.5, 3)], torchscript=False)
def math_functions(x: float, n: int) -> List[float]:
    out = [math.floor(x), math.ceil(x), math.sqrt(abs(x)), math.pow(x, n), math.fmod(x, n)]
    out += [math.copysign(1.0, x), math.atan2(x, n), math.log1p(abs(x)), math.degrees(x)]
    return [float(v) for v in out] + [math.pi, math.inf, float(math.gcd(12, n))]


@program(args=lambda: (7, -3), torchscript=False)
def integer_arithmetic(a: int, b: int) -> Tuple[int, int, int, int, Tuple[int, int]]:
    return a // b, a % b, a**2, (a ^ b) | (a & 6), divmod(b, a)


@program(args=lambda: (complex(1, 2),), torchscript=False)
def complex_numbers(z: complex) -> Tuple[complex, float, float, complex]:
    return z * 2 + 1j, abs(z), z.real - z.imag, cmath.exp(z)


@program(args=lambda: (torch.tensor([1 + 2j, 3 - 1j]),))
def complex_tensor(z: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    return torch.view_as_real(z), z.conj() * z, torch.angle(z)


@program(args=lambda: ([3, -1, 2], [0.5, 1.5]))
def builtin_folds(xs: List[int], ys: List[float]) -> Tuple[int, int, float, bool, bool]:
    least, greatest = min(xs), max(xs[0], 5)
    return least, greatest, sum(ys), any([x < 0 for x in xs]), all([x > 0 for x in xs])


@program(args=lambda: (torch.tensor(3), torch.tensor(2.5), torch.tensor(True)))
def tensors_to_numbers(a: Tensor, b: Tensor, c: Tensor) -> Tuple[int, float, bool, int]:
    return int(a) + 1, float(b) * 2, bool(c), int(a.item())


@program(args=lambda: (torch.arange(12.0).reshape(3, 4),), torchscript=False)
def tensor_attributes(x: Tensor) -> Tuple[int, List[int], bool, bool, int, int]:
    return x.dim(), x.shape, x.is_contiguous(), x.requires_grad, x.size(1), x.numel()


@program(args=lambda: (torch.arange(24.0).reshape(2, 3, 4), 1))
def indexing_mixed(x: Tensor, i: int) -> List[Tensor]:
    mask = x > 5
    return [x[i], x[:, -1], x[..., 0], x[0, 1:, ::2], x[mask], x[:, [0, 2]], x[None, i, :, None]]


@program(args=lambda: (torch.zeros(3, 4),))
def index_assignment_mixed(x: Tensor) -> Tensor:
    x[0] = 1
    x[1:, 2] = torch.tensor([5.0, 6.0])
    x[x > 5] = -1
    x[-1, ...] += 2
    x[:, 0] *= 3
    return x


@program(args=lambda: (torch.ones(2, 3), torch.float64))
def dtype_argument(x: Tensor, dtype: torch.dtype) -> Tuple[Tensor, bool, Tensor]:
    y = torch.zeros(2, dtype=dtype, device=x.device)
    return x.to(dtype), y.dtype == dtype, torch.ones_like(y, dtype=torch.int32)


@program(calls=lambda: [(2, None), (2, 5)])
def optional_default(n: int, m: Optional[int] = None) -> int:
    if m is None:
        m = n * 10
    return n + m


@program(calls=lambda: [(None, None), (1, None), (1, 2)])
def optional_in_conditions(a: Optional[int], b: Optional[int]) -> int:
    if a is not None and b is not None:
        return a + b
    if a is None or a < 0:
        return -1
    return a


@program(args=lambda: ([1, None, 3],))
def list_of_optionals(xs: List[Optional[int]]) -> int:
    total = 0
    for x in xs:
        if x is not None:
            total += x
    return total


@program(args=lambda: ((1, (2.0, "c")),), torchscript=False)
def nested_tuples(t: Tuple[int, Tuple[float, str]]) -> Tuple[str, float, int, bool]:
    a, (b, c) = t
    return c * a, t[1][0] + b, len(t), t == (1, (2.0, "c"))


@program(args=lambda: (torch.arange(6.0), [2, 4]), torchscript=False)
def unpacked_results(x: Tensor, sizes: List[int]) -> Tuple[Tensor, Tensor, Tensor]:
    a, b = torch.split(x, sizes)
    values, indices = torch.topk(b, k=2)
    first, *rest = torch.unbind(b)
    return a + values, indices, first + rest[-1]


@program(args=lambda: (3, 5), torchscript=False)
def comparisons_and_logic(a: int, b: int) -> Tuple[bool, bool, int, str, bool]:
    return 1 < a <= b < 9, not a or b == 5, a and b, "" or "else", (a > 4) is (b < 4)


@program(args=lambda: ([5, 6, 7],), torchscript=False)
def comprehensions(xs: List[int]) -> Tuple[List[int], List[int], Dict[str, int]]:
    grid = [x * y for x in xs for y in range(2)]
    return grid, [i * x for i, x in enumerate(xs) if x != 6], {str(x): x for x in xs}


@program(args=lambda: (torch.ones(3),), torchscript=False)
def printed(x: Tensor) -> None:
    print("sum", x.sum(), [1, 2], ("a", 1.5), {"k": None})


@program(args=lambda: (torch.linspace(-1, 1, 6),))
def functional_calls(x: Tensor) -> Tensor:
    y = torch.nn.functional.gelu(x).softmax(dim=-1)
    z = torch.where(y > y.mean(), y, torch.zeros_like(y)).clamp_(max=0.5)
    return torch.stack([y, z]).transpose(0, 1).contiguous().view(-1)


@program(args=lambda: (4,), torchscript=False)
def annotated_empties(n: int) -> Tuple[List[Tensor], Dict[str, List[int]], Optional[Tensor]]:
    xs: List[Tensor] = []
    d = jit.annotate(Dict[str, List[int]], {})
    best: Optional[Tensor] = None
    for i in range(n):
        xs.append(torch.full((2,), i))
        if str(i % 2) not in d:
            d[str(i % 2)] = []
        d[str(i % 2)].append(i)
        best = xs[-1] if best is None else torch.maximum(best, xs[-1])
    return xs, d, best
