"""Functions as values: handed on, returned, stored, made by other functions."""

from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from tests.language.support import jit, module_program, program

_MODES = {"same", "valid"}
_FROZEN = frozenset({1, 2, 3})


def _message(text: Optional[str]) -> Optional[str]:
    return text


def _check(condition: bool, message: Optional[str] = None) -> bool:
    if not condition:
        found = _message(message)
        raise ValueError("failed" if found is None else "failed with a message")
    return True


@program(calls=lambda: [(3,), (0,)], raises=ValueError, torchscript=False)
def lambda_handed_through(n: int) -> bool:
    return _check(n > 0, lambda: f"got {n}")


def _scaler(factor: int) -> Callable[[int], int]:
    return lambda n: n * factor


@program(args=lambda: (4,), torchscript=False)
def factory_of_lambdas(n: int) -> int:
    double = _scaler(2)
    triple = _scaler(3)
    return double(n) + triple(n)


def _power(exponent: int) -> Callable[[Tensor], Tensor]:
    def raised(x: Tensor) -> Tensor:
        out = torch.ones_like(x)
        for _ in range(exponent):
            out = out * x
        return out

    return raised


@program(args=lambda: (torch.arange(4.0),), torchscript=False)
def factory_of_functions(x: Tensor) -> Tensor:
    cube = _power(3)
    return cube(x) + _power(2)(x)


class _Refused(ValueError):
    def __init__(self, why: Callable[[], str], code: int = 2) -> None:
        super().__init__(why(), code)


@program(calls=lambda: [(3, "a"), (0, "b")], raises=ValueError, torchscript=False)
def lambda_in_an_exception(n: int, name: str) -> int:
    if n == 0:
        raise _Refused(lambda: f"{name} is {n}")
    return n


@program(args=lambda: (3,), torchscript=False)
def lambda_as_a_sort_key_by_name(n: int) -> List[int]:
    key = lambda v: (v * 7) % 5
    return sorted(range(n, n + 5), key=key)


@program(calls=lambda: [("same",), ("full",)])
def member_of_a_global_set(mode: str) -> bool:
    return mode in _MODES


@program(calls=lambda: [(1,), (9,)])
def member_of_a_global_frozenset(n: int) -> Tuple[bool, int]:
    return n not in _FROZEN, len(_FROZEN)


@program(args=lambda: (1,), torchscript=False)
def global_set_changed(n: int) -> int:
    _MODES.add("full")
    return n + len(_MODES)


def _apply(x: Tensor, then: Optional[Callable[[Tensor], Tensor]] = None) -> Tensor:
    if then is None:
        return x
    return then(x)


@program(args=lambda: (torch.ones(3),), torchscript=False)
def optional_callback(x: Tensor) -> Tensor:
    return _apply(x) + _apply(x, torch.neg) + _apply(x, lambda v: v * 3)


@program(args=lambda: (3,), refused=True, torchscript=False)
def lambda_of_a_later_value(n: int) -> int:
    late = [lambda: n]  # refused
    n = n + 1
    return late[0]()


@program(args=lambda: (torch.ones(3), None), raises=AssertionError)
def assertion_known_to_fail(x: Tensor, bias: Optional[Tensor]) -> Tensor:
    assert bias is not None
    return x + bias.sum()


class _Bias(nn.Module):
    def __init__(self, layer: Optional[nn.Module]):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, extra: Optional[Tensor] = None) -> Tensor:
        if extra is not None:
            assert self.layer is not None
            extra = self.layer(extra)
            x = x + extra
        return x


@module_program(
    make=lambda: _Bias(None), calls=lambda: [(torch.ones(2),), (torch.ones(2), torch.ones(2))],
    raises=AssertionError,
)  # fmt: skip
class AssertsASubmodule(_Bias):
    pass


@program(args=lambda: (5,), torchscript=False)
def recursion(n: int) -> int:
    if n < 2:
        return 1
    return n * recursion(n - 1)


def _ping(n: int) -> int:
    return n if n < 1 else mutual_recursion(n - 1) + 2


@program(args=lambda: (5,), torchscript=False)
def mutual_recursion(n: int) -> int:
    return _ping(n)


def _leaves(tree: List[Any], found: List[str], depth: int = 0) -> None:
    for branch in tree:
        if isinstance(branch, list):
            _leaves(branch, found, depth + 1)
        else:
            found.append(str(depth) + branch)


@program(args=lambda: ([["a", "b"], ["c"]],), torchscript=False)
def recursion_into_lists(tree: List[List[str]]) -> List[str]:
    found: List[str] = []
    _leaves(tree, found)
    return found


class _Tree:
    def __init__(self, value: int, left: "Optional[_Tree]" = None):
        self.value = value
        self.left = left

    def total(self) -> int:
        left = self.left
        return self.value if left is None else self.value + left.total()


@program(args=lambda: (5,), torchscript=False)
def recursion_of_a_method(n: int) -> int:
    return _Tree(n, _Tree(2, _Tree(3))).total()


@module_program(args=lambda: (torch.ones(2), 3), torchscript=False, grad=True)
class RecursiveModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        x = torch.tanh(self.fc(x))
        return x if depth == 0 else self.forward(x, depth - 1)


@program(args=lambda: (torch.linspace(-1, 1, 5), 1), torchscript=False)
def functions_in_a_list(x: Tensor, k: int) -> Tensor:
    steps = [torch.relu, torch.tanh, lambda v: v * 2]
    for step in steps:
        x = step(x) + 1
    return steps[k](x)


@program(args=lambda: (torch.linspace(-1, 1, 5), "tanh"), torchscript=False)
def functions_in_a_dict(x: Tensor, name: str) -> Tensor:
    table = {"relu": torch.relu, "tanh": torch.tanh, "double": _double}
    return table[name](x) + table["double"](x)


def _double(x: Tensor) -> Tensor:
    return x * 2


@program(calls=lambda: [(torch.ones(2), True), (torch.ones(2), False)], torchscript=False)
def function_chosen_by_a_flag(x: Tensor, flag: bool) -> Tensor:
    f = _double if flag else torch.neg
    return f(x)


@program(calls=lambda: [([3, 1],), ([],)], torchscript=False)
def stored_functions_by_builtins(xs: List[int]):
    fs = [lambda v, k=k: v * k for k in (1, -1)]
    return [sorted(xs, key=f) for f in fs], [list(map(f, xs)) for f in fs]
