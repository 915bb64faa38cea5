"""A value that is a number on one path and a tensor on the other: each operator does what Python
does with what it finds, and results are of Python's types."""

import math
from typing import Any, Dict, List, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.language.support import call, program


def both(*numbers):
    """Calls with each number, and with a tensor."""
    return lambda: (
        [call(True, n, torch.tensor(5)) for n in numbers]
        + [call(False, numbers[0], torch.tensor(5))]
    )


@program(calls=both(3, -7, 2**62), torchscript=False)
def arithmetic_of_an_int(c: bool, n: int, x: Tensor):
    v = n if c else x
    return v + v, v - 1, 9 - v, v * 4, v / 2, v // 2, v % 2, v**2, v**3, -v, +v, abs(v)


@program(calls=both(2.5, -0.0, float("inf")), torchscript=False)
def arithmetic_of_a_float(c: bool, n: float, x: Tensor):
    v = n if c else x
    return v + v, v - 1, 9 - v, v * 4, v / 2, v**2, 2**v, -v, +v, abs(v)


@program(calls=both(True), torchscript=False)
def arithmetic_of_a_bool(c: bool, n: bool, x: Tensor):
    v = n if c else x
    return v + v, v - 1, v * 4, v / 2, v // 2, -v, ~v, v & 1, v | v, v ^ v, v << 3, not v, v and 7


@program(calls=both(1 + 2j), torchscript=False)
def arithmetic_of_a_complex(c: bool, n: complex, x: Tensor):
    v = n if c else x
    return v + v, v - 1, v * 4j, v / 2, v**2, -v, abs(v), v == n, v + 1 == v


@program(calls=both(3, -7, 2**40), torchscript=False)
def bits(c: bool, n: int, x: Tensor):
    v = n if c else x
    return v << 1, v >> 1, v & 3, v | 8, v ^ 1, ~v, 1 << (v & 3)


@program(calls=both(3, 5), torchscript=False)
def comparisons(c: bool, n: int, x: Tensor):
    v = n if c else x
    equal = v == 3
    found = v != 3, v < 4, v <= 5, v > 4, v >= 5, 3 < v, 3 == v, 1 < v < 9, (v > 1) & (v < 9)
    return equal, equal + 1, (v == 3) == (v == 3), int(v == 3), found, v in [1, 3], v is None


@program(calls=both(3, -2), torchscript=False)
def builtins_of_a_number(c: bool, n: int, x: Tensor):
    v = n if c else x
    smallest = min(v, 0), max(v, 4), max(0, v), max(v, 2.5, v), min([v, 2]), sorted([v, 2])
    return smallest, sum([v, v]), sum([v, 1.5]), pow(v, 2), int(v), float(v), bool(v), complex(v)


@program(calls=both(3), torchscript=False)
def text_of_a_number(c: bool, n: int, x: Tensor):
    v = n if c else x
    return str(v), repr(v), f"{v} {v:.1f} {v!r}", "%s" % v, "{}".format(v)


@program(calls=both(3), torchscript=False)
def kinds_of_results(c: bool, n: int, x: Tensor):
    v = n if c else x
    kinds = isinstance(v, int), isinstance(v, Tensor), isinstance(v * 2, int)
    return kinds, isinstance(v / 2, float), isinstance(v * 2, (float, Tensor))


@program(calls=both(3), torchscript=False)
def classes_of_results(c: bool, n: int, x: Tensor):
    v = n if c else x
    return type(v) is int, type(v / 2) is float, hasattr(v, "shape")


@program(calls=both(2), torchscript=False)
def as_an_index_and_a_size(c: bool, n: int, x: Tensor):
    v = n if c else x - 3
    items = [4, 5, 6][v], (4, 5.5, "c")[v], "abc"[v], [0] * v, list(range(v)), "a" * v
    return items, list(enumerate([5, 6], v)), torch.zeros(v, 3).shape, torch.arange(4)[v]


@program(calls=both(2), torchscript=False)
def beside_a_tensor(c: bool, n: int, x: Tensor):
    v, z = (n if c else x), torch.tensor([1.0, -2.0])
    called = torch.add(z, v), z.mul(v), torch.where(z > 0, z, v), torch.full_like(z, v)
    return z + v, v - z, z * v, v / z, v**z, z > v, z == v, called, z.add_(v), F.relu(z)


@program(calls=both(9, 2.0), torchscript=False)
def functions_of_math(c: bool, n: float, x: Tensor):
    v = n if c else x
    return math.sqrt(v), math.floor(v), math.ceil(v), math.log(v), math.isnan(v)


@program(calls=both(2**62 + 1), torchscript=False)
def a_large_int_is_no_float(c: bool, n: int, x: Tensor):
    v = n if c else x
    return math.floor(v), math.gcd(v, 3), v // 1


@program(calls=both(1), raises=ZeroDivisionError, torchscript=False)
def division_by_zero(c: bool, n: int, x: Tensor):
    v = n if c else x
    return v / 0


@program(calls=both(2.5), raises=TypeError, torchscript=False)
def a_tensor_is_not_rounded(c: bool, n: float, x: Tensor):
    v = n if c else x
    return round(v), round(v, 1)


@program(calls=both(7), raises=TypeError, torchscript=False)
def a_tensor_has_no_divmod(c: bool, n: int, x: Tensor):
    v = n if c else x
    q, r = divmod(v, 2)
    return q * 2 + r, q


