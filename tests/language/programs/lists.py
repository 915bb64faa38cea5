"""Lists: methods, slices, comprehensions, aliasing, arguments changed in place."""

from typing import Any, Dict, List, Optional, Tuple

import torch

from tests.language.support import program


@program(args=lambda: ([1, 2, 3],))
def append_extend_insert(xs: List[int]) -> int:
    xs.append(4)
    xs.extend([5, 6])
    xs.insert(0, 0)
    xs.insert(3, 99)
    return len(xs)


@program(args=lambda: ([5, 6, 7, 8],))
def pops(xs: List[int]) -> Tuple[int, int, int]:
    return xs.pop(), xs.pop(0), xs.pop(-2)


@program(args=lambda: ([5, 6, 7, 6],))
def remove_reverse(xs: List[int]) -> List[int]:
    xs.remove(6)
    xs.reverse()
    return xs


@program(args=lambda: ([3, 1, 2],))
def sort_in_place(xs: List[int]) -> List[int]:
    xs.sort()
    return xs


@program(args=lambda: ([3.5, 1.0, 2.0],))
def sort_descending(xs: List[float]) -> List[float]:
    xs.sort(reverse=True)
    return xs


@program(args=lambda: ([3, 1, 2],))
def sorted_leaves_original(xs: List[int]) -> Tuple[List[int], List[int]]:
    ys = sorted(xs)
    return ys, xs


@program(args=lambda: ([(2, "b"), (1, "z"), (1, "a")],))
def sorted_tuples(xs: List[Tuple[int, str]]) -> List[Tuple[int, str]]:
    return sorted(xs)


def _second(p: Tuple[str, int]) -> int:
    return p[1]


@program(args=lambda: ([("a", 3), ("b", 1)],), torchscript=False)
def sort_by_function(xs: List[Tuple[str, int]]) -> List[Tuple[str, int]]:
    xs.sort(key=_second)
    return xs


@program(args=lambda: ([1, 2, 1, 3],))
def index_count(xs: List[int]) -> Tuple[int, int, int]:
    return xs.index(3), xs.count(1), xs.count(9)


@program(args=lambda: ([1, 2],))
def copy_and_clear(xs: List[int]) -> List[int]:
    ys = xs.copy()
    ys.append(3)
    xs.clear()
    return ys


@program(args=lambda: ([0, 1, 2, 3, 4, 5],))
def slices(xs: List[int]) -> List[List[int]]:
    return [xs[1:3], xs[:2], xs[4:], xs[-2:], xs[:-1], xs[::2], xs[1:5:3], xs[:], xs[10:]]


@program(args=lambda: ([0, 1, 2, 3],))
def slices_backwards(xs: List[int]) -> List[List[int]]:
    return [xs[::-1], xs[3:0:-1], xs[::-2]]


@program(args=lambda: ([0, 1, 2, 3, 4],), torchscript=False)
def slice_assignment(xs: List[int]) -> List[int]:
    xs[1:3] = [10, 20, 30]
    xs[0] = -1
    xs[-1] = -9
    return xs


@program(args=lambda: ([0, 1, 2, 3, 4, 5],), torchscript=False)
def slice_assignment_steps(xs: List[int]) -> List[int]:
    xs[::2] = [7, 8, 9]
    xs[4:] = []
    xs[:0] = [100]
    return xs


@program(args=lambda: ([0, 1, 2, 3, 4],))
def deleting(xs: List[int]) -> List[int]:
    del xs[0]
    del xs[-1]
    return xs


@program(args=lambda: ([0, 1, 2, 3, 4],), torchscript=False)
def deleting_slices(xs: List[int]) -> List[int]:
    del xs[1:3]
    return xs


@program(args=lambda: ([1, 2], [3]))
def plus_and_times(a: List[int], b: List[int]) -> Tuple[List[int], List[int], List[int]]:
    return a + b, a * 2, [0] * 3


@program(args=lambda: ([1, 2], [3]))
def plus_makes_new_list(a: List[int], b: List[int]) -> List[int]:
    c = a
    a = a + b
    a.append(5)
    return c


@program(args=lambda: ([1, 2], [3]))
def plus_equals_changes_in_place(a: List[int], b: List[int]) -> List[int]:
    c = a
    a += b
    return c


@program(args=lambda: ([1, 2, 3],))
def element_augmented(xs: List[int]) -> List[int]:
    xs[0] += 10
    xs[-1] *= 2
    for i in range(len(xs)):
        xs[i] -= 1
    return xs


@program(args=lambda: ([[1, 2], [3]],))
def nested(xs: List[List[int]]) -> int:
    xs[0][1] = 7
    xs[1].append(4)
    xs.append([5])
    total = 0
    for row in xs:
        for x in row:
            total += x
    return total


@program(args=lambda: (3,))
def nested_repeat_aliases(n: int) -> List[List[int]]:
    rows = [[0] * 2] * n
    rows[0][0] = 1
    return rows


