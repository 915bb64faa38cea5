"""Numbers and truths that Python makes of pairs do not store the pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults

N, M = 1700, 1300  # pairs of more than 8 MB


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def scaled(a: Tensor, b: Tensor):
    d = squared(a, b)
    scale = d.mean().item()
    return torch.exp(-d / scale).sum(1)


def returned(a: Tensor, b: Tensor):
    d = squared(a, b)
    scale, most = d.mean().item(), float(d.max())
    return torch.exp(-d / (2 * scale + 1)).sum(1), scale, most


def branched(a: Tensor, b: Tensor):
    d = squared(a, b)
    if d.max() > 4.0:
        d = d / d.max()
    return torch.exp(-d).sum(1)


def not_branched(a: Tensor, b: Tensor):
    d = squared(a, b)
    if d.max() > 4000.0:
        d = d / d.min() - torch.inf
    return torch.exp(-d).sum(1)


def by_numbers(a: Tensor, b: Tensor):
    d = squared(a, b)
    least, most = d.min().item(), d.max().item()
    if least < 0.5 and not most <= 4:
        d = (d - least) / 2
    elif (d > 100).any():
        d = d * 2
    return d.amin(1), d.sqrt().amax(0)


def with_else(a: Tensor, b: Tensor):
    d = squared(a, b)
    if torch.isnan(d).any():
        w = torch.zeros_like(d)
    else:
        w = torch.softmax(-d, 1)
    return w @ b


PROGRAMS = (scaled, returned, branched, not_branched, by_numbers, with_else)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_no_pairs_are_stored(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(N, 3), torch.randn(M, 3)
    with faults.strict():
        compiled = lt.script(fn)
        got = compiled(a, b)
        assert compiled.memory(a, b).peak_bytes < 1 << 20
    want = fn(a, b)
    if fn is returned:
        assert [type(x) for x in got] == [Tensor, float, float]
        assert got[2] == want[2]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_so_with_gradients(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(n, 3).requires_grad_() for n in (N, M))

    def gradients(f: Callable[..., Any], *inputs: Tensor):
        results: Any = f(*inputs)
        found: Any = results[0] if fn in (returned, by_numbers) else results
        return torch.autograd.grad((found / 100).sin().sum(), inputs, allow_unused=True)

    with faults.strict():
        compiled = lt.script(fn)
        got = gradients(compiled, a, b)
        if fn in (scaled, returned):  # a branch may decide what requires a gradient
            assert compiled.memory(a, b).peak_bytes < 1 << 20
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    for x, y in zip(got, gradients(fn, *wide), strict=True):
        torch.testing.assert_close(x, y.float(), rtol=1e-4, atol=1e-4)


def printed(a: Tensor, b: Tensor):
    d = squared(a, b)
    least, most = d.min().item(), d.max().item()
    low = f"{most - least:.3f}"
    return d.sum(1), low


def counted(a: Tensor, b: Tensor):
    d = squared(a, b)
    n = int((d < 1).sum().item()) % 7 + 1
    return d.amin(1)[:n], d.amax(1)


def aliased(a: Tensor, b: Tensor):
    d = squared(a, b)
    c = a
    if d.max() > 4000:
        c = a * 2
    return c, (d * c[:, :1]).amin(1)


def leaving(a: Tensor, b: Tensor):
    d = squared(a, b)
    if d.max() > 4000:
        e = d * 2
    else:
        e = d
    return d, e, e.amin(1)


def read_before_a_write(a: Tensor, b: Tensor):
    d = squared(a, b)
    mean = d.mean()
    number = mean.item()
    mean.add_(1)
    return (d * number).sum(0), mean, number


def written_in_a_branch(a: Tensor, b: Tensor):
    d, s = squared(a, b), torch.zeros(3)
    if d.mean() > 4000:
        s += d.mean()
    else:
        s[1] = 2
    return (-d).exp().sum(0), s


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("fn", [read_before_a_write, written_in_a_branch])
def test_writes(fn: Callable[..., Any], is_recorded: bool) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(n, 3, requires_grad=is_recorded) for n in (N, M))
    with faults.strict():
        got = lt.script(fn)(a, b)
    for x, y in zip(got, fn(a, b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        assert not isinstance(y, Tensor) or x.requires_grad == y.requires_grad


def zero_divisor(a: Tensor, b: Tensor):
    d = squared(a, b)
    return (d / (1 / (d.min().item() * 0))).sum(1)


@pytest.mark.parametrize("fn", [printed, counted, leaving, aliased])
def test_what_python_needs_is_pythons(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(N, 3), torch.randn(M, 3)
    with faults.strict():
        got = lt.script(fn)(a, b)
    want = fn(a, b)
    assert [type(x) for x in got] == [type(x) for x in want]
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5) if isinstance(x, Tensor) else None
    assert (got[0] is a) == (want[0] is a)
    if fn is leaving:
        assert got[0].data_ptr() == got[1].data_ptr()


def test_errors_of_python_are_raised() -> None:
    a, b = torch.randn(N, 3), torch.randn(M, 3)
    with pytest.raises(ZeroDivisionError):
        lt.script(zero_divisor)(a, b)


def test_nan_is_compared_as_python_does() -> None:
    a, b = torch.randn(N, 3), torch.randn(M, 3)
    compiled = lt.script(by_numbers)
    for value in (float("nan"), float("inf"), 1.0):
        a[3] = value
        torch.testing.assert_close(compiled(a, b), by_numbers(a, b), equal_nan=True)