@program(calls=both(7), raises=AttributeError, torchscript=False)
def a_number_has_no_methods_of_tensors(c: bool, n: int, x: Tensor):
    v = n if c else x
    return v.sum() + 1


@program(calls=both(7), raises=TypeError, torchscript=False)
def a_number_has_no_items(c: bool, n: int, x: Tensor):
    v = n if c else x.reshape(1)
    return v[0] + 1


@program(calls=both(7), torchscript=False)
def narrowed_to_one(c: bool, n: int, x: Tensor):
    v = n if c else x
    if isinstance(v, Tensor):
        return v.sum() // 2
    return v // 2


@program(calls=both(7, 2**70), torchscript=False)
def augmented_assignment(c: bool, n: int, x: Tensor):
    v = n if c else x.clone()
    w = v
    v += 1
    v *= 2
    v -= 3
    v //= 2
    v <<= 1
    v |= 1
    return v, w


@program(calls=both(7, 2.5), torchscript=False)
def carried_through_a_loop(c: bool, n: int, x: Tensor):
    v, w, k = (n if c else x), 1, 0
    while v > 0:
        v, w, k = v - 1, w * 2, k + 1
    for i in range(3):
        w, v = v, w + v + i
    return v, w, k


@program(calls=both(7), torchscript=False)
def held_by_containers(c: bool, n: int, x: Tensor):
    v = n if c else x
    held = {"a": 1, "b": v}
    held["a"] = v
    items = [v, v + 1]
    items.append(v / 2)
    return held["a"] + 1, items, (v, 1)[0] * 2, [u * 2 for u in items]


@program(calls=both(7), torchscript=False)
def given_to_functions(c: bool, n: int, x: Tensor):
    def scaled(u: float, by: Union[float, Tensor] = 2):
        return u * by

    v = n if c else x
    w: Tensor = v
    return scaled(v), scaled(2, v), w * 2, (lambda u: u + 1)(v)


@program(
    calls=lambda: [call(2), call(2.5), call(torch.tensor(3)), call(None)],
    torchscript=False,
)
def a_number_a_tensor_or_none(v: Optional[Union[int, float, Tensor]]):
    w = 1 if v is None else v
    return w * 2, w / 2, isinstance(w, Tensor)


LISTS = lambda: [call([]), call([torch.ones(3)]), call([torch.ones(3), torch.ones(2)])]


@program(calls=LISTS, torchscript=False)
def a_sum_that_begins_as_a_float(xs: List[Tensor]):
    total = 0.0
    for y in xs:
        total = total + y.sum()
    return total, total / 2, isinstance(total, float)


@program(calls=LISTS, torchscript=False)
def a_sum_that_begins_as_an_int(xs: List[Tensor]):
    total, count = 0, 0
    for y in xs:
        total += y.sum()
        count += y.numel()
    return total, total / max(count, 1), -total


@program(calls=LISTS, torchscript=False)
def a_largest_that_begins_as_a_float(xs: List[Tensor]):
    best = float("-inf")
    for y in xs:
        best = max(best, y.max())
    return best, min(best, 0)


@program(calls=LISTS, torchscript=False)
def a_sum_of_a_display(xs: List[Tensor]):
    return sum([y.sum() for y in xs]), sum(y.sum() for y in xs) / 2


@program(calls=LISTS, torchscript=False)
def a_sum_in_a_dict(xs: List[Tensor]) -> Dict[str, Union[float, Tensor]]:
    losses = {"all": 0.0}
    for y in xs:
        losses["all"] = losses["all"] + y.mean()
    return losses


ROWS = lambda: [call(torch.rand(n, 3, requires_grad=True)) for n in (1, 5, 60)]


@program(calls=ROWS, torchscript=False, grad=True)
def rows_added_to_a_number(x: Tensor):
    total = 0.0
    for i in range(x.shape[0]):
        total += (x[i] * x[i]).sum()
    mean = 0
    for row in x:
        mean = mean + row.exp().sum()
    return total, mean / x.shape[0]


@program(calls=lambda: [call(torch.ones(0, 3)), call(torch.ones(40, 3))], torchscript=False)
def rows_that_may_be_none(x: Tensor):
    total = 1
    for i in range(x.shape[0]):
        total += x[i].sum()
    return total, total * 2**62 if x.shape[0] == 0 else total * 2


EQUAL = lambda: [call([None, torch.tensor([3, 4]), 3, "a", 2.5], k) for k in range(5)]


@program(calls=EQUAL, torchscript=False)
def what_is_equal(values: List[Any], k: int):
    v = values[k]
    found = v == 3
    counted = found.sum() if isinstance(found, Tensor) else int(found)
    return found, isinstance(found, bool), v != 3, v == "a", counted, not isinstance(v == 4, bool)


@program(calls=lambda: [call([None, torch.tensor([3, 4])], k) for k in (0, 1)], torchscript=False)
def nothing_is_equal_to_none(values: List[Optional[Tensor]], k: int):
    v = values[k]
    return (v == 3) + 1, (v != 3) * 2, torch.ones(2) == v, v == v


@program(args=lambda: (torch.tensor(3),), torchscript=False)
def a_tensor_as_a_count(n: Tensor):
    total = 0
    for k in range(n):
        total += k
    return total, list(range(1, n)), [5, 6, 7, 8][n], math.gcd(n, 6), list(enumerate("ab", n))


@program(args=lambda: (torch.tensor(2.5),), raises=TypeError, torchscript=False)
def a_float_tensor_is_no_count(n: Tensor):
    return list(range(n))
