"""Loops over rows of a tensor, however they are spelt, and lists that grow in them."""

from typing import List, NamedTuple, Tuple

import torch
from torch import Tensor

from tests.language import jit
from tests.language.support import call, program


class State(NamedTuple):
    h: Tensor
    c: Tensor


def _x(n: int = 5) -> Tensor:
    return torch.linspace(-1, 1, n * 6).reshape(n, 2, 3)


def turned(xs: List[Tensor]) -> List[Tensor]:
    return xs[::-1]


@program(calls=lambda: [call(_x(5)), call(_x(40)), call(_x(0).view(0, 2, 3)), call(_x(2))])
def rows_by_index(x: Tensor):
    rows = x.unbind(0)
    h = torch.zeros(2, 3)
    for i in range(len(rows)):
        h = torch.tanh(rows[i] + h * 0.5)
    return h, len(rows)


@program(calls=lambda: [call(_x(5)), call(_x(40))])
def rows_of_another_dim(x: Tensor):
    found: List[Tensor] = []
    for k, row in enumerate(x.unbind(-1)):
        found += [row * k]
    return torch.stack(found, 1), x.unbind(1)[-1]


@program(calls=lambda: [call(_x(5)), call(_x(40))])
def rows_from_the_end(x: Tensor):
    rows = turned(x.unbind(0))
    h = torch.zeros(2, 3)
    outs: List[Tensor] = []
    for i in range(len(rows)):
        h = torch.tanh(rows[i] + h * 0.5)
        outs = [h] + outs
    return torch.stack(outs), torch.stack(turned(outs)), rows[-1], rows[0]


@program(calls=lambda: [call(_x(3))])
def rows_that_are_changed(x: Tensor):
    rows = list(x.unbind(0))
    rows.append(rows[0] * 2)
    rows[1] = rows[1] + 1
    return rows


@program(calls=lambda: [call(_x(3))])
def rows_are_views(x: Tensor):
    rows = x.unbind(0)
    for i in range(len(rows)):
        rows[i].mul_(i)
    return x, rows[2]


@program(calls=lambda: [call(_x(4)), call(_x(40))])
def appended_in_pairs(x: Tensor):
    outs: List[Tensor] = []
    for i in range(x.shape[0]):
        outs = outs + [x[i], x[i] * 2]
    return torch.stack(outs)


@program(calls=lambda: [call(_x(4)), call(_x(40))])
def prepended_in_pairs(x: Tensor):
    outs: List[Tensor] = []
    for i in range(x.shape[0]):
        outs = [x[i], x[i] * 2] + outs
    return torch.stack(outs, 1), outs[0], outs[-1]


@program(calls=lambda: [call(_x(4)), call(_x(40))])
def unpacked_and_longer(x: Tensor):
    outs: List[Tensor] = []
    back: List[Tensor] = []
    both: List[Tensor] = []
    for i in range(x.shape[0]):
        outs = [*outs, x[i], x[i] * 2]
        back = [x[i], *back]
        both = [*both, *(x[i], x[i] + 1)]
    return torch.stack(outs), torch.stack(back), both


@program(calls=lambda: [call(_x(4))])
def lists_before_they_grow(x: Tensor):
    outs: List[Tensor] = []
    first = outs
    seen: List[int] = []
    for i in range(x.shape[0]):
        outs = outs + [x[i]]
        seen.append(len(outs))
    return outs, first, seen


@program(calls=lambda: [call(_x(4))])
def turned_and_then_longer(x: Tensor):
    outs: List[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[i])
    back = outs[::-1]
    outs.append(x[0] * 3)
    a = torch.stack(back)
    back.append(x[1])
    return a, torch.stack(outs), torch.stack(back)


@program(calls=lambda: [call(_x(n), s) for n in (0, 1, 5, 40)
                        for s in (State(torch.zeros(2, 3), torch.ones(2, 3)),
                                  (torch.zeros(2, 3), torch.ones(2, 3)))])  # fmt: skip
def packed_state(x: Tensor, state: Tuple[Tensor, Tensor]):
    outs = jit.annotate(List[Tensor], [])
    for row in x.unbind(0):
        h, c = state
        c = torch.sigmoid(row) * c + torch.tanh(h)
        h = torch.tanh(c) * row
        outs += [h]
        state = (h, c)
    return outs, state


@program(calls=lambda: [call(_x(5)), call(_x(40))])
def nested_state(x: Tensor):
    state = (0, (torch.zeros(2, 3), 1.0))
    for row in x:
        count, (h, scale) = state
        state = (count + 1, (h * 0.5 + row * scale, scale * 0.9))
    return state


@program(calls=lambda: [call(_x(5)), call(_x(12))])
def picked_in_a_loop(x: Tensor):
    h = torch.zeros(2, 3)
    outs = [h]
    n = x.size(0)
    for i in range(n):
        if h.sum() > -1e9:
            h = torch.tanh(x[n - 1 - i] + outs[-1])
            outs = outs + [h]
    return torch.stack(outs)
