"""Loops whose first step goes another way, and some that only look like it."""

from __future__ import annotations

import torch
from torch import nn

# ---- one recurrence, once the first step is done ----------------------------------------------


def none_at_first(x, w):
    h = None
    for t in range(x.shape[0]):
        if h is None:
            h = x[t] @ w
        else:
            h = torch.tanh(x[t] + h @ w)
    return h


def first_by_number(x, w):
    h = x[0]
    outs = []
    for t in range(x.shape[0]):
        h = x[t] @ w if t == 0 else torch.tanh(x[t] + h @ w)
        outs.append(h)
    return torch.stack(outs)


def reads_the_row_before(x, w):
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        g = x[t]
        if t > 0:
            g = g - x[t - 1]
        h = torch.tanh(g + h @ w)
    return h


def from_the_second_row(x, w):
    h = x[0]
    for t in range(1, x.shape[0]):
        h = torch.tanh(h @ w + (x[t] if t <= 1 else x[t - 2]))
    return h


def list_is_empty_at_first(x, w):
    outs = []
    for t in range(x.shape[0]):
        before = outs[-1] if len(outs) > 0 else torch.zeros_like(x[0])
        outs.append(torch.tanh(x[t] + before @ w))
    return torch.stack(outs)


def list_as_a_condition(x, w):
    outs = []
    for t in range(x.shape[0]):
        if outs:
            outs.append(torch.tanh(x[t] + outs[-1] @ w))
        else:
            outs.append(torch.tanh(x[t]))
    return torch.stack(outs)


def not_none(x, w):
    h = None
    for t in range(x.shape[0]):
        y = x[t]
        if h is not None:
            y = y + h @ w
        h = torch.tanh(y)
    return h


def tuple_at_first_none(x, w):
    state = None
    for t in range(x.shape[0]):
        if state is None:
            state = (x[t], x[t] * 2)
        h, c = state
        c = c * 0.5 + x[t] + h
        state = (torch.tanh(c @ w), c)
    return state


def two_rows_before(x, w):
    h = torch.zeros_like(x[0])
    rows = torch.zeros_like(x)
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t >= 2:
            h = h + rows[t - 2].clone() * 0.1
        rows[t] = h
    return rows


def third_step(x, w):
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t == 2:
            h = h * 2
        elif t <= 1:
            h = h - 1
    return h


class CellOfNone(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(6, 6).double()

    def forward(self, x):
        h = None
        outs = []
        for t in range(x.shape[0]):
            h = self.cell(x[t], h)
            outs.append(h)
        return torch.stack(outs), h


def nested(x, w):
    total = None
    for r in range(x.shape[1]):
        h = None
        for t in range(x.shape[0]):
            h = x[t, r] if h is None else torch.tanh(x[t, r] + h @ w)
        total = h if total is None else total + h
    return total


SCANS = [
    none_at_first, first_by_number, reads_the_row_before, from_the_second_row, not_none,
    list_is_empty_at_first, list_as_a_condition, tuple_at_first_none, two_rows_before, third_step,
]  # fmt: skip


# ---- sums and extremes ------------------------------------------------------------------------


def total_of_none(x, w):
    total = None
    for t in range(x.shape[0]):
        y = torch.sigmoid(x[t] @ w)
        total = y if total is None else total + y
    return total


def largest_of_none(x, w):
    best = None
    for t in range(x.shape[0]):
        y = x[t] @ w
        best = y if best is None else torch.maximum(best, y)
    return best


def added_to_a_number(x, w):
    total = 0
    for t in range(x.shape[0]):
        total += torch.sigmoid(x[t] @ w).sum()
    return total


# ---- what stays, or is only partly so -----------------------------------------------------------


def may_never_run(x, w):
    h = None
    for t in range(x.shape[0] - 5):
        h = x[t] if h is None else h + x[t] @ w
    return x.sum() if h is None else h


def none_again(x, w):
    h = None
    y = x[0]
    for t in range(x.shape[0]):
        if h is None:
            h = x[t]
        y = torch.tanh(y + h @ w)
        if t % 3 == 2:
            h = None
    return y


def far_step(x, w):
    y = x[0]
    for t in range(x.shape[0]):
        if t == 5:
            y = y * 3
        y = torch.tanh(y @ w + x[t])
    return y


def ends_in_the_first(x, w):
    y = None
    for t in range(x.shape[0]):
        if y is None:
            y = x[t]
        y = y + x[t] @ w
        if t >= 0:
            break
    return y


def list_with_items(x, w):
    outs = [x[0]]
    for t in range(x.shape[0]):
        before = outs[-1] if len(outs) > 1 else x[1]
        outs.append(before + x[t])
    return torch.stack(outs)


def list_grows_now_and_then(x, w):
    outs = []
    for t in range(x.shape[0]):
        if len(outs) == 0:
            y = x[t] * 2
        else:
            y = outs[-1] + x[t]
        if t % 2 == 1:
            outs.append(y)
    return torch.stack(outs)


def asked_after_it_has_grown(x, w):
    outs = []
    y = x[0]
    for t in range(x.shape[0]):
        outs.append(x[t])
        if len(outs) > 1:
            y = y + outs[-2] @ w
    return y


def list_with_another_name(x, w):
    outs = []
    same = outs
    y = x[0]
    for t in range(x.shape[0]):
        y = y + x[t] if len(outs) == 0 else y - x[t]
        same.append(y)
        outs.append(x[t])
    return torch.stack(same), y


def list_that_is_emptied(x, w):
    outs = []
    y = x[0]
    for t in range(x.shape[0]):
        y = y + x[t] if len(outs) == 0 else y - x[t]
        outs.append(y)
        outs.pop()
    return y


def list_held_by_another(x, w):
    outs = []
    lists = []
    y = x[0]
    for t in range(x.shape[0]):
        y = y + x[t] if len(outs) == 0 else y - x[t]
        outs.append(y)
        lists.append(outs)
        lists[0].pop()
    return y


def items_of_any_type(x, w):
    outs = []
    same = outs
    h = x[0]
    for t in range(x.shape[0]):
        if same:
            h = h + same[-1]
        same.append(torch.tanh(x[t] @ w))
    return h


def filled_before(x, w):
    outs = []
    outs.append(x[0])
    y = x[0]
    for t in range(x.shape[0]):
        y = y + x[t] if len(outs) == 0 else y - x[t]
        outs.append(y)
    return y


def condition_in_an_inner_loop(x, w):
    y = x[0]
    h = None
    for t in range(x.shape[0]):
        for k in range(3):
            if h is None:
                y = y + x[t]
            if t == 0 and k == 1:
                y = y * 2
        h = y
    return y


def both_states(x, w):
    a = None
    b = None
    for t in range(x.shape[0]):
        if a is not None:
            b = a if b is None else torch.tanh(b + a @ w)
        a = x[t]
    return x.sum() if b is None else b


OTHERS = [
    total_of_none, largest_of_none, nested, may_never_run, none_again, far_step,
    ends_in_the_first, list_with_items, list_grows_now_and_then, asked_after_it_has_grown,
    list_with_another_name, list_that_is_emptied, list_held_by_another, items_of_any_type,
    filled_before, condition_in_an_inner_loop, both_states,
]  # fmt: skip
