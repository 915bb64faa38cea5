"""Names and scopes: closures, globals, other files, with, fork/wait, is_scripting, isinstance."""

import math
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F

from tests.language import elsewhere, jit
from tests.language.elsewhere import GAIN, Tally, shifted
from tests.language.support import program

COUNT = 4
FACTOR = 2.5
NAME = "global"
FLAG = False
NUMBERS = [1, 2, 3]
TABLE = {"a": 1, "b": 2}
PAIR = (3, "x")
WEIGHTS = torch.tensor([1.0, 2.0])
DTYPE = torch.float64


@program(args=lambda: (torch.ones(2),), torchscript=False)
def global_numbers(x: torch.Tensor) -> torch.Tensor:
    return x * COUNT + FACTOR


@program(args=lambda: (1,), torchscript=False)
def global_string_and_flag(n: int) -> str:
    if FLAG:
        return "flag"
    return NAME + str(n)


@program(args=lambda: (1,), torchscript=False)
def global_containers(n: int) -> Tuple[int, int, str]:
    total = 0
    for v in NUMBERS:
        total += v
    return total, TABLE["b"] + n, PAIR[1]


@program(args=lambda: (torch.ones(2),), torchscript=False)
def global_tensor(x: torch.Tensor) -> torch.Tensor:
    return x * WEIGHTS


@program(args=lambda: (2,), torchscript=False)
def global_dtype(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=DTYPE)


@program(args=lambda: (torch.ones(2),), torchscript=False)
def from_other_file(x: torch.Tensor) -> torch.Tensor:
    return shifted(x) + shifted(x, by=3.0) * GAIN


@program(args=lambda: (torch.ones(2),))
def module_attributes(x: torch.Tensor) -> torch.Tensor:
    return elsewhere.shifted(x, elsewhere.GAIN)


@program(args=lambda: (torch.ones(2),))
def tuple_of_other_file(x: torch.Tensor) -> torch.Tensor:
    a, b = elsewhere.SIZES
    return x.sum() * torch.ones(a, b)


@program(args=lambda: (["a", "b", "a"],))
def class_of_other_file(names: List[str]) -> Dict[str, int]:
    t = Tally()
    for n in names:
        t.see(n)
    return t.counts


def _make(scale: int, offset: float):
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * scale + offset

    return inner


closed_over = program(args=lambda: (torch.ones(2),), torchscript=False)(_make(3, 0.5))


def _make_calling():
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    def calls_closed_function(x: torch.Tensor) -> torch.Tensor:
        return square(square(x)) + 1

    return calls_closed_function


calls_closed_function = program(args=lambda: (torch.full((2,), 2.0),))(_make_calling())


@program(args=lambda: (3,), torchscript=False)
def inner_function(n: int) -> int:
    def add(a: int, b: int) -> int:
        return a + b + n

    return add(n, 1) * add(2, 3)


@program(args=lambda: (3,), torchscript=False)
def inner_lambda_called(n: int) -> int:
    f = lambda a: a * 2 + n
    return f(n) + f(1)


@program(args=lambda: (torch.ones(2, requires_grad=True),))
def no_grad_block(x: torch.Tensor) -> Tuple[bool, bool]:
    with torch.no_grad():
        y = x * 2
    z = x * 3
    return y.requires_grad, z.requires_grad


@program(args=lambda: (torch.ones(2, requires_grad=True),), torchscript=False)
def enable_grad_nested(x: torch.Tensor) -> Tuple[bool, bool, bool]:
    with torch.no_grad():
        a = torch.is_grad_enabled()
        with torch.enable_grad():
            b = (x * 2).requires_grad
        c = (x * 2).requires_grad
    return a, b, c


@program(args=lambda: (torch.ones(2, requires_grad=True), 3))
def return_inside_no_grad(x: torch.Tensor, n: int) -> Tuple[torch.Tensor, bool]:
    with torch.no_grad():
        for i in range(n):
            if i == 1:
                return x * i, (x * i).requires_grad
    return x, True


@program(args=lambda: (torch.ones(2, requires_grad=True), False), torchscript=False)
def set_grad_enabled(x: torch.Tensor, on: bool) -> bool:
    with torch.set_grad_enabled(on):
        y = x * 2
    return y.requires_grad


