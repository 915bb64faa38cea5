"""Convolutions as people write them by hand: by places of the kernel, outputs, inputs, groups.

Each takes an image x and weights w, and what the convolution of PyTorch takes besides.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def by_places(x, w, S, D):
    """A sum over the places of the kernel, each a slice of the image."""
    K = w.shape[2]
    H = (x.shape[2] - (K - 1) * D - 1) // S + 1
    W = (x.shape[3] - (K - 1) * D - 1) // S + 1
    out = torch.zeros(x.shape[0], w.shape[0], H, W, dtype=x.dtype)
    for i in range(K):
        for j in range(K):
            rows = slice(i * D, i * D + (H - 1) * S + 1, S)
            part = x[:, :, rows, j * D : j * D + (W - 1) * S + 1 : S]
            out += torch.einsum("bchw,oc->bohw", part, w[:, :, i, j])
    return out


def by_outputs(x, w, S):
    """A loop over the places of the output; how many there are is an expression of sizes."""
    B, K = x.shape[0], w.shape[2]
    out = torch.zeros(
        B, w.shape[0], (x.shape[2] - K) // S + 1, (x.shape[3] - K) // S + 1, dtype=x.dtype
    )
    for i in range((x.shape[2] - K) // S + 1):
        for j in range((x.shape[3] - K) // S + 1):
            patch = x[:, :, i * S : i * S + K, j * S : j * S + K]
            out[:, :, i, j] = (patch.reshape(B, 1, -1) * w.reshape(1, w.shape[0], -1)).sum(-1)
    return out


def by_patches(x, w, S):
    """The same with a layer applied to each patch."""
    K = w.shape[2]
    H, W = (x.shape[2] - K) // S + 1, (x.shape[3] - K) // S + 1
    out = torch.zeros(x.shape[0], w.shape[0], H, W, dtype=x.dtype)
    for i in range(H):
        for j in range(W):
            patch = x[:, :, i * S : i * S + K, j * S : j * S + K]
            out[:, :, i, j] = F.linear(patch.flatten(1), w.flatten(1))
    return out


def along_a_line(x, w, S):
    n = (x.shape[2] - 5) // S + 1
    out = torch.zeros(x.shape[0], w.shape[0], n, dtype=x.dtype)
    for i in range((x.shape[2] - 5) // S + 1):
        out[:, :, i] = torch.einsum("bck,ock->bo", x[:, :, i * S : i * S + 5], w)
    return out


def by_columns(x, w, S, D, P):
    K = w.shape[2]
    columns = F.unfold(x, K, padding=P, stride=S, dilation=D)
    H = (x.shape[2] + 2 * P - D * (K - 1) - 1) // S + 1
    W = (x.shape[3] + 2 * P - D * (K - 1) - 1) // S + 1
    return (w.flatten(1) @ columns).view(x.shape[0], w.shape[0], H, W)


def transposed_by_inputs(x, w, S):
    """Each element of the image is added to the output as a copy of the kernel."""
    K, (B, _, H, W) = w.shape[2], x.shape
    out = torch.zeros(B, w.shape[1], (H - 1) * S + K, (W - 1) * S + K, dtype=x.dtype)
    for i in range(H):
        for j in range(W):
            copy = torch.einsum("bc,cokl->bokl", x[:, :, i, j], w)
            out[:, :, i * S : i * S + K, j * S : j * S + K] += copy
    return out


def transposed_by_places(x, w, S):
    K, (B, _, H, W) = w.shape[2], x.shape
    out = torch.zeros(B, w.shape[1], (H - 1) * S + K, (W - 1) * S + K, dtype=x.dtype)
    for i in range(K):
        for j in range(K):
            part = torch.einsum("bchw,co->bohw", x, w[:, :, i, j])
            out[:, :, i : i + (H - 1) * S + 1 : S, j : j + (W - 1) * S + 1 : S] += part
    return out


def by_groups(x, w, G):
    C, K = x.shape[1], w.shape[2]
    outs_of_one = w.shape[0] // G
    windows = x.unfold(2, K, 1).unfold(3, K, 1)
    outs = []
    for g in range(G):
        part = windows[:, g * (C // G) : (g + 1) * (C // G)]
        outs.append(
            torch.einsum("bchwij,ocij->bohw", part, w[g * outs_of_one : (g + 1) * outs_of_one])
        )
    return torch.cat(outs, 1)


def by_views_of_groups(x, w, G):
    (B, C, H, W), (outs, _, K, _) = x.shape, w.shape
    windows = x.view(B, G, C // G, H, W).unfold(3, K, 1).unfold(4, K, 1)
    out = torch.einsum("bgchwij,gocij->bgohw", windows, w.view(G, outs // G, C // G, K, K))
    return out.reshape(B, outs, H - K + 1, W - K + 1)


def by_channels_of_groups(x, w, G):
    (B, _, H, W), (outs, C, K, _) = x.shape, w.shape
    h, v, outs_of_one = H - K + 1, W - K + 1, outs // G
    out = torch.zeros(B, outs, h, v, dtype=x.dtype)
    for g in range(G):
        for o in range(outs_of_one):
            for c in range(C):
                for i in range(K):
                    for j in range(K):
                        part = x[:, g * C + c, i : i + h, j : j + v]
                        out[:, g * outs_of_one + o] += part * w[g * outs_of_one + o, c, i, j]
    return out


def by_channels(x, w):
    K = w.shape[2]
    out = torch.zeros(x.shape[0], x.shape[1], x.shape[2] - K + 1, x.shape[3] - K + 1, dtype=x.dtype)
    windows = x.unfold(2, K, 1).unfold(3, K, 1)
    for c in range(x.shape[1]):
        out[:, c] = (windows[:, c] * w[c, 0]).sum((-1, -2))
    return out


def in_three_dims(x, w):
    K = w.shape[2]
    windows = x.unfold(2, K, 1).unfold(3, K, 1).unfold(4, K, 1)
    return torch.einsum("bcdhwijk,ocijk->bodhw", windows, w)


def means(x):
    return x.unfold(2, 3, 2).unfold(3, 3, 2).mean((-1, -2))
