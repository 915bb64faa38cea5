"""Loops whose iterations go different ways: by the number of the step, by data; triangles."""

from __future__ import annotations

import torch


def gram_triangle(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(i + 1):
            out[i, j] = (x[i] * x[j]).sum()
    return out


def symmetric_distances(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(i + 1, n):
            v = (x[i] - x[j]).pow(2).sum().sqrt()
            out[i, j] = v
            out[j, i] = v
    return out


def repulsion(x: torch.Tensor):
    n = x.shape[0]
    e = torch.zeros(())
    for i in range(n):
        for j in range(n):
            if i != j:
                e = e + 1.0 / (x[i] - x[j]).pow(2).sum().sqrt()
    return e


def differences(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        if i > 0:
            out[i] = x[i] - x[i - 1]
        else:
            out[i] = x[i]
    return out


def stencil(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        acc = x[i] * 2
        if i > 0:
            acc = acc - x[i - 1]
        if i < n - 1:
            acc = acc - x[i + 1]
        out[i] = acc
    return out


def band(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            if i - j <= 2 and j - i <= 3:
                out[i, j] = x[i, 0] * x[j, 1]
            elif i == j + 4:
                out[i, j] = x[i, 1].exp()
    return out


def weights(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(x.shape[1])
    for i in range(n):
        w = 0.5 if i == 0 or i == n - 1 else 1.0
        s = s + w * x[i]
    return s


def skipped(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(x.shape[1])
    for i in range(n):
        for j in range(n):
            if j >= i:
                continue
            s += torch.tanh(x[i]) * x[j]
    return s


def changed_in_place(x: torch.Tensor):
    n = x.shape[0]
    out = x.clone()
    for i in range(n):
        if i % 2 == 1:
            out[i] += 1
        elif i > 3:
            out[i] *= 2
    return out


def causal(q: torch.Tensor):
    n = q.shape[0]
    out = torch.zeros_like(q)
    for i in range(n):
        num = torch.zeros(q.shape[1])
        den = torch.zeros(())
        for j in range(i + 1):
            w = torch.exp((q[i] * q[j]).sum() * 0.1)
            num = num + w * q[j]
            den = den + w
        out[i] = num / den
    return out


def gated(x: torch.Tensor):
    h = torch.zeros(x.shape[1])
    outs = []
    for t in range(x.shape[0]):
        if t % 3 != 2 and t > 4:
            h = torch.tanh(h + x[t])
        outs.append(h * 2)
    return torch.stack(outs)


def counted_down(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for i in range(n):
        for j in range(i, -1, -1):
            out[i] += x[j].sum()
    return out


def tetrahedron(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        for j in range(i):
            for k in range(j):
                s = s + x[i, 0] * x[j, 1] * x[k, 0]
    return s


def sums_before(x: torch.Tensor):
    n = x.shape[0]
    rows = []
    for i in range(n):
        s = torch.zeros(x.shape[1])
        for j in range(i):
            s = s + x[j]
        rows.append(s)
    return torch.stack(rows)


def from_two_on(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        for j in range(i + 2, n):
            s = s + (x[i] * x[j]).sum()
    return s


def autocorrelation(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for i in range(n):
        for j in range(n - i):
            out[i] += (x[j] * x[j + i]).sum()
    return out


def late_last(x: torch.Tensor):
    y = x[0] * 0
    for i in range(x.shape[0]):
        if i > 2:
            y = x[i] * 2
    return y


def two_sums(x: torch.Tensor):
    n = x.shape[0]
    a = torch.zeros(x.shape[1])
    b = torch.ones(x.shape[1])
    for i in range(n):
        if 2 * i < n:
            a = a + x[i]
        else:
            b = torch.maximum(b, x[i])
    return a, b


def neighbours(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        for j in range(n):
            near = abs(i - j) <= 1
            if near and not (i == j):  # noqa: SIM201
                s = s + (x[i] * x[j]).sum()
    return s


def nested_if(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, x.shape[1])
    for i in range(n):
        if i > 1:
            t = x[i - 2]
            if i < n - 1:
                t = t + x[i + 1]
            out[i] = t
    return out


def shift_write(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        if i > 0:
            out[i - 1] = x[i] * 3
    return out


def slices(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        if i >= 2 and i + 2 < n:
            out[i] = x[i - 2 : i + 3].mean(0)
    return out


def swap(x: torch.Tensor):
    a = torch.zeros(x.shape[1])
    b = torch.ones(x.shape[1])
    for i in range(x.shape[0]):
        if i % 2 == 0:
            a, b = b, a + x[i]
    return a, b


def sign_weights(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(x.shape[1])
    for i in range(n):
        c = 1 if i % 2 == 0 else -1
        s = s + c * x[i]
    return s


def dist_weights(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for i in range(n):
        for j in range(n):
            out[i] += x[j, 0] / (1 + abs(i - j))
    return out


def toeplitz(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            out[i, j] = max(i, j) - min(i, j) * 0.5
    return out + x[0, 0]


def borders_kept(x: torch.Tensor):
    n = x.shape[0]
    u = x.clone()
    for _ in range(3):
        v = torch.zeros_like(u)
        for i in range(n):
            if i == 0 or i == n - 1:
                v[i] = u[i]
            else:
                v[i] = 0.25 * u[i - 1] + 0.5 * u[i] + 0.25 * u[i + 1]
        u = v
    return u


def halves(x: torch.Tensor):
    n = x.shape[0]
    k = n // 2
    out = torch.zeros_like(x)
    for i in range(n):
        if i < k:
            out[i] = x[i + k]
        else:
            out[i] = x[i - k] * 2
    return out


def positive_rows(x: torch.Tensor):
    s = torch.zeros(())
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            s = s + x[i].sum()
    return s


def count_near(x: torch.Tensor):
    n = x.shape[0]
    c = torch.zeros(n)
    for i in range(n):
        for j in range(n):
            d = (x[i] - x[j]).pow(2).sum()
            if d < 1.0 and i != j:
                c[i] += 1 / d.sqrt()
    return c


def running_max(x: torch.Tensor):
    m = x[0].clone()
    for i in range(1, x.shape[0]):
        if x[i].sum() > m.sum():
            m = x[i] * 1.0
    return m


def reset(x: torch.Tensor):
    h = torch.zeros(x.shape[1])
    out = []
    for t in range(x.shape[0]):
        if x[t, 1] > 1:
            h = torch.zeros_like(h)
        else:
            h = torch.tanh(h + x[t])
        out.append(h)
    return torch.stack(out)


def clipped_norms(x: torch.Tensor):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        v = x[i]
        if v.norm() > 1:
            v = v / v.norm()
        out[i] = v
    return out


def logs_or_roots(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            out[i] = torch.log(x[i, 0])
        elif x[i, 1] > 0:
            out[i] = torch.sqrt(x[i, 1])
    return out


def view_first_seen_within(x: torch.Tensor):
    out = torch.zeros(x.shape[0], 2)
    for i in range(x.shape[0]):
        y = x[i] * 2
        v = y[0:2]
        y += 1
        s = x[i, 1]
        if x[i, 0] > 0:
            s = s + v.sum()
        out[i] = v + s
    return out


def view_of_what_changed(x: torch.Tensor):
    y = x * 2
    v = y[0]
    y += 1
    s = torch.zeros(2)
    for i in range(x.shape[0]):
        s = s + v * x[i]
    return s


def made_before(x: torch.Tensor):
    n = x.shape[0]
    e = torch.zeros(())
    for i in range(n):
        for j in range(n):
            d = (x[i] - x[j]).pow(2).sum().sqrt()
            if i != j:
                e = e + 1.0 / d
    return e


def made_before_data(x: torch.Tensor):
    n = x.shape[0]
    e = torch.zeros(())
    for i in range(n):
        for j in range(n):
            d = (x[i] - x[j]).pow(2).sum().sqrt()
            if d > 0:
                e = e + 1.0 / d
    return e


def made_before_continue(x: torch.Tensor):
    e = torch.zeros(())
    for i in range(x.shape[0]):
        d = ((x[i, 0] - x[0, 0]) ** 2).sqrt()
        if i == 0:
            continue
        e = e + d
    return e


def overwritten(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        d = (x[i, 0] - x[0, 0]).abs().sqrt() * 1.0
        if i == 0:
            d = x[i, 1]
        out[i] = d
    return out


def infinite_rows(x: torch.Tensor):
    s = torch.zeros(())
    z = torch.cat([x, torch.full((1, 2), float("inf"))])
    for i in range(z.shape[0]):
        y = (z[i] * x[0]).sum()
        if z[i, 0] < 1e30:
            s = s + y
    return s


def roots_of_negatives(x: torch.Tensor):
    s = torch.zeros(())
    for i in range(x.shape[0]):
        v = x[i, 0].sqrt()
        if not v > 0.5:
            s = s - x[i, 1]
        else:
            s = s + v
    return s


def added_rests(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for i in range(n):
        out[i:] += x[: n - i, 0]
    return out


def finite_losses(x: torch.Tensor):
    s = torch.zeros(())
    for i in range(x.shape[0]):
        loss = torch.log(x[i]).sum()
        if torch.isfinite(loss):
            s = s + loss
    return s


def four_ways(x: torch.Tensor):
    s = torch.zeros(())
    for i in range(x.shape[0]):
        a = x[i, 0].sqrt()
        b = torch.log(x[i, 1])
        if x[i, 0] > 0 and x[i, 1] > 0:
            s = s + a * b
        elif x[i, 0] > 0:
            s = s + a
        elif x[i, 1] > 0:
            s = s - b
        else:
            s = s + x[i].sum()
    return s


def state_of_roots(x: torch.Tensor):
    h = torch.ones(2)
    for t in range(x.shape[0]):
        u = x[t].sqrt() + h
        if x[t].min() > 0:
            h = torch.tanh(u)
    return h


def detached_within(x: torch.Tensor):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        h = x[i].sin()
        if x[i, 0] > 0.5:
            h = h.detach()
        out[i] = h * x[i]
    return out


def truncated(x: torch.Tensor):
    h = torch.zeros(2)
    for t in range(x.shape[0]):
        if x[t, 0] > 0.5:
            h = h.detach()
        h = torch.tanh(h + x[t])
    return h


def outer_root(x: torch.Tensor):
    n = x.shape[0]
    e = torch.zeros(())
    for i in range(n):
        a = torch.sqrt((x[i] - x[0]).pow(2).sum())
        for j in range(i):
            e = e + a * x[j, 0]
    return e


def outer_smooth(x: torch.Tensor):
    n = x.shape[0]
    e = torch.zeros(())
    for i in range(n):
        a = torch.tanh((x[i] - x[0]).sum())
        for j in range(i):
            e = e + a * x[j, 0]
    return e


def detached_items(x: torch.Tensor):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i].sin().detach()
    return out + x


def detached_some(x: torch.Tensor):
    out = x * 1
    for i in range(x.shape[0]):
        out[i] = x[i] * 3
        if x[i, 0] > 0:
            out[i] = x[i].detach()
    return out


def squares(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        if i * i < n:
            s = s + x[i * i, 0]
    return s


BY_NUMBER = [
    gram_triangle,
    symmetric_distances,
    repulsion,
    differences,
    stencil,
    band,
    weights,
    skipped,
    changed_in_place,
    causal,
    gated,
    counted_down,
    sums_before,
    from_two_on,
    autocorrelation,
    late_last,
    two_sums,
    neighbours,
    nested_if,
    shift_write,
    slices,
    swap,
    sign_weights,
    dist_weights,
    toeplitz,
    borders_kept,
    halves,
]
BY_DATA = [positive_rows, count_near, running_max, reset, clipped_norms, logs_or_roots]
# Values that are made before a branch, and needed within.
BEFORE = [
    view_first_seen_within,
    view_of_what_changed,
    made_before,
    made_before_data,
    made_before_continue,
    overwritten,
    infinite_rows,
    roots_of_negatives,
    added_rests,
    finite_losses,
    four_ways,
    state_of_roots,
    detached_within,
    truncated,
    outer_smooth,
    detached_items,
    detached_some,
]
