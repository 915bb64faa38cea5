"""Control flow: branches, loops and their exits, short circuit, calls."""

from typing import Dict, List, Optional, Tuple

import torch

from tests.language.support import program


@program(calls=lambda: [(5,), (0,), (-5,)])
def if_elif_else(n: int) -> str:
    if n > 0:
        s = "positive"
    elif n == 0:
        s = "zero"
    else:
        s = "negative"
    return s


@program(calls=lambda: [(1, 1), (1, 0), (0, 1), (0, 0)])
def nested_ifs(a: int, b: int) -> int:
    r = 0
    if a > 0:
        if b > 0:
            r = 11
        else:
            r = 10
    else:
        if b > 0:
            r = 1
    return r


@program(args=lambda: (10,))
def while_simple(n: int) -> int:
    i = 0
    total = 0
    while i < n:
        total += i
        i += 1
    return total


@program(args=lambda: (10,))
def while_true_break(n: int) -> int:
    i = 0
    while True:
        i += 3
        if i > n:
            break
    return i


@program(args=lambda: (10,))
def continue_in_for(n: int) -> List[int]:
    out: List[int] = []
    for i in range(n):
        if i % 3 == 0:
            continue
        out.append(i)
    return out


@program(args=lambda: (5, 4))
def break_in_nested_loops(n: int, m: int) -> List[Tuple[int, int]]:
    out: List[Tuple[int, int]] = []
    for i in range(n):
        for j in range(m):
            if j > i:
                break
            if i + j == 3:
                continue
            out.append((i, j))
        if len(out) > 7:
            break
    return out


@program(calls=lambda: [([1, 3, 5],), ([1, 4, 5],)], torchscript=False)
def for_else(xs: List[int]) -> str:
    for x in xs:
        if x % 2 == 0:
            r = "even found"
            break
    else:
        r = "all odd"
    return r


@program(calls=lambda: [(5,), (50,)], torchscript=False)
def while_else(n: int) -> int:
    i = 0
    while i < n:
        i += 7
        if i == 21:
            break
    else:
        i = -i
    return i


@program(calls=lambda: [(3,), (9,)])
def early_return_in_nested_loops(n: int) -> Tuple[int, int]:
    for i in range(5):
        for j in range(5):
            if i * j == n:
                return i, j
    return -1, -1


@program(calls=lambda: [(3,), (100,)])
def early_return_in_while(n: int) -> int:
    i = 1
    while i < 50:
        if i % n == 0:
            return i
        i += 1
    return -1


@program(calls=lambda: [(2,), (7,)])
def return_in_every_branch(n: int) -> int:
    if n > 5:
        if n > 6:
            return 1
        else:
            return 2
    else:
        for i in range(n):
            if i == 1:
                return 3
        return 4


@program(calls=lambda: [(True, False), (False, True)])
def ternaries(a: bool, b: bool) -> int:
    return 1 if a else 2 if b else 3


def _note(log: List[str], name: str, value: bool) -> bool:
    log.append(name)
    return value


@program(calls=lambda: [(True, True), (True, False), (False, True)])
def short_circuit_effects(a: bool, b: bool) -> Tuple[bool, bool, List[str]]:
    log: List[str] = []
    x = _note(log, "a", a) and _note(log, "b", b)
    y = _note(log, "c", a) or _note(log, "d", b)
    return x, y, log


@program(calls=lambda: [(1, 5, 9), (5, 1, 9)], torchscript=False)
def chained_comparison_once(lo: int, x: int, hi: int) -> Tuple[bool, List[str]]:
    log: List[str] = []
    inside = lo <= int(_note(log, "x", True)) * x < hi
    return inside, log


