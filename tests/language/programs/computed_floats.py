"""Floats that the program computes, handed to ops that must know them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.language.support import program


def _calls():
    torch.manual_seed(0)
    return [(torch.randn(2, 3), p) for p in (0.5, 1.5, 2.0, 2.5)]


@program(calls=_calls)
def slopes(x: Tensor, p: float):
    a, b = F.leaky_relu(x, p * 0.5), F.leaky_relu(x, 1 / math.sqrt(p))
    return a, b, F.leaky_relu(x, float(p)), F.elu(x, alpha=p / 2), F.hardtanh(x, -p / 2, p / 2)


@program(calls=_calls)
def norms(x: Tensor, p: float):
    near = F.pairwise_distance(x, x + 1, p / 2)
    return x.norm(p=float(p), dim=-1), F.normalize(x, p=float(p)), near, torch.cdist(x, x, p * 1.0)


@program(calls=_calls)
def small_numbers(x: Tensor, p: float):
    target = torch.tensor([0, 1])
    loss = F.cross_entropy(x, target, label_smoothing=p / 10) + F.huber_loss(x, x * 2, delta=3 - p)
    return loss, F.layer_norm(x, (3,), eps=p / 1000), torch.linspace(0, p / 2, 5)


@program(calls=lambda: _calls()[:1])
def of_the_index(x: Tensor, p: float):
    for i in range(3):
        x = F.leaky_relu(x, p * i)
    return x


@program(calls=lambda: [(torch.ones(n, 3) - 2,) for n in (2, 5, 40)])
def of_a_size(x: Tensor):
    return F.leaky_relu(x, x.size(0) / 10), F.elu(x, alpha=float(x.sum()) / 100)
