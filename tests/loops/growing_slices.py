"""Loops of which each iteration reads another number of rows."""

from __future__ import annotations

import torch


def means_so_far(x: torch.Tensor):
    out = []
    for i in range(x.shape[0]):
        out.append(x[: i + 1].mean(0))
    return torch.stack(out)


def causal_attention(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for t in range(n):
        a = torch.softmax(x[t] @ x[: t + 1].t(), -1)
        out[t] = a @ x[: t + 1]
    return out


def less_those_before(x: torch.Tensor):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        out[t] = x[t] - x[:t].sum(0)
    return out


def norms_of_the_rest(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for t in range(x.shape[0]):
        out[t] = x[t:].pow(2).sum().sqrt()
    return out


def maxima_so_far(x: torch.Tensor):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        out[t] = x[: t + 1].amax(0)
    return out


def convolution(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for t in range(n):
        out[t] = (x[: t + 1, 0] * x[: t + 1, 1].flip(0)).sum()
    return out


def surprises(x: torch.Tensor):
    s = torch.zeros(())
    for t in range(x.shape[0]):
        s = s + torch.logsumexp(x[: t + 1, 0], 0) - x[t, 0]
    return s


def rows_of_a_triangle(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n, n)
    for i in range(n):
        out[i, : i + 1] = x[: i + 1, 0] * x[i, 1]
    return out


def each_pair_once(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        d = (x[i] - x[i + 1 :]).pow(2).sum(-1)
        s = s + (1 / (1 + d)).sum() + (1 / d).sum()
    return s


def deviations_so_far(x: torch.Tensor):
    out = []
    for i in range(1, x.shape[0]):
        out.append(x[: i + 1].std(0))
    return torch.stack([*out, x[0]])


def places_of_maxima(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[: i + 1, 0].argmax() + x[: i + 1, 1].min()
    return out


def attending_state(x: torch.Tensor):
    n = x.shape[0]
    h = torch.zeros(x.shape[1])
    out = []
    for t in range(n):
        c = torch.softmax(x[: t + 1] @ h, 0) @ x[: t + 1]
        h = torch.tanh(h + c)
        out.append(h)
    return torch.stack(out)


def gram_matrices(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(1, n):
        a = x[:i]
        g = a @ a.t()
        s = s + torch.tanh(g).sum() / i
    return s


def normed_by_the_past(x: torch.Tensor):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        past = x[: t + 1]
        mu = past.mean(0)
        sd = (past - mu).pow(2).mean(0).sqrt()
        out[t] = (x[t] - mu) / (sd + 1e-3)
    return out


def before_and_after(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for t in range(n):
        out[t] = (x[: t + 1, 0].unsqueeze(1) * x[t:, 1].unsqueeze(0)).amax()
    return out


def infinite_beyond(x: torch.Tensor):
    y = torch.cat([x, torch.full((1, x.shape[1]), float("inf"))])
    s = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        s = s + y[: t + 1].sum(0) * 0.1
    return s


def every_second(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for t in range(x.shape[0]):
        out[t] = x[: t + 1 : 2, 0].sum()
    return out


def states_anew(x: torch.Tensor):
    out = []
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.zeros(x.shape[1])
        for j in range(t + 1):
            h = torch.tanh(h * 0.5 + x[j])
        out.append(h)
    return torch.stack(out)


def counts(x: torch.Tensor):
    out = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[:i].numel() + len(x[i:]) * x[i, 0]
    return out


def slices_in_triangles(x: torch.Tensor):
    n = x.shape[0]
    s = torch.zeros(())
    for i in range(n):
        for j in range(i):
            s = s + (x[j:i] * x[i]).sum()
    return s


def list_of_slices(x: torch.Tensor):
    out = []
    for t in range(x.shape[0]):
        out.append(x[: t + 1])
    return torch.cat(out)


def slices_in_branches(x: torch.Tensor):
    n = x.shape[0]
    out = torch.zeros(n)
    for i in range(n):
        if i >= 3:
            out[i] = x[i - 3 : i, 0].prod(0) + x[: i - 2, 1].sum()
        else:
            out[i] = x[: i + 1, 0].sum()
    return out


PROGRAMS = [
    means_so_far,
    causal_attention,
    less_those_before,
    norms_of_the_rest,
    maxima_so_far,
    convolution,
    surprises,
    rows_of_a_triangle,
    each_pair_once,
    deviations_so_far,
    places_of_maxima,
    attending_state,
    gram_matrices,
    normed_by_the_past,
    before_and_after,
    infinite_beyond,
    every_second,
    states_anew,
    counts,
]
