"""Outside the language: each must be a CompileError that shows the line marked `# refused`."""

import os
from typing import Iterator, List, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program

STORED = lambda n: n * 2


@program(args=lambda: (3,), refused=True, torchscript=False)
def yields(n: int) -> Iterator[int]:
    for i in range(n):
        yield i  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def yields_from(n: int) -> Iterator[int]:
    yield from range(n)  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
async def asynchronous(n: int) -> int:  # refused
    return n


@program(args=lambda: (3,), refused=True, torchscript=False)
def inner_class(n: int) -> int:
    class Inner:  # refused
        value = 3

    return n + Inner.value


@program(args=lambda: (3,), refused=True, torchscript=False)
def calls_eval(n: int) -> int:
    return eval("n + 1")  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def calls_exec(n: int) -> int:
    exec("n = 2")  # refused
    return n


@program(args=lambda: ("x",), refused=True, torchscript=False)
def calls_open(path: str) -> int:
    f = open(path)  # refused
    return len(f.read())


@program(args=lambda: (3,), refused=True, torchscript=False)
def calls_system(n: int) -> int:
    return os.system("true") + n  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def calls_locals(n: int) -> int:
    return len(locals()) + n  # refused


@program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
def unknown_tensor_method(x: Tensor) -> Tensor:
    return x.no_such_method()  # refused


@program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
def unknown_torch_function(x: Tensor) -> Tensor:
    return torch.no_such_function(x)  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def unknown_list_method(xs: List[int]) -> int:
    return xs.no_such_method(2)  # refused


@program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
def undefined_name(x: Tensor) -> Tensor:
    return x + not_defined_anywhere  # refused


def _two(a: int, b: int) -> int:
    return a + b  # refused by wrong_type_to_helper


@program(args=lambda: (3,), refused=True, torchscript=False)
def too_few_arguments(n: int) -> int:
    return _two(n)  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def too_many_arguments(n: int) -> int:
    return _two(n, n, n)  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def unknown_keyword(n: int) -> int:
    return _two(n, c=n)  # refused


@program(args=lambda: (3,), refused=True, torchscript=False)
def global_statement(n: int) -> int:
    global COUNTER  # refused
    COUNTER = n
    return n


@program(args=lambda: (3,), refused=True, torchscript=False)
def metaclass_trick(n: int) -> int:
    made = type("Made", (), {"n": n})  # refused
    return made().n


@program(args=lambda: (3,), refused=True, torchscript=False)
def lambda_stored_in_list(n: int) -> int:
    fs = [lambda: i for i in range(n)]  # refused
    return fs[0]()


@program(args=lambda: (3,), refused=True, torchscript=False)
def string_plus_int(n: int) -> str:
    return "n" + n  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def wrong_type_to_helper(xs: List[int]) -> int:
    return _two(xs, 1)  # refused


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def sets_attribute_of_builtin(xs: List[int]) -> int:
    xs.label = 3  # refused
    return len(xs)


@program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
def set_attribute_by_name(x: Tensor) -> Tensor:
    setattr(x, "label", 3)  # refused
    return x


@program(args=lambda: (3,), refused=True, torchscript=False)
def input_from_user(n: int) -> int:
    return n + len(input())  # refused


@program(args=lambda: ((1, 2, 3),), refused=True, torchscript=False)
def unpacks_too_few(p: Tuple[int, int, int]) -> int:
    a, b = p  # refused
    return a + b


@program(args=lambda: (3,), refused=True, torchscript=False)
def iterates_over_int(n: int) -> int:
    total = 0
    for i in n:  # refused
        total += i
    return total


@module_program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
class DeletesAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        del self.scale  # refused
        return y


@module_program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
class UnknownAttribute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.never_set  # refused


@module_program(args=lambda: (torch.ones(2),), refused=True, torchscript=False)
class NewAttributeInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.made_here = nn.Linear(2, 2)  # refused
        return self.made_here(x)


@module_program(args=lambda: (torch.ones(2), 1), refused=True, torchscript=False)
class WrongCallOfSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor, n: int) -> Tensor:
        return self.fc(x, n)  # refused


@program(args=lambda: (torch.ones(2), 4), refused=True)
def inner_function_calls_itself(x: Tensor, n: int) -> Tensor:
    def factorial(k: int) -> int:
        return 1 if k < 2 else k * factorial(k - 1)  # refused

    return x * factorial(n)


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def iterator_in_a_list(xs: List[int]) -> int:
    ys = [reversed(xs)]  # refused
    return len(ys)


@program(args=lambda: ([1, 2],), refused=True, torchscript=False)
def iterator_as_an_element(xs: List[int]) -> int:
    ys = [0]
    ys.append(zip(xs, xs))  # refused
    return len(ys)


@program(args=lambda: (3,), refused=True, torchscript=False)
def tuple_of_a_number(n: int) -> int:
    return len(tuple(n))  # refused
