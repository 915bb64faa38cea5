"""There is no memory in the middle of a call: what was held is freed, inputs are as they were."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.runtime import arena


class Shortage:
    """The arena, and what it falls back to, have no memory from the n-th request on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.left = after
        take, plain = arena._pool.take, arena._torch_empty

        def short_take(nbytes: int, is_for_work: bool = False) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError("no memory")
            return take(nbytes, is_for_work)

        def short_empty(shape: Any, dtype: Any, strides: Any) -> Any:
            if self.left < 0:
                raise RuntimeError("not enough memory: you tried to allocate too much")
            return plain(shape, dtype, strides)

        monkeypatch.setattr(arena._pool, "take", short_take)
        monkeypatch.setattr(arena, "_torch_empty", short_empty)


def steps(x):
    a = torch.cumsum(x * 2, 0)
    b = torch.sort(a * 3, 0).values
    return torch.cumsum(b + 1, 1) * x


def with_all_kept(x):
    """Results that do not die: none lies over another within a budget, each is asked for."""
    a = torch.cumsum(x * 2, 0)
    b = torch.sort(a * 3, 0).values
    c = torch.cumsum(b + 1, 1)
    d = torch.cumsum(c - 1, 0)
    return d * x + a + b + c


def weighted(q):
    return torch.softmax(q @ q.t() * 0.1, -1) @ q


def test_work_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is PyTorch's error, too."""
    x = torch.rand(2000, 128)
    compiled = lt.script(weighted)
    expected = compiled(x)
    asked: list[bool] = []
    take = arena._pool.take
    monkeypatch.setattr(
        arena._pool,
        "take",
        lambda n, is_for_work=False: asked.append(is_for_work) or take(n, is_for_work),
    )
    compiled(x)
    for after in range(len(asked)):
        with monkeypatch.context() as patch:
            Shortage(patch, after)
            with pytest.raises(RuntimeError, match="not enough memory"):
                compiled(x)
    assert True in asked
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("budget", [None, 10_000_000])
def test_forward(monkeypatch: pytest.MonkeyPatch, after: int, budget: int | None) -> None:
    x = torch.rand(700, 700)
    kept, compiled = x.clone(), lt.script(with_all_kept, budget=budget)
    expected = compiled(x)
    in_use = lt.memory_stats().in_use_bytes
    with monkeypatch.context() as patch:
        Shortage(patch, after)
        with pytest.raises(RuntimeError, match="memory"):
            compiled(x)
    assert lt.memory_stats().in_use_bytes == in_use
    assert torch.equal(x, kept)
    assert torch.equal(compiled(x), expected)


def test_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(700, 700, requires_grad=True)
    compiled = lt.script(steps)
    compiled(x).sum().backward()
    expected, x.grad = x.grad, None
    random, in_use = torch.get_rng_state(), lt.memory_stats().in_use_bytes
    result = compiled(x).sum()
    with monkeypatch.context() as patch:
        Shortage(patch, 0)
        with pytest.raises(RuntimeError, match="memory"):
            result.backward()
    del result
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert lt.memory_stats().in_use_bytes <= in_use
    compiled(x).sum().backward()
    assert torch.equal(x.grad, expected)


def test_work_memory_that_only_the_heap_has(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2000, 128)
    compiled = lt.script(weighted)
    expected = compiled(x)
    take, refused = arena._pool.take, []

    def take_none_for_work(nbytes: int, is_for_work: bool = False) -> Any:
        if is_for_work:
            refused.append(nbytes)
            raise OSError("no memory")
        return take(nbytes, is_for_work)

    monkeypatch.setattr(arena._pool, "take", take_none_for_work)
    assert torch.equal(compiled(x), expected)
    assert refused


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_address_space() -> None:
    """Steps of training that fail at an allocation of PyTorch's leave nothing in use."""
    command = [sys.executable, "-m", "tests.memory.shortage_alone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    failed = [row for row in rows if row[0] == "failed"]
    assert failed, done.stdout
    for _, heap, in_arena, gradients in failed:
        assert int(heap) < 1 << 16
        assert (in_arena, gradients) == ("0", "0")
