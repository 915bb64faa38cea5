"""Lists in lists, tuples and dicts: whoever holds one sees what the others put in."""

from typing import Any, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.language.support import call, program


def calls():
    return [call(torch.tensor([1.0, 2.0])), call(torch.tensor([0.0, -2.0]))]


@program(calls=calls)
def rows_written_in_a_loop(x: Tensor):
    m = [[0], [0]]
    for i in range(2):
        m[i][0] = i + 1
    return x * m[1][0]


@program(calls=calls)
def rows_appended_to(x: Tensor):
    b: List[List[Tensor]] = [[], []]
    for i in range(2):
        b[i].append(x * i)
    return b


@program(calls=calls)
def rows_chosen_by_remainder(x: Tensor):
    b: List[List[Tensor]] = [[], []]
    for i in range(3):
        b[i % 2].append(x * i)
    return torch.stack(b[0])


@program(calls=calls)
def rows_that_torch_is_given(x: Tensor):
    pads = [[1, 1], [0, 0]]
    for i in range(x.dim()):
        pads[i][1] = 3
    return F.pad(x, pads[0])


@program(calls=calls)
def rows_of_a_for(x: Tensor):
    m = [[1], [2]]
    for row in m:
        row.append(5)
    return x + len(m[1])


@program(calls=calls)
def added_to_a_list_of_lists(x: Tensor):
    a = [1]
    m = [[2]] + [a]
    a.append(3)
    return x + len(m[1])


@program(calls=calls)
def a_slice_of_rows(x: Tensor):
    a = [1]
    m = [a, [2]]
    r = m[::-1]
    a.append(3)
    return x + len(r[1])


@program(calls=calls)
def sorted_rows(x: Tensor):
    a = [1]
    m = sorted([[2], a])
    a.append(3)
    return x + len(m[0]) + len(max([[0], a]))


@program(calls=calls)
def enumerated_and_zipped_rows(x: Tensor):
    m = [[1], [2]]
    for i, row in enumerate(m):
        row.append(i)
    for row, other in zip(m, m):
        row.append(len(other))
    return (x + len(m[1]), m)


@program(calls=calls)
def one_row_many_times(x: Tensor, n: int = 2):
    y = x + 1
    grid = [[0] * n] * n
    seen = [x, y]
    grid[0][1] += 1
    return (torch.stack(seen).sum(0), grid)


@program(calls=calls)
def rows_counted_by_data(x: Tensor):
    counts = [[0], [0]]
    for i in range(x.size(0)):
        if x[i] > 1:
            counts[0][0] += 1
        else:
            counts[1][0] += 1
    return (counts, x + 1)


@program(calls=calls)
def a_row_changed_in_a_branch(x: Tensor):
    a = [1, 2]
    m = [a]
    if x.sum() > 1:
        m[0][0] = 3
    return m


@program(calls=calls)
def a_row_and_its_list(x: Tensor):
    a = [1, 2]
    m = [a]
    if x.sum() > 1:
        m[0][0] = 3
    return (m, a)


@program(calls=calls)
def a_list_in_a_tuple(x: Tensor):
    l = [1]
    p = (l, x + 1)
    if x.sum() > 0:
        p[0].append(2)
    return p


@program(calls=calls)
def a_stack_of_lists(x: Tensor):
    stack = [[1]]
    top = stack[-1]
    if x.sum() > 0:
        top.append(2)
        stack.append([3])
    top = stack[-1]
    top.append(4)
    return stack


@program(calls=calls)
def empty_rows_declared(x: Tensor):
    b: List[List[Tensor]] = [[], []]
    b[0].append(x)
    b[1].append(x + 1)
    return (torch.stack(b[0]), torch.stack(b[1]))


@program(calls=calls)
def one_empty_row(x: Tensor):
    b: List[List[Tensor]] = [[]]
    b[0].append(x)
    return b


@program(calls=calls)
def annotated_empty_rows(x: Tensor):
    b = torch.jit.annotate(List[List[Tensor]], [[], []])
    b[1].append(x)
    return b


@program(calls=calls)
def empty_dicts_declared(x: Tensor):
    d: List[Dict[str, Tensor]] = [{}, {}]
    d[0]["a"] = x
    return d


@program(calls=calls)
def a_tuple_of_empty_lists(x: Tensor):
    t: Tuple[List[Tensor], List[int]] = ([], [])
    t[0].append(x)
    t[1].append(2)
    return t


@program(calls=calls)
def an_empty_list_and_dict(x: Tensor):
    t: Tuple[List[int], Dict[str, int]] = ([], {})
    t[0].append(1)
    t[1]["q"] = 4
    return (t, x)


class Noted:
    def __init__(self, notes: List[str]):
        self.notes = notes

    def __enter__(self) -> "Noted":
        self.notes.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.notes.append("out")


@program(calls=lambda: [call(2), call(0)])
def managers_in_loops(n: int):
    notes: List[str] = []
    for _ in range(3):
        with Noted(notes) as noted:
            noted.notes.append("for")
    k = 0
    while k < n:
        with Noted(notes) as noted:
            noted.notes.append("while")
        k += 1
    return notes


CHOSEN = lambda: [call(c, torch.ones(2)) for c in (True, False)]


@program(calls=CHOSEN, torchscript=False)
def a_list_that_a_chosen_list_holds(c: bool, x: Tensor):
    a = []
    both = [a] if c else [a, a]
    a.append(x)
    return len(both[0]), both[-1][0] + 1


@program(calls=CHOSEN, torchscript=False)
def a_list_that_a_chosen_dict_holds(c: bool, x: Tensor):
    a = []
    held = {"k": a} if c else {"k": a, "j": a}
    seen = held["k"]
    a.append(x)
    return held["k"][0] * 2, seen


@program(calls=CHOSEN, torchscript=False)
def a_list_that_a_chosen_tuple_holds(c: bool, x: Tensor):
    a = []
    pair = (a, 1) if c else (a, 2)
    seen = pair[0]
    a.append(x)
    return pair[0][0] + pair[1], seen[0] * 2


@program(calls=CHOSEN, torchscript=False)
def a_dict_that_a_chosen_list_holds(c: bool, x: Tensor):
    d = {}
    both = [d] if c else [d, d]
    d["a"] = x
    return both[0]["a"] + 1


@program(calls=CHOSEN, torchscript=False)
def a_chosen_list_of_another_kind(c: bool, x: Tensor):
    a = []
    b = a if c else [1]
    a.append(x)
    return b, a


@program(calls=CHOSEN, torchscript=False)
def a_list_held_by_what_a_loop_carries(c: bool, x: Tensor):
    a = []
    held = [a]
    for i in range(x.shape[0]):
        held = [a] + held if c else held + [a]
    a.append(x)
    return held[0][0] + 1, len(held)
