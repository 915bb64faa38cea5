"""Norms in training write running statistics, and what is read of these is another value then."""

from __future__ import annotations

import copy
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


def norms(*between: torch.nn.Module) -> torch.nn.Sequential:
    norm = torch.nn.BatchNorm1d
    return torch.nn.Sequential(norm(8), torch.nn.Linear(8, 8), *between, norm(8))


def with_one_mean() -> torch.nn.Sequential:
    made = norms()
    made[2].running_mean = made[0].running_mean
    return made


def with_one_counter() -> torch.nn.Sequential:
    made = norms()
    made[2].num_batches_tracked = made[0].num_batches_tracked
    return made


def with_overlapping_means() -> torch.nn.Sequential:
    made, memory = norms(), torch.zeros(12)
    made[0].running_mean, made[2].running_mean = memory[:8], memory[4:]
    return made


def with_one_norm_twice() -> torch.nn.Sequential:
    made = norms()
    made[2] = made[0]
    return made


def by_counter() -> torch.nn.Sequential:
    made = norms()
    for norm in (made[0], made[2]):
        norm.momentum = None
    return made


@pytest.mark.parametrize("way", [lt.script, lt.compile])
@pytest.mark.parametrize("make", [
    norms, with_one_mean, with_one_counter, with_overlapping_means, with_one_norm_twice, by_counter,
])  # fmt: skip
def test_two_norms_in_training(make: Callable[[], torch.nn.Sequential], way: Any) -> None:
    torch.manual_seed(0)
    expected = make()
    found = copy.deepcopy(expected)
    compiled, x = way(found), torch.randn(16, 8)
    for records in (True, True, False):
        with torch.set_grad_enabled(records):
            ours, theirs = compiled(x), expected(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        if records:
            ours.square().sum().backward()
            theirs.square().sum().backward()
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_two_norms_and_their_counters_are_one_region() -> None:
    compiled = lt.script(norms())
    compiled(torch.randn(16, 8))
    assert "0 ops left to PyTorch" in str(compiled.explain(torch.randn(16, 8)))


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n: Tensor
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)
        y = x + self.n  # what has just been written
        self.n.add_(2)
        return y * self.n


def test_a_counter_that_is_read_again() -> None:
    expected = Counter()
    compiled, x = lt.script(copy.deepcopy(expected)), torch.randn(5)
    for _ in range(3):
        assert torch.equal(compiled(x), expected(x))
    assert torch.equal(compiled.n, expected.n)