@program(args=lambda: (2, 3))
def grid(n: int, m: int) -> List[List[int]]:
    g = [[0 for _ in range(m)] for _ in range(n)]
    for i in range(n):
        for j in range(m):
            g[i][j] = i * m + j
    return g


@program(args=lambda: ([torch.ones(2), torch.zeros(2)],))
def list_of_tensors(xs: List[torch.Tensor]) -> torch.Tensor:
    xs.append(xs[0] * 3)
    xs[1] += 1
    return torch.stack(xs).sum(0)


@program(args=lambda: (torch.arange(6.0),))
def tensors_appended_in_loop(x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    out: List[torch.Tensor] = []
    h = torch.zeros(())
    for i in range(x.numel()):
        h = h * 0.5 + x[i]
        out.append(h)
    return torch.stack(out), out


@program(args=lambda: ([(1, "a"), (2, "b")],))
def list_of_tuples(xs: List[Tuple[int, str]]) -> Tuple[int, str]:
    xs.append((3, "c"))
    n, s = xs[-1]
    return n + xs[0][0], s + xs[1][1]


@program(args=lambda: ([1, 2], [1, 3]))
def comparisons(a: List[int], b: List[int]) -> List[bool]:
    return [a == b, a != b, a == [1, 2]]


@program(args=lambda: ([1, 2], [1, 3]), torchscript=False)
def ordering(a: List[int], b: List[int]) -> List[bool]:
    return [a < b, a >= b, [1] < [1, 0]]


@program(args=lambda: ([1, 2, 3],))
def membership(xs: List[int]) -> List[bool]:
    return [2 in xs, 5 in xs, 5 not in xs]


@program(args=lambda: ([1, 2, 3, 4],))
def comprehension(xs: List[int]) -> List[int]:
    return [x * x for x in xs]


@program(args=lambda: ([1, 2, 3, 4],), torchscript=False)
def comprehension_with_if(xs: List[int]) -> List[int]:
    return [x for x in xs if x % 2 == 0]


@program(args=lambda: ([1, 2], ["a", "b"]), torchscript=False)
def comprehension_over_zip(xs: List[int], ys: List[str]) -> List[str]:
    return [y * x for x, y in zip(xs, ys)]


@program(args=lambda: (["a", "b"],))
def comprehension_over_enumerate(xs: List[str]) -> List[str]:
    return [str(i) + x for i, x in enumerate(xs)]


@program(args=lambda: (3,), torchscript=False)
def comprehension_two_loops(n: int) -> List[int]:
    return [i * 10 + j for i in range(n) for j in range(i)]


@program(args=lambda: ([[1, 2], [3, 4]],))
def comprehension_nested(xs: List[List[int]]) -> List[List[int]]:
    return [[y + 1 for y in row] for row in xs]


@program(args=lambda: (3,))
def comprehension_scope(n: int) -> Tuple[int, List[int]]:
    i = 100
    xs = [i for i in range(n)]
    return i, xs


@program(args=lambda: ([1, 2, 3],))
def alias_two_names(xs: List[int]) -> Tuple[List[int], bool]:
    ys = xs
    ys.append(4)
    return xs, xs is ys


def _append_twice(xs: List[int], v: int) -> None:
    xs.append(v)
    xs.append(v)


def _same(xs: List[int]) -> List[int]:
    xs[0] = 0
    return xs


@program(args=lambda: ([1],))
def alias_through_helpers(xs: List[int]) -> List[int]:
    _append_twice(xs, 2)
    ys = _same(xs)
    ys.append(3)
    return xs


@program(args=lambda: ([1],))
def alias_stored_in_list(xs: List[int]) -> List[List[int]]:
    boxes: List[List[int]] = []
    boxes.append(xs)
    boxes.append(xs)
    boxes[0].append(2)
    return boxes


@program(args=lambda: ([1],))
def alias_stored_in_dict(xs: List[int]) -> List[int]:
    d: Dict[str, List[int]] = {"a": xs}
    d["a"].append(2)
    d["b"] = d["a"]
    d["b"].append(3)
    return xs


@program(args=lambda: ([1],))
def alias_stored_in_tuple(xs: List[int]) -> Tuple[List[int], int]:
    p = (xs, 5)
    p[0].append(2)
    a, b = p
    a.append(b)
    return p


@program(args=lambda: (torch.zeros(2),))
def alias_of_tensor_in_list(x: torch.Tensor) -> List[torch.Tensor]:
    xs = [x, x]
    xs[0].add_(1)
    xs[1] *= 5
    return xs


@program(args=lambda: ([1, 2, 3],))
def iterate_over_copy(xs: List[int]) -> List[int]:
    for x in xs[:]:
        if x != 2:
            xs.remove(x)
    return xs


@program(args=lambda: ([4, 1, 3],))
def min_max_sum(xs: List[int]) -> Tuple[int, int, int]:
    return min(xs), max(xs), sum(xs)


@program(args=lambda: ([4.5, 1.0],))
def min_max_sum_float(xs: List[float]) -> Tuple[float, float, float]:
    return min(xs), max(xs), sum(xs)


@program(args=lambda: ([True, False], [True, True]))
def any_all(a: List[bool], b: List[bool]) -> List[bool]:
    return [any(a), all(a), all(b), any([x > 2 for x in [1, 2]])]


@program(calls=lambda: [([],), ([1],)])
def truth_by_length(xs: List[int]) -> str:
    if len(xs) == 0:
        return "empty"
    return "some"


@program(calls=lambda: [([],), ([1],)])
def truth_of_list(xs: List[int]) -> str:
    if xs:
        return "some"
    return "empty" if not xs else "?"


@program(args=lambda: ("abc", (1, 2), 3))
def list_of_iterables(s: str, p: Tuple[int, int], n: int) -> Tuple[List[str], List[int], List[int]]:
    return list(s), list(p), list(range(n))


@program(args=lambda: ([1, 2, 3],))
def list_copies(xs: List[int]) -> List[int]:
    ys = list(xs)
    ys[0] = 50
    return ys


@program(args=lambda: ([1, 2],))
def list_of_enumerate_and_zip(xs: List[int]) -> Tuple[List[Tuple[int, int]], List[Tuple[int, int]]]:
    return list(enumerate(xs)), list(zip(xs, xs[1:]))


@program(args=lambda: ([1, 2],), torchscript=False)
def starred_literal(xs: List[int]) -> List[int]:
    return [0, *xs, 9, *xs]


@program(args=lambda: ([1, 2, 3, 4],), torchscript=False)
def starred_unpacking(xs: List[int]) -> Tuple[int, List[int], int]:
    first, *middle, last = xs
    return first, middle, last


@program(args=lambda: ([1, 2, 3],))
def unpacking(xs: List[int]) -> int:
    a, b, c = xs
    return a * 100 + b * 10 + c


@program(args=lambda: ([1, 2, 3],))
def swap(xs: List[int]) -> List[int]:
    xs[0], xs[2] = xs[2], xs[0]
    return xs


@program(args=lambda: ([1, 2, 3],), raises=IndexError)
def index_out_of_range(xs: List[int]) -> int:
    return xs[3]


@program(args=lambda: ([1, 2],), raises=ValueError)
def remove_missing(xs: List[int]) -> None:
    xs.append(3)
    xs.remove(7)


@program(args=lambda: ([],), raises=IndexError)
def pop_of_empty(xs: List[int]) -> int:
    return xs.pop()


@program(args=lambda: ([None, 2],))
def list_of_optionals_written(xs: List[Optional[int]]) -> List[Optional[int]]:
    xs[0] = 5
    xs.append(None)
    return xs


@program(args=lambda: ([5, 2, 9, 1],))
def bubble_sort(xs: List[int]) -> List[int]:
    for i in range(len(xs)):
        for j in range(len(xs) - 1 - i):
            if xs[j] > xs[j + 1]:
                xs[j], xs[j + 1] = xs[j + 1], xs[j]
    return xs


@program(args=lambda: ([1, 2, 3],))
def stack_and_queue(xs: List[int]) -> List[int]:
    stack: List[int] = []
    out: List[int] = []
    while len(xs) > 0:
        stack.append(xs.pop(0))
    while len(stack) > 0:
        out.append(stack.pop())
    return out


@program(args=lambda: ([3, 1, 2], ["a", "b", "c"]), torchscript=False)
def iterators_read_at_once(xs: List[int], names: List[str]) -> List[Any]:
    ys = [0]
    ys.extend(reversed(xs))
    ys += reversed(xs)
    ys[1:2] = reversed(xs)
    a, b, c = reversed(xs)
    d = dict(enumerate(names))
    d.update(zip(xs, names))
    s = {1}
    s.update(reversed(xs))
    return [
        ys, (a, b, c), d, s.union(enumerate(xs)), "_".join(reversed(names)),
        sorted(reversed(xs)), tuple(reversed(xs)), [*reversed(xs)], "".join(reversed("ab")),
        2 in reversed(xs), 7 in reversed(xs), sum(reversed(xs)), all(reversed(xs)),
    ]  # fmt: skip


@program(calls=lambda: [([3, 1, 2], ["c", "b", "c"]), ([], [])], torchscript=False)
def extremes_of_iterators(xs: List[int], names: List[str]) -> List[Any]:
    last = max(enumerate(xs)) if xs else None
    by_name = min(zip(names, xs)) if xs else None
    by_key = max(enumerate(xs), key=lambda pair: pair[1]) if xs else None
    return [last, by_name, by_key, max(reversed(xs), default=None), sorted(zip(names, xs))]
