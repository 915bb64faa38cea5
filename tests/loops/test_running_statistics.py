"""Norms in training write running statistics, and what is read of these is another value then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt


def asked_between(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, int]:
    n = 0
    while bool(mean.abs().max() < 1.5) and n < 8:
        y = F.batch_norm(y, mean, var, training=True) * 2 + 10
        n += 1
    return y, n


def counted_to_a_sum(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, int]:
    n = 0
    while n < 9 - int(mean.sum()):
        y = F.batch_norm(y, mean, var, training=True) * 2 + 10
        n += 1
    return y, n


def counted_to_one_value(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, int]:
    n = 0
    while True:
        y = F.batch_norm(y, mean, var, training=True) * 2 + 10
        n += 1
        if n >= 8 - int(mean[0]):
            break
    return y, n


def counted_to_a_view(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, int]:
    n = 0
    part = mean[:1]
    while True:
        part.add_(0.5)
        n += 1
        if n >= 6 - int(mean.sum()):
            break
    return y * 2, n


def summed(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(3)
    for _ in range(3):
        total = total + (mean + 0)
        y = F.batch_norm(y, mean, var, training=True) * 2 + 10
    return y, total


def of_instances(y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(3)
    for _ in range(3):
        total = total + (mean + 0)
        x = y[..., None] + torch.arange(5.0)
        y = F.instance_norm(x, mean, var, use_input_stats=True)[..., 2] + 7
    return y, total


PROGRAMS = (
    asked_between, counted_to_a_sum, counted_to_one_value, counted_to_a_view, summed, of_instances,
)  # fmt: skip


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
@pytest.mark.parametrize("program", PROGRAMS)
def test_reads_them_anew(program: Callable[..., Any], entry: Callable[..., Any]) -> None:
    def run(call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        y, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
        return [*call(y, mean, var), mean, var]

    for wanted, got in zip(run(program), run(entry(program)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_norms_that_write_nothing_share_what_is_read_twice() -> None:
    def program(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        a = mean.abs().sum()
        y = F.batch_norm(y, mean, var, training=False)
        return y * a + mean.abs().sum()

    text = str(lt.script(program).graph)
    assert text.count("torch.abs") == 1
