"""Types and annotations: every style of writing them, and Optional refined by control flow."""

import typing
import typing as t
from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import call, module_program, program

SCALE: Final[float] = 2.5
LIMIT: Final = 3
Pair = Tuple[int, int]
MaybeTensor = Optional[Tensor]


@program(args=lambda: (torch.arange(4.0),))
def unannotated_is_tensor(x):
    return x.relu() + 1


@program(args=lambda: (torch.arange(4.0), torch.ones(4)))
def unannotated_two(x, y):
    z = x * y
    return z, x - y


@program(args=lambda: ([1, 2, 3],))
def builtin_generics(xs: list[int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for i, x in enumerate(xs):
        out[str(i)] = x
    return out


@program(args=lambda: ((1, "a"),))
def builtin_tuple(p: tuple[int, str]) -> tuple[str, int]:
    return p[1], p[0]


@program(calls=lambda: [(torch.ones(2), None), (torch.ones(2), torch.full((2,), 3.0))])
def pep604_optional(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    if y is None:
        return x
    return x + y


@program(calls=lambda: [(3,), (2.5,)])
def pep604_union(x: int | float) -> float:
    if isinstance(x, int):
        return float(x) * 2.0
    else:
        return x


@program(calls=lambda: [([1, 2],), (None,)])
def nested_optional_list(xs: Optional[List[int]] = None) -> int:
    if xs is None:
        return -1
    total = 0
    for x in xs:
        total += x
    return total


@program(args=lambda: ([None, 3, None, 4],))
def list_of_optional(xs: List[Optional[int]]) -> int:
    total = 0
    for x in xs:
        if x is not None:
            total += x
    return total


@program(args=lambda: (torch.ones(2), 3))
def typing_by_module(x: typing.Any, n: int) -> typing.List[int]:
    out: typing.List[int] = [n, n + 1]
    return out


@program(args=lambda: ({"a": [1, 2]},))
def typing_by_alias(d: t.Dict[str, t.List[int]]) -> t.Tuple[int, int]:
    return d["a"][0], len(d["a"])


@program(args=lambda: ((2, 5),))
def alias_of_type(p: Pair) -> int:
    return p[0] * p[1]


@program(calls=lambda: [(None,), (torch.ones(2),)])
def alias_of_optional(x: MaybeTensor) -> bool:
    return x is not None


@program(args=lambda: (torch.ones(2), "1"))
def string_annotations(x: "torch.Tensor", s: "str") -> "Tuple[torch.Tensor, str]":
    return x, s


@program(args=lambda: (torch.ones(2),))
def refine_if(x: torch.Tensor, y: Optional[torch.Tensor] = None) -> torch.Tensor:
    if y is not None:
        x = x + y
    else:
        x = x - 1
    return x


@program(calls=lambda: [(4,), (None,)])
def refine_early_return(n: Optional[int]) -> int:
    if n is None:
        return 0
    return n * 2


@program(args=lambda: (4,))
def refine_assert(n: Optional[int]) -> int:
    assert n is not None
    return n + 1


@program(calls=lambda: [(4, 5), (None, 5), (4, None)])
def refine_and(a: Optional[int], b: Optional[int]) -> int:
    if a is not None and b is not None:
        return a + b
    return -1


@program(calls=lambda: [(4, 5), (None, 5), (4, None)])
def refine_or_return(a: Optional[int], b: Optional[int]) -> int:
    if a is None or b is None:
        return -1
    return a * b


@program(calls=lambda: [(4,), (None,), (1,)])
def refine_in_condition(a: Optional[int]) -> bool:
    return a is not None and a > 2


@program(calls=lambda: [(4,), (None,)])
def refine_ternary(a: Optional[int]) -> int:
    return a if a is not None else 7


@program(calls=lambda: [(4,), (None,)])
def refine_not(a: Optional[int]) -> int:
    if not (a is None):  # noqa: E714
        return a
    return 0


@program(calls=lambda: [(4,), (None,)])
def refine_assign_default(a: Optional[int]) -> int:
    if a is None:
        a = 10
    return a + 1


@program(args=lambda: (3,), torchscript=False)
def refine_while(n: int) -> int:
    cur: Optional[int] = n
    steps = 0
    while cur is not None:
        steps += cur
        if cur == 0:
            cur = None
        else:
            cur = cur - 1
    return steps


@program(calls=lambda: [(None,), ("x",)], raises=RuntimeError)
def refine_by_raise(s: Optional[str]) -> str:
    if s is None:
        raise RuntimeError("no string")
    return s + "!"


@program(args=lambda: ({"a": torch.ones(2)},))
def refine_dict_get(d: Dict[str, torch.Tensor]) -> torch.Tensor:
    x = d.get("a")
    y = d.get("b")
    assert x is not None
    if y is not None:
        return x + y
    return x * 3


@program(calls=lambda: [(1,), ("s",), (torch.ones(2),)])
def union_three(x: Union[int, str, torch.Tensor]) -> str:
    if isinstance(x, int):
        return "int" + str(x + 1)
    elif isinstance(x, str):
        return "str" + x
    else:
        return "tensor" + str(x.dim())


@program(calls=lambda: [([1, 2],), (5,)])
def union_with_list(x: Union[List[int], int]) -> int:
    if jit.isinstance(x, List[int]):
        return sum(x)
    else:
        assert isinstance(x, int)
        return x


@program(calls=lambda: [(5,), (1.5,), (None,)])
def union_with_none(x: Union[int, float, None]) -> float:
    if x is None:
        return 0.0
    if isinstance(x, float):
        return x
    assert isinstance(x, int)
    return float(x)


@program(calls=lambda: [(2,), (0,)])
def union_variable(n: int) -> str:
    x: Union[int, str] = n
    if n == 0:
        x = "zero"
    if isinstance(x, str):
        return x
    return str(x)


@program(calls=lambda: [(3,), ("a",), ([1],)])
def any_argument(x: Any) -> bool:
    if isinstance(x, int):
        return True
    return False


@program(args=lambda: (3,))
def any_return(n: int) -> Any:
    if n > 2:
        return "big"
    return n


@program(args=lambda: (torch.ones(3),), torchscript=False)
def final_globals(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE + LIMIT


@program(args=lambda: (torch.ones(3),))
def return_none(x: torch.Tensor) -> None:
    x.add_(1)


@program(args=lambda: (2,))
def annotated_locals(n: int) -> float:
    a: float = 1.5
    b: int = n
    c: List[float] = [a, a * b]
    d: Tuple[float, List[float]] = (a, c)
    return d[0] + d[1][1]


@program(args=lambda: (2,), torchscript=False)
def annotation_then_assign(n: int) -> int:
    x: int
    if n > 1:
        x = 5
    else:
        x = 6
    return x


@program(args=lambda: (True, torch.float64, torch.device("cpu"), 1 + 2j, "s"))
def every_scalar_type(b: bool, dt: torch.dtype, dev: torch.device, c: complex, s: str) -> Any:
    return (b, torch.zeros(2, dtype=dt, device=dev), c * 2, s)


@program(args=lambda: (((1, 2), [("a", 1.0)]),))
def deep_types(
    p: Tuple[Tuple[int, int], List[Tuple[str, float]]],
) -> Dict[str, List[Tuple[int, float]]]:
    out: Dict[str, List[Tuple[int, float]]] = {}
    for name, value in p[1]:
        out[name] = [(p[0][0], value), (p[0][1], value)]
    return out


@program(args=lambda: (3,))
def lt_annotate(n: int) -> List[int]:
    xs = jit.annotate(List[int], [])
    for i in range(n):
        xs.append(i)
    return xs


@program(args=lambda: (3,))
def annotate_optional(n: int) -> Optional[int]:
    best = jit.annotate(Optional[int], None)
    for i in range(n):
        if best is None:
            best = i
        elif i > best:
            best = i
    return best


@program(args=lambda: ((torch.ones(2), [torch.zeros(1)]),))
def inferred_list_of_tensors(p: Tuple[torch.Tensor, List[torch.Tensor]]):
    xs = []
    xs.append(p[0])
    for x in p[1]:
        xs.append(x)
    return xs


@program(args=lambda: (3,), torchscript=False)
def inferred_list_of_ints(n: int):
    xs = []
    for i in range(n):
        xs.append(i * i)
    return xs


@program(args=lambda: (3,), torchscript=False)
def inferred_dict(n: int):
    d = {}
    for i in range(n):
        d[i] = float(i)
    return d


@program(args=lambda: (3, 2.0, "k"), torchscript=False)
def unannotated_scalars(n, f, s):
    return n + 1, f * n, s + "!"


def _pick(x: torch.Tensor, which: Optional[str] = None, *, scale: float = 2.0) -> torch.Tensor:
    if which is None:
        return x
    if which == "double":
        return x * scale
    return -x


@program(args=lambda: (torch.ones(2),), torchscript=False)
def optional_arguments_of_calls(x: torch.Tensor) -> torch.Tensor:
    return _pick(x) + _pick(x, "double") + _pick(x, which="neg") + _pick(x, "double", scale=5.0)


@program(calls=lambda: [(torch.ones(2), torch.ones(2)), (torch.ones(2), None)])
def optional_passed_on(x: torch.Tensor, y: Optional[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.linear(x[None], torch.eye(2), y)


@program(args=lambda: (1,))
def int_where_float(n: int) -> float:
    x = 1.5
    for _ in range(n):
        x = x * 2
    return x


@program(args=lambda: (torch.ones(2, 3),))
def tuple_of_variable_length(x: torch.Tensor) -> List[int]:
    return list(x.size())


_LISTS = ([4], [[1, 2]], [], ["ab"], [["a", "b"]], (1, 2), "ab", 3)


@program(calls=lambda: [(x,) for x in _LISTS], torchscript=False)
def lists_told_by_jit_isinstance(x: Any) -> int:
    if torch.jit.isinstance(x, List[int]):
        return sum(x)
    elif torch.jit.isinstance(x, List[List[int]]):
        longest = 0
        for row in x:
            longest = max(longest, len(row))
        return longest
    elif torch.jit.isinstance(x, List[str]):
        return len(x[0].upper())
    elif torch.jit.isinstance(x, Tuple[int, int]):
        return x[0] - x[1]
    return -1


@program(calls=lambda: [([4],), ([[1, 2]],)], torchscript=False)
def only_nested_lists(x: Any) -> int:
    if torch.jit.isinstance(x, List[List[int]]):
        return len(x[0])
    return -1


@program(calls=lambda: [([4, 5],), ([[1, 2]],)])
def a_union_of_lists(x: Union[List[int], List[List[int]]]) -> int:
    if torch.jit.isinstance(x, List[List[int]]):
        return len(x[0])
    else:
        return sum(x)


@program(args=lambda: (torch.ones(2, 3), [2, 3]), torchscript=False)
def a_size_told_by_jit_isinstance(x, sizes):
    shape = x.shape
    found = [0, 0]
    if torch.jit.isinstance(shape, Tuple[int, int]):
        found[0] = shape[0] * 10 + shape[1]
    if torch.jit.isinstance(shape, List[int]):
        found[1] = len(shape)
    wide = isinstance(shape, (list, tuple)), isinstance(sizes, (list, tuple))
    return found, wide, torch.jit.isinstance(sizes, List[int])


@module_program(
    calls=lambda: [([1, 2],), ([[1], [2, 3]],), ([],), ("abc",)],
    raises=TypeError,
    torchscript=False,
)
class PadsToATensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.padding: Optional[int] = 7

    def forward(self, x: Any) -> Tensor:
        if torch.jit.isinstance(x, List[int]):
            return torch.tensor(x, dtype=torch.long)
        elif torch.jit.isinstance(x, List[List[int]]):
            if self.padding is None:
                return torch.tensor(x, dtype=torch.long)
            longest = 0
            for row in x:
                longest = max(longest, len(row))
            rows: List[List[int]] = []
            for row in x:
                rows.append(row + [self.padding] * (longest - len(row)))
            return torch.tensor(rows, dtype=torch.long)
        else:
            raise TypeError("neither")


@program(calls=lambda: [(torch.ones(2),), (None,)], raises=AssertionError)
def unwrapped(x: Optional[Tensor]) -> Tensor:
    return torch.jit._unwrap_optional(x) + 1


@program(calls=lambda: [([torch.ones(2), None],), ([torch.ones(2)],)], raises=AssertionError)
def unwrapped_element(xs: List[Optional[Tensor]]) -> Tensor:
    last = torch.jit._unwrap_optional(xs[-1])
    return last * 2


@program(calls=lambda: [(3,), (None,)], raises=AssertionError)
def unwrapped_number(n: Optional[int]) -> int:
    return torch.jit._unwrap_optional(n) + 1


class Held(NamedTuple):
    state: Optional[Tensor]
    count: int


@program(
    calls=lambda: [(torch.ones(2), [Held(torch.ones(2), 2), None], k) for k in (0, 1)],
    raises=AttributeError, torchscript=False,
)  # fmt: skip
def field_of_none(x: Tensor, helds: List[Optional[Held]], k: int) -> Tensor:
    return (x + 1) * helds[k].count


@program(
    calls=lambda: [(torch.ones(2), {"a": v}) for v in (Held(None, 2), None)],
    raises=AttributeError, torchscript=False,
)  # fmt: skip
def field_of_an_item_that_is_none(x: Tensor, helds: Dict[str, Optional[Held]]) -> Tensor:
    return (x + 1) * helds["a"].count


_NUMBERS = (int, float)


@program(calls=lambda: [call(2.5, [1]), call(3, [])], torchscript=False)
def classes_of_the_file(x: Union[int, float], xs: List[int]):
    names: List[str] = []
    for cls in _NUMBERS:
        if isinstance(x, cls):
            names.append("is")
    return isinstance(x, _NUMBERS), isinstance(xs, _NUMBERS), len(_NUMBERS), names