def _work(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x * 2
    return x


@program(args=lambda: (torch.ones(2),))
def fork_and_wait(x: torch.Tensor) -> torch.Tensor:
    fut = jit.fork(_work, x, 3)
    y = x + 1
    return jit.wait(fut) + y


@program(args=lambda: (torch.ones(2),))
def forks_in_list(x: torch.Tensor) -> torch.Tensor:
    futures = [jit.fork(_work, x, n=i) for i in range(3)]
    out = torch.zeros(2)
    for f in futures:
        out = out + jit.wait(f)
    return out


@program(args=lambda: (torch.ones(2),))
def fork_typed(x: torch.Tensor) -> torch.Tensor:
    futures: List[torch.jit.Future[torch.Tensor]] = []
    for i in range(3):
        futures.append(jit.fork(_work, x * i, 2))
    results = [jit.wait(f) for f in futures]
    return torch.stack(results)


@program(args=lambda: (torch.ones(2),), torchscript=False)
def is_scripting_branch(x: torch.Tensor) -> torch.Tensor:
    if not jit.is_scripting():
        checked = [v for v in map(float, x.tolist()) if v]
        print_nothing = "".join(sorted(str(set(checked)))[:0])
        print(print_nothing, end="")
    return x + 1


@program(args=lambda: (torch.ones(2),), torchscript=False)
def torch_jit_is_scripting_branch(x: torch.Tensor) -> torch.Tensor:
    if torch.jit.is_scripting():
        return x + 1
    else:
        numbers = {float(v) for v in x}
        return x + len(numbers)


@program(args=lambda: (torch.ones(2), 3))
def is_tracing_is_false(x: torch.Tensor, n: int) -> torch.Tensor:
    if torch.jit.is_tracing():
        return x
    return x * n


@program(args=lambda: (3, "abc"))
def prints(n: int, s: str) -> None:
    print("n is", n, s)
    print(n + 1)
    print()


@program(args=lambda: (3, 1.5), torchscript=False)
def prints_with_options(n: int, f: float) -> None:
    print(n, f, sep=", ", end="!\n")
    print([n, n], (n, "a"), {"k": f}, None, True)
    print(f"{f:.3f}")


@program(args=lambda: (torch.arange(3.0),))
def prints_tensors(x: torch.Tensor) -> None:
    print(x, x.sum())
    for i in range(2):
        print("turn", i)


@program(args=lambda: (3,))
def del_variable(n: int) -> int:
    x = n + 1
    y = x * 2
    del x
    x = 5
    return x + y


@program(calls=lambda: [(3,), ("s",), (2.5,), (True,)])
def isinstance_chain(v: Union[int, str, float, bool]) -> str:
    if isinstance(v, bool):
        return "bool"
    elif isinstance(v, int):
        return "int" + str(v + 1)
    elif isinstance(v, (str, float)):
        return "other"
    return "none"


@program(args=lambda: (3, "s", [1], torch.ones(1)))
def isinstance_static(n: int, s: str, xs: List[int], x: torch.Tensor) -> List[bool]:
    return [
        isinstance(n, int),
        isinstance(n, float),
        isinstance(s, (int, str)),
        isinstance(xs, list),
        isinstance(x, torch.Tensor),
    ]


@program(calls=lambda: [([1, 2],), ({"a": 1},), ((1, 2),)])
def isinstance_of_any(v: Any) -> int:
    if jit.isinstance(v, List[int]):
        return len(v)
    if jit.isinstance(v, Dict[str, int]):
        return v["a"] + 10
    return -1


@program(calls=lambda: [(None,), (torch.ones(1),)])
def isinstance_of_optional(v: Optional[torch.Tensor]) -> int:
    if isinstance(v, torch.Tensor):
        return v.numel()
    return 0


@program(args=lambda: (torch.ones(2),))
def functional_alias(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x - 1) + torch.nn.functional.softplus(x) + math.pi


@program(args=lambda: (-1,), raises=AssertionError)
def assert_with_message(n: int) -> int:
    assert n > 0, f"n must be positive, not {n}"
    return n


@program(args=lambda: (-1,), raises=AssertionError)
def assert_without_message(n: int) -> int:
    assert n > 0
    return n


@program(args=lambda: (torch.zeros(2),), raises=AssertionError)
def assert_of_tensor(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() > 0, "empty sum"
    return x


@program(args=lambda: (3,))
def assert_passes(n: int) -> int:
    assert n > 0, "no"
    assert isinstance(n, int)
    return n


class OddError(ValueError):
    pass


class CodedError(Exception):
    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@program(calls=lambda: [(2,), (3,)], raises=ValueError)
def raise_builtin(n: int) -> int:
    if n % 2 == 1:
        raise ValueError("odd: " + str(n))
    return n


@program(calls=lambda: [(2,), (3,)], raises=OddError)
def raise_users_exception(n: int) -> int:
    if n % 2 == 1:
        raise OddError(f"odd {n}")
    return n


@program(args=lambda: (3,), raises=CodedError)
def raise_exception_with_arguments(n: int) -> int:
    if n > 0:
        raise CodedError("coded", 5)
    return n


@program(args=lambda: (3,), raises=NotImplementedError)
def raise_class_without_call(n: int) -> int:
    if n > 0:
        raise NotImplementedError
    return n


def _deep(n: int, log: List[int]) -> int:
    log.append(n)
    if n > 2:
        raise IndexError("deep " + str(n))
    return n


@program(args=lambda: (5, []), raises=IndexError)
def raise_in_helper_after_effects(n: int, log: List[int]) -> int:
    total = 0
    for i in range(n):
        total += _deep(i, log)
    return total


@program(args=lambda: (5, torch.zeros(2)), raises=RuntimeError)
def raise_after_tensor_effects(n: int, x: torch.Tensor) -> None:
    for i in range(n):
        x += 1
        if i == 3:
            raise RuntimeError("stopped")


@program(args=lambda: (3,), torchscript=False)
def docstring_and_comments(n: int) -> int:
    """A docstring.

    Over several lines.
    """
    # a comment
    n += 1  # another
    "a stray string"
    ...
    return n


@program(args=lambda: (torch.ones(2), 2), torchscript=False)
def positional_only(x: torch.Tensor, n: int, /) -> torch.Tensor:
    return x * n