@program(calls=lambda: [(torch.ones(3),), (-torch.ones(3),)])
def branch_on_tensor(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    else:
        return x - 1


@program(calls=lambda: [(torch.ones(3),), (torch.zeros(3),)])
def branch_on_bool_of_tensor(x: torch.Tensor) -> int:
    if bool((x > 0).all()):
        return 1
    if not x.any():
        return 2
    return 3


@program(args=lambda: (torch.tensor([3.0, 4.0]),))
def loop_while_tensor(x: torch.Tensor) -> Tuple[torch.Tensor, int]:
    n = 0
    while x.norm() > 1:
        x = x / 2
        n += 1
    return x, n


@program(args=lambda: (torch.arange(6.0).reshape(3, 2),))
def loop_over_tensor(x: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros(2)
    for row in x:
        acc = acc + row * 2
    return acc


@program(args=lambda: (torch.arange(3), 2))
def range_from_tensor(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros(3)
    for i in range(x.size(0)):
        for _ in range(int(x[i])):
            out[i] += n
    return out


@program(args=lambda: (10,))
def range_forms(n: int) -> List[int]:
    out: List[int] = []
    for i in range(2, n):
        out.append(i)
    for i in range(0, n, 3):
        out.append(i)
    for i in range(n, 0, -4):
        out.append(i)
    for i in range(5, 5):
        out.append(1000)
    for i in range(-3):
        out.append(2000)
    return out


@program(args=lambda: (0,), raises=ValueError)
def range_step_zero(n: int) -> int:
    total = 0
    for i in range(0, 10, n):
        total += i
    return total


@program(args=lambda: ([(1, "a"), (2, "b")],), torchscript=False)
def unpacking_in_for(xs: List[Tuple[int, str]]) -> str:
    s = ""
    for n, c in xs:
        s += c * n
    return s


@program(args=lambda: ([1, 2, 3], [4.0, 5.0, 6.0], ["a", "b", "c"]))
def zip_of_three(a: List[int], b: List[float], c: List[str]) -> List[str]:
    out: List[str] = []
    for x, y, z in zip(a, b, c):
        out.append(z + str(x) + str(int(y)))
    return out


@program(args=lambda: ([1, 2, 3], [4, 5]))
def zip_uneven(a: List[int], b: List[int]) -> int:
    total = 0
    for x, y in zip(a, b):
        total += x * y
    return total


@program(args=lambda: (["a", "b"],))
def enumerate_with_start(xs: List[str]) -> Dict[int, str]:
    d: Dict[int, str] = {}
    for i, x in enumerate(xs, 1):
        d[i] = x
    for i, x in enumerate(xs, start=10):
        d[i] = x
    return d


@program(args=lambda: ([1, 2], [3, 4]))
def enumerate_of_zip(a: List[int], b: List[int]) -> int:
    total = 0
    for i, (x, y) in enumerate(zip(a, b)):
        total += i * x * y
    return total


@program(args=lambda: ([3, 1, 2],), torchscript=False)
def reversed_loop(xs: List[int]) -> List[int]:
    out: List[int] = []
    for x in reversed(xs):
        out.append(x)
    for i in reversed(range(3)):
        out.append(i)
    return out


@program(args=lambda: ({"a": 1, "b": 2},))
def loop_over_dict(d: Dict[str, int]) -> Tuple[str, int]:
    names = ""
    total = 0
    for k in d:
        names += k
    for k, v in d.items():
        total += v * len(k)
    for v in d.values():
        total += v
    for k in d.keys():
        names += k
    return names, total


@program(args=lambda: ((1, 2, 3),))
def loop_over_tuple(p: Tuple[int, int, int]) -> int:
    total = 0
    for x in p:
        total = total * 10 + x
    return total


@program(args=lambda: (2,))
def loop_over_list_literal(n: int) -> List[int]:
    out: List[int] = []
    for k in [1, 3, 5]:
        out.append(k * n)
    for k in (2, 4):
        out.append(k * n)
    return out


@program(args=lambda: (4,))
def variable_after_loop(n: int) -> Tuple[int, int]:
    last = -1
    i = 0
    for i in range(n):
        last = i * i
    return last, i


@program(args=lambda: (4,), torchscript=False)
def loop_variable_after_loop(n: int) -> int:
    for i in range(n):
        pass
    return i


@program(args=lambda: (4,))
def assigned_in_loop_seen_in_next_turn(n: int) -> List[int]:
    prev: Optional[int] = None
    out: List[int] = []
    for i in range(n):
        if prev is not None:
            out.append(prev * 10 + i)
        prev = i
    return out


@program(args=lambda: ([1, 2, 3],))
def loop_variable_reassigned(xs: List[int]) -> List[int]:
    out: List[int] = []
    for x in xs:
        x = x * 2
        x += 1
        out.append(x)
    return out


@program(args=lambda: (3,))
def range_bound_evaluated_once(n: int) -> int:
    total = 0
    for i in range(n):
        n += 1
        total += n
    return total


@program(args=lambda: ([1, 2, 3],))
def list_grows_in_loop(xs: List[int]) -> List[int]:
    for x in xs:
        if len(xs) < 6:
            xs.append(x * 10)
    return xs


@program(args=lambda: (torch.ones(2), True))
def variable_of_both_branches(x: torch.Tensor, flag: bool) -> torch.Tensor:
    if flag:
        y = x + 1
        z = 2
    else:
        y = x - 1
        z = 3
    return y * z


@program(args=lambda: (3,))
def pass_statements(n: int) -> int:
    if n > 2:
        pass
    else:
        n = 0
    for _ in range(2):
        pass
    return n


def _level3(x: int) -> int:
    if x > 10:
        return x - 10
    return x + 3


def _level2(x: int, twice: bool = False) -> int:
    y = _level3(x)
    if twice:
        y = _level3(y)
    return y


def _level1(x: int) -> int:
    total = 0
    for i in range(3):
        total += _level2(x + i, twice=i % 2 == 0)
    return total


@program(args=lambda: (8,))
def calls_many_levels(x: int) -> int:
    return _level1(x) + _level2(x) * _level3(_level3(x))


def _stats(xs: List[float]) -> Tuple[float, float, int]:
    total = 0.0
    best = xs[0]
    for x in xs:
        total += x
        if x > best:
            best = x
    return total, best, len(xs)


@program(args=lambda: ([1.0, 5.0, 2.0],))
def tuple_return_unpacked(xs: List[float]) -> float:
    total, best, n = _stats(xs)
    _, again, _ = _stats(xs)
    return total / n + best + again


def _bump(x: torch.Tensor) -> None:
    x += 1


@program(args=lambda: (torch.zeros(2),))
def none_return_helper(x: torch.Tensor) -> torch.Tensor:
    _bump(x)
    _bump(x)
    return x


def _defaults(a: int, b: int = 2, c: Optional[int] = None, *, d: str = "d") -> str:
    return str(a) + str(b) + ("n" if c is None else str(c)) + d


@program(args=lambda: (1,), torchscript=False)
def default_and_keyword_arguments(a: int) -> List[str]:
    return [
        _defaults(a),
        _defaults(a, 3),
        _defaults(a, c=4),
        _defaults(b=5, a=a),
        _defaults(a, 3, 4, d="e"),
    ]


@program(calls=lambda: [(2,), (5,)], torchscript=False)
def infinite_loop_with_returns(n: int) -> int:
    i = 0
    while True:
        i += 1
        if i * i > n:
            return i


@program(args=lambda: (torch.arange(5.0),))
def data_dependent_accumulate(x: torch.Tensor) -> Tuple[torch.Tensor, int]:
    total = torch.zeros(())
    count = 0
    for i in range(x.shape[0]):
        v = x[i]
        if v > 1 and v < 4:
            total = total + v
            count += 1
        elif v >= 4:
            break
    return total, count


@program(args=lambda: (torch.tensor([1.0, -2.0, 3.0]),))
def loop_carried_tensor_types(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for i in range(3):
        if i == 1:
            h = torch.cat([h, x])
        else:
            h = h + 1
    return h


@program(calls=lambda: [(0,), (3,)])
def zero_turns(n: int) -> Tuple[int, List[int]]:
    x = 100
    out: List[int] = []
    for i in range(n):
        x = i
        out.append(x)
    return x, out


@program(args=lambda: (3,))
def deep_nesting(n: int) -> int:
    total = 0
    for a in range(n):
        for b in range(a, n):
            c = 0
            while c < b:
                if (a + b + c) % 2 == 0:
                    if c == 1:
                        break
                    total += 1
                else:
                    for d in range(2):
                        if d == 1:
                            continue
                        total += 10
                c += 1
    return total


@program(args=lambda: (5,))
def multiple_targets(n: int) -> Tuple[int, int, int]:
    a = b = n
    a, b = b + 1, a + 2
    (c, d), e = (a, b), 3
    return c + d, b, e


@program(args=lambda: (torch.ones(2, 3),))
def tensor_truth_in_while(x: torch.Tensor) -> int:
    n = 0
    done = torch.tensor(False)
    while not done:
        n += 1
        done = x.sum() * n > 20
    return n


@program(args=lambda: (torch.arange(4.0),))
def conditional_expression_of_tensors(x: torch.Tensor) -> torch.Tensor:
    y = x + 1 if x.mean() > 1 else x - 1
    return y if y.dim() == 1 else y.flatten()


@program(
    calls=lambda: [([1, 5, 2], 0), ([1, 5, 2], 1), ([5, 1, 6], 1), ([5, 1, 6], 2)],
    torchscript=False,
)
def leaving_from_the_else_of_for(xs: List[int], way: int) -> List[int]:
    out: List[int] = []
    for x in xs:
        for j in range(x):
            if j == 2:
                break
        else:
            if way == 0:
                continue
            if way == 1:
                break
            return [-x]
        out.append(x)
    else:
        out.append(99)
    return out


@program(calls=lambda: [(4,), (1,)], torchscript=False)
def continue_in_the_else_in_a_while(n: int) -> Tuple[int, int]:
    i = 0
    while i < n:
        for j in range(2):
            if j == 5:
                break
        else:
            i += 2
            continue
        i += 100
    else:
        return i, 1
    return i, 0


@program(calls=lambda: [([4, 3, 4], 1), ([4, 3, 4], 0), ([3, 4, 3], 0)], torchscript=False)
def leaving_from_the_else_of_while(xs: List[int], goes_on: int) -> int:
    r = 0
    for x in xs:
        while x > 0:
            x -= 2
            if x == 1:
                r += 10
                break
        else:
            r += 1
            if goes_on:
                continue
            else:
                break
        r += 100
    return r


@program(calls=lambda: [(0,), (1,), (2,), (4,)], torchscript=False)
def leaving_from_elses_of_three_loops(n: int) -> Tuple[int, int]:
    for i in range(n):
        for j in range(n):
            for k in range(n):
                if k == 2:
                    break
            else:
                break
            if j == 1:
                break
        else:
            continue
        return i, j
    return -1, -1


@program(calls=lambda: [(n, m) for n in range(4) for m in range(5)], torchscript=False)
def leaving_from_the_else_of_unrolled_loops(n: int, m: int) -> List[int]:
    out: List[int] = []
    for q in (0, 1, 2):
        for i in (1, 2, 3):
            if i == m:
                break
            if i * q == n:
                return out
        else:
            out.append(-q)
            if q == n:
                break
            continue
        out.append(q)
    else:
        out.append(99)
    return out


@program(calls=lambda: [(n, m) for n in range(4) for m in range(4)], torchscript=False)
def leaving_from_with_and_else(n: int, m: int) -> List[int]:
    out: List[int] = []
    for q in range(4):
        with torch.no_grad():
            for i in range(q):
                if i == m:
                    break
            else:
                with torch.no_grad():
                    for j in (1, 2):
                        if j == n:
                            break
                    else:
                        if q == 1:
                            continue
                        break
                out.append(-q)
        out.append(100)
    return out


@program(calls=lambda: [(3, 1), (3, 4), (0, 1)], torchscript=False)
def while_true_has_no_else(n: int, m: int) -> List[int]:
    out: List[int] = []
    for q in range(n):
        while True:
            m += 1
            if m > 6:
                break
            if m == 3:
                continue
            out.append(m)
        else:
            continue
        out.append(-q)
    return out


@program(calls=lambda: [(3, 1), (3, 4), (0, 1)], torchscript=False)
def variable_of_a_loop_or_of_an_else(n: int, m: int) -> int:
    for i in range(n):
        y = i
    for k in range(m):
        if k == 2:
            break
    else:
        y = 50
    return y


@program(calls=lambda: [(3, 5), (3, 1), (1, 0)], torchscript=False)
def variable_of_a_loop_before_a_break(n: int, m: int) -> int:
    while n < m + 9:
        for i in range(n):
            y = i
        n += 1
        if n > m:
            break
        y = -1
    return y


@program(calls=lambda: [(1, 9), (3, 9), (3, 1)], torchscript=False)
def variable_of_a_loop_in_its_else(n: int, m: int) -> int:
    for i in range(n):
        if i == m:
            break
    else:
        return i * 10
    return -1


@program(calls=lambda: [(0, 3), (1, 3)], raises=TypeError, torchscript=False)
def operator_where_it_may_not_run(kind: int, n: int):
    return n if kind == 0 else n + "a"


@program(calls=lambda: [(0, 3), (1, 3)], raises=TypeError, torchscript=False)
def length_where_it_may_not_run(kind: int, n: int):
    if kind == 1:
        return len(n)
    return n


@program(calls=lambda: [(0, 3), (1, 3)], raises=AttributeError, torchscript=False)
def attribute_where_it_may_not_run(kind: int, n: int):
    if kind == 1:
        return n.shape
    return n


@program(calls=lambda: [(0, 3), (1, 3)], raises=TypeError, torchscript=False)
def unpacked_where_it_may_not_run(kind: int, n: int):
    for _ in range(kind):
        a, b = n
    return n


@program(calls=lambda: [(0, (1, 2)), (1, (1, 2))], raises=TypeError, torchscript=False)
def stored_where_it_may_not_run(kind: int, pair: Tuple[int, int]):
    if kind == 1:
        pair[0] = 5
    return pair
