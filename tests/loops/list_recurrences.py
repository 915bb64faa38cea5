"""Recurrences through lists, and programs with several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Program = Callable[..., Any]


def start(x, u):
    return x.new_zeros(x.shape[1], u.shape[0])


def step(x, h, u):
    return torch.tanh(x + h @ u)


# ---- what is carried is the end of a list ---------------------------------------------------


def last_item(x, u):
    hs = [torch.zeros(x.shape[1], u.shape[0], dtype=x.dtype)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
    return torch.stack(hs)


def made_anew(x, u):
    """A list that is another one after each step."""
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        h = step(x[t], hs[-1], u)
        hs = hs + [h]  # noqa: RUF005
    return torch.stack(hs)


def made_anew_of_two(x, u):
    hs = [x[0] @ u, x[1] @ u]
    for _t in range(x.shape[0]):
        hs = [*hs, torch.tanh(hs[-1] @ u - hs[-2])]
    return torch.stack(hs), hs[-1]


def without_the_first(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
    return torch.stack(hs[1:]), hs[-1]


def only_the_last(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
    return hs[-1]


def item_of_the_index(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[t], u))
    return torch.stack(hs[1:], 1)


def item_before_the_index(x, u):
    hs = [torch.tanh(x[0])]
    for t in range(1, x.shape[0]):
        hs.append(step(x[t], hs[t - 1], u))
    return torch.stack(hs)


def second_order(x, u):
    h = start(x, u)
    hs = [h, h]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u) - 0.3 * hs[-2])
    return torch.stack(hs[2:])


def second_order_by_index(x, u):
    hs = [start(x, u), x[0]]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[t + 1], u) - 0.3 * hs[t])
    return torch.stack(hs[2:]), hs[-2]


def reads_after_adding(x, u):
    hs, ys = [start(x, u)], []
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
        ys.append(hs[-1] * hs[-2])
    return torch.stack(ys), hs[-1]


def in_front(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0] - 1, -1, -1):
        hs.insert(0, step(x[t], hs[0], u))
    return torch.stack(hs[:-1])


def two_lists(x, u):
    hs, cs = [start(x, u)], [start(x, u)]
    for t in range(x.shape[0]):
        g = step(x[t], hs[-1], u)
        cs.append(cs[-1] * torch.sigmoid(g) + g)
        hs.append(torch.sigmoid(g) * torch.tanh(cs[-1]))
    return torch.stack(hs[1:], dim=0), (hs[-1], cs[-1])


def one_list_through_two_loops(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
    for t in range(x.shape[0]):
        hs.append(step(x[t] * 0.5, hs[-1], u))
    return torch.stack(hs)


# ---- lists that loops fill, read afterwards -------------------------------------------------


def inserted(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0] - 1, -1, -1):
        h = step(x[t], h, u)
        hs.insert(0, h)
    return torch.stack(hs), h


def reversed_in_place(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0] - 1, -1, -1):
        h = step(x[t], h, u)
        hs.append(h)
    hs.reverse()
    return torch.stack(hs)


def sliced_round(x, u):
    h = start(x, u)
    hs = []
    for t in reversed(range(x.shape[0])):
        h = step(x[t], h, u)
        hs.append(h)
    hs = hs[::-1]
    return torch.stack(hs, 1), hs[0]


def second_layer_over_the_list(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    k = torch.zeros_like(h)
    ks = []
    for y in hs:
        k = step(y, k, u)
        ks.append(k)
    return torch.stack(ks), k


def second_layer_by_index(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    k = torch.zeros_like(h)
    for t in range(len(hs)):
        k = step(hs[len(hs) - 1 - t], k, u)
    return k + hs[-1]


def joined_lists(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    k = start(x, u)
    ks = []
    for t in range(x.shape[0]):
        k = step(x[t], k, u.t())
        ks.append(k)
    return torch.stack(hs + ks), torch.cat(hs[2:-1], 1)


# ---- what is carried is a view --------------------------------------------------------------


def row_before(x, u):
    h, before = start(x, u), x[0]
    hs = []
    for t in range(1, x.shape[0]):
        h = step(x[t] - before, h, u)
        before = x[t]
        hs.append(h)
    return torch.stack(hs)


def row_before_of_a_product(x, u):
    y = x @ u
    h = before = y[0]
    for t in range(1, x.shape[0]):
        h = torch.tanh(y[t] - before + h)
        before = y[t]
    return h + before, y


# ---- tensors that are changed in place, step by step ----------------------------------------


def running_sum_in_place(x, u):
    y = x.clone()
    for t in range(1, x.shape[0]):
        y[t] += y[t - 1]
    return y @ u


def running_sum_of_columns(x, u):
    y = (x @ u)[:, 0].clone()
    for t in range(1, y.shape[1]):
        y[:, t] += y[:, t - 1] * 0.5
    return y


def copied_on(x, u):
    y = x @ u
    for t in range(1, x.shape[0]):
        y[t] = y[t - 1]
    return y


# ---- steps of other kinds -------------------------------------------------------------------


def every_second_backwards(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0] - 1, -1, -2):
        h = step(x[t], h, u)
        hs.append(h)
    return torch.stack(hs)


def windows(x, u):
    h = start(x, u)
    hs = []
    for t in range((x.shape[0] - 5) // 3 + 1):
        h = step(x[t * 3 : t * 3 + 5].sum(0), h, u)
        hs.append(h)
    return torch.stack(hs)


def masked(x, u):
    h = start(x, u)
    hs = []
    mask = x[:, :, :1] > 0
    for t in range(x.shape[0]):
        h = torch.where(mask[t], step(x[t], h, u), h)
        hs.append(h)
    return torch.stack(hs), h


def masked_by_products(x, u):
    h = start(x, u)
    mask = (x[:, :, :1] > 0).to(x.dtype)
    for t in range(x.shape[0]):
        h = mask[t] * step(x[t], h, u) + (1 - mask[t]) * h
    return h


# ---- a recurrence in each iteration ---------------------------------------------------------


def filtered_rows(x, u):
    v = x[0] @ u
    y = torch.zeros_like(v)
    total = torch.zeros((), dtype=x.dtype)
    for r in range(v.shape[0]):
        acc = v[r, 0]
        for c in range(v.shape[1]):
            acc = 0.9 * acc + v[r, c]
            y[r, c] = acc
        total = total + acc
    return y, total


def sequence_by_sequence(x, u):
    ys = []
    for n in range(x.shape[1]):
        h = torch.zeros(u.shape[0], dtype=x.dtype)
        hs = []
        for t in range(x.shape[0]):
            h = torch.tanh(x[t, n] + h @ u)
            hs.append(h)
        ys.append(torch.stack(hs))
    return torch.stack(ys, 1)


def two_in_each(x, u):
    ys = []
    for r in range(x.shape[0]):
        h = x[r, 0]
        for t in range(u.shape[0]):
            h = torch.tanh(h * 0.5 + u[t])
        k = h
        for t in range(u.shape[0]):
            k = torch.tanh(k * 0.5 + u[t] * x[r, 1])
        ys.append(k + h)
    return torch.stack(ys)


# ---- several recurrences --------------------------------------------------------------------


def both_ways(x, u):
    h = start(x, u)
    hs, ks = [], []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    h = torch.zeros_like(h)
    for t in range(x.shape[0] - 1, -1, -1):
        h = step(x[t], h, u.t())
        ks.append(h)
    return torch.cat([torch.stack(hs), torch.stack(ks).flip(0)], 2)


def both_ways_in_one_loop(x, u):
    h, k = start(x, u), start(x, u)
    hs, ks = [], []
    n = x.shape[0]
    for t in range(n):
        h = step(x[t], h, u)
        k = step(x[n - 1 - t], k, u.t())
        hs.append(h)
        ks.append(k)
    ks.reverse()
    return torch.cat([torch.stack(hs), torch.stack(ks)], 2)


def layer(x, u, turned: bool):
    h = start(x, u)
    hs = []
    n = x.shape[0]
    for t in range(n):
        h = step(x[n - 1 - t if turned else t], h, u)
        hs.append(h)
    y = torch.stack(hs)
    return y.flip(0) if turned else y


def both_ways_by_calls(x, u):
    return torch.cat([layer(x, u, False), layer(x, u.t(), True)], 2)


def long_step(x, h, c, u):
    i, f, o = torch.sigmoid(x + h * u[0]), torch.sigmoid(x * 2 + 1), torch.sigmoid(x - h)
    c = f * c + i * torch.tanh(x)
    return o * torch.tanh(c), c


def long_layer(xs: list[torch.Tensor], h, c, u):
    out = []
    for y in xs:
        h, c = long_step(y, h, c, u)
        out.append(h)
    return out


def three_layers(x, u):
    """More than one region would take if all were planned together."""
    h = start(x, u)
    first = []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        first.append(h)
    second = long_layer(first, start(x, u), start(x, u), u)
    third = long_layer(second, start(x, u), start(x, u), u.t())
    return torch.stack(long_layer(third, start(x, u), start(x, u), u))


SCANS: list[Program] = [
    made_anew, made_anew_of_two,
    last_item, without_the_first, only_the_last, item_of_the_index, item_before_the_index,
    second_order, second_order_by_index, reads_after_adding, in_front, two_lists,
    one_list_through_two_loops, inserted, reversed_in_place, sliced_round,
    second_layer_over_the_list, second_layer_by_index, joined_lists, row_before,
    row_before_of_a_product, running_sum_in_place, running_sum_of_columns, copied_on,
    every_second_backwards, windows, masked, masked_by_products, filtered_rows,
    sequence_by_sequence, two_in_each, both_ways,
    both_ways_in_one_loop, both_ways_by_calls, three_layers,
]  # fmt: skip


# ---- what must stay as it is ----------------------------------------------------------------


def added_in_a_branch(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        h = step(x[t], hs[-1], u)
        if t % 2 == 0:
            hs.append(h)
    return torch.stack(hs)


def added_twice(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
        hs.append(hs[-1] * 0.5)
    return torch.stack(hs)


def another_name(x, u):
    hs = [start(x, u)]
    ks = [hs, hs]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
        ks[0].append(x[t])
    return torch.stack(hs)


def last_changed_in_place(x, u):
    hs = [start(x, u) + 1]
    for t in range(x.shape[0]):
        hs[-1].mul_(0.5)
        hs.append(step(x[t], hs[-1], u))
    return torch.stack(hs)


def last_replaced(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
        hs[-1] = hs[-1] * 0.5
    return torch.stack(hs)


def taken_off(x, u):
    hs = [start(x, u)]
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs.pop(), u))
    return torch.stack(hs)


def list_from_outside(x, u, hs: list[torch.Tensor]):
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1], u))
    return hs[-1]


def list_handed_out(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    return hs


def view_handed_out(x, u):
    h, before = x[0], x[0]
    for t in range(1, x.shape[0]):
        h = step(x[t] - before, h, u)
        before = x[t]
    return h, before


def item_changed_afterwards(x, u):
    h = start(x, u)
    hs = []
    for t in range(x.shape[0]):
        h = step(x[t].detach(), h, u.detach())
        hs.append(h)
    hs[-1].mul_(2)
    return h, torch.stack(hs)


def item_and_its_other_name(x, u):
    h = start(x, u)
    hs, ks = [], []
    for t in range(x.shape[0]):
        h = step(x[t], h, u)
        hs.append(h)
    for t in range(len(hs)):
        ks.append(hs[t])
    return ks[-1], h, hs[-1], hs[0]


def shapes_that_differ(x, u):
    hs = [x[0]]
    for t in range(x.shape[0]):
        hs.append(torch.cat([hs[-1], x[t]]))
    return hs[-1]


def empty_at_first(x, u):
    hs = []
    for t in range(x.shape[0]):
        hs.append(step(x[t], hs[-1] if t > 0 else x[0], u))
    return torch.stack(hs)


def parts_that_meet(x, u):
    y = x.clone()
    for t in range(1, x.shape[0] - 1):
        y[t : t + 2] += y[t - 1 : t + 1].clone()
    return y


def row_of_the_data(x, u):
    y = x.detach() @ u.detach()
    for t in range(1, x.shape[0]):
        y[t] += y[int(x[t, 0, 0] > 0)]
    return y


def copy_and_what_it_is_of(x, u):
    y = x.clone()
    y[0] += y[1]
    y.mul_(2)
    return y, x * 1


def carried_through_a_recurrence(x, u):
    h = x[0]
    for r in range(x.shape[0]):
        for t in range(4):
            h = torch.tanh(x[r] + h * 0.5 + u[t])
        h = h * 0.5
    return h


def old_lists_stay(x, u):
    hs = [x[0]]
    first = hs
    for _t in range(x.shape[0]):
        before = hs
        hs = hs + [torch.tanh(hs[-1] @ u + len(before))]  # noqa: RUF005
    return torch.stack(hs), torch.stack(first)


def old_list_read_after_it_has_grown(x, u):
    hs, y = [x[0]], x[0]
    for _t in range(x.shape[0]):
        before = hs
        hs = hs + [torch.tanh(hs[-1] @ u)]  # noqa: RUF005
        y = y + before[-1] - hs[-1] * len(before)
    return y, torch.stack(hs)


OTHERS: list[Program] = [
    old_lists_stay, old_list_read_after_it_has_grown,
    carried_through_a_recurrence,
    parts_that_meet, row_of_the_data, copy_and_what_it_is_of,
    added_in_a_branch, added_twice, another_name, last_changed_in_place, last_replaced, taken_off,
    list_handed_out, view_handed_out, item_changed_afterwards, item_and_its_other_name,
    shapes_that_differ, empty_at_first,
]  # fmt: skip


def what_was_last_again(x, u):
    """A step adds what it reads."""
    hs = [x[0] @ u, x[1] @ u]
    y = x[0]
    for t in range(x.shape[0]):
        hs.append(hs[-2])
        y = torch.tanh(y + hs[-1] * x[t])
    return y, torch.stack(hs)


def differences(x, u):
    """No recurrence at all: two rows before are read."""
    before = first = x[0]
    out = []
    for t in range(1, x.shape[0]):
        out.append(x[t] - 2 * before + first)
        first = before
        before = x[t]
    return torch.stack(out) @ u
