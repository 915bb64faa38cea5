"""Loops under a budget: done in stretches of their steps, with the results that they had."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer
from lowtide.budget.rewrite import with_sections
from lowtide.budget.search import Plan, path
from lowtide.execute.driver import Driver
from tests.memory.calls import tensors
from tests.memory.contract import assert_budget_kept, requested_bytes

BATCH, WIDTH, STEPS = 8, 16, 120
LARGE = 24  # a batch beside which the places of small tensors in the heap are little


def padded(x, h, w, lengths):
    outs = []
    for t in range(x.size(1)):
        new = torch.tanh(x[:, t, :] @ w + h)
        h = torch.where((t < lengths).unsqueeze(1), new, h)
        outs.append(h.unsqueeze(1))
    return torch.cat(outs, dim=1), h


def backwards(x, h, w, lengths):
    outs = []
    for t in range(x.size(0) - 1, -1, -1):
        h = torch.tanh(x[t] @ w + h)
        outs.append(h)
    return torch.stack(outs[::-1]), h


def extended(x, h, w, lengths):
    outs = []
    for xt in x.unbind(0):
        h = torch.tanh(xt @ w + h)
        outs += [h]
    return torch.stack(outs), h


def both_ways(x, h, w, lengths):
    there, back, k = [], [], h
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        there.append(h)
        there.append(h * 2)
    for t in range(x.size(0)):
        k = torch.tanh(x[x.size(0) - 1 - t] @ w + k)
        back.append(k)
    return torch.stack(there), torch.stack(back, -1)


def differences(x, h, w, lengths):
    outs = []
    for t in range(1, x.size(0)):
        h = torch.tanh(x[t] @ w + h + x.select(0, t - 1) * lengths.sum())
        outs.append(h)
    return torch.stack(outs), h


def dropped(x, h, w, lengths):
    outs = []
    for t in range(x.size(0)):
        h = F.dropout(torch.tanh(x[t] @ w + h), 0.5)
        outs.append(h)
    return torch.stack(outs), h


def last_only(x, h, w, lengths):
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
    return h


def with_branch(x, h, w, lengths):
    outs = []
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h) if bool(x[t].sum() > 0) else h * 0.5
        outs.append(h)
    return torch.stack(outs), h


STRETCHED = [
    padded, backwards, extended, both_ways, differences, dropped, last_only,
]  # fmt: skip


def inputs(
    fn: Callable[..., Any], grad: bool, steps: int = STEPS, batch: int = BATCH
) -> list[Tensor]:
    torch.manual_seed(0)
    shape = (batch, steps, WIDTH) if fn is padded else (steps, batch, WIDTH)
    made = [torch.randn(shape), torch.zeros(batch, WIDTH), torch.randn(WIDTH, WIDTH) / 5]
    leaves = [x.double().requires_grad_(grad) for x in made]
    return [*leaves, torch.randint(1, STEPS, (batch,))]


def resolved(fn: Callable[..., Any], args: list[Tensor]) -> tuple[Driver, list[Any]]:
    compiled = lt.script(fn)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    return Driver(driver.function), values


def found(fn: Callable[..., Any], args: list[Tensor]) -> list[Plan]:
    return list(path(*resolved(fn, args)))


def results(fn: Callable[..., Any], args: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    out = tensors(fn(*args))
    leaves = [x for x in args if x.requires_grad]
    if not leaves:
        return out
    return [*out, *torch.autograd.grad(sum((y * y).sum() for y in out), leaves)]


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", STRETCHED)
def test_the_same_in_stretches(fn: Callable[..., Any], grad: bool) -> None:
    args = inputs(fn, grad)
    driver, values = resolved(fn, args)
    loops = [c for c in candidates(Outer(driver, values)) if c.carried is not None]
    assert loops
    for count in (1, 3):
        stretched = Driver(with_sections(driver.function, dict.fromkeys(loops, count), {}))
        got = results(lambda *_, run=stretched: run(values), args)
        for one, other in zip(got, results(fn, args), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fn", [pytest.param(padded, marks=pytest.mark.long), last_only])
def test_a_budget_is_kept(fn: Callable[..., Any]) -> None:
    args = inputs(fn, True, 500, LARGE)
    peaks = [p.memory.peak_bytes for p in found(fn, args)]
    assert min(peaks) < 0.8 * peaks[0]
    limited = lt.script(fn, budget=min(peaks))
    assert limited.memory(*args).peak_bytes == min(peaks)
    for got, want in zip(results(limited, args), results(fn, args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fn", [pytest.param(padded, marks=pytest.mark.long), dropped])
def test_a_peak_does_not_hang_on_the_collector(
    fn: Callable[..., Any],
) -> None:
    """Nothing that holds tensors waits for it, be it while plans are found or afterwards."""
    args = inputs(fn, True, 40)
    usual = [p.memory.peak_bytes for p in found(fn, args)]
    gc.disable()
    try:
        assert [p.memory.peak_bytes for p in found(fn, args)] == usual
    finally:
        gc.enable()


def test_what_is_kept_grows_with_the_stretches_only() -> None:
    """Unbounded, every step keeps what its gradient needs. The places that small tensors leave in
    the heap, counted with stretches only, take a part of what is saved."""
    args = inputs(last_only, True, 500)
    plans = found(last_only, args)
    section = next(op for op in plans[-1].driver.function.walk() if "carried" in op.attrs)
    step_bytes = BATCH * WIDTH * 8
    saved = plans[0].memory.peak_bytes - plans[-1].memory.peak_bytes
    assert section.attrs["chunks"] == 500 // 33
    assert saved >= step_bytes * 500 // 2


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize("fn", [backwards, differences, both_ways])
def test_gradients_of_gradients(fn: Callable[..., Any]) -> None:
    args = inputs(fn, True)
    driver, values = resolved(fn, args)
    loops = [c for c in candidates(Outer(driver, values)) if c.carried is not None]
    stretched = Driver(with_sections(driver.function, dict.fromkeys(loops, 3), {}))

    def twice(run: Callable[..., Any]) -> list[Tensor]:
        (first,) = torch.autograd.grad(run(*args)[1].sum(), args[0], create_graph=True)
        return [first, torch.autograd.grad((first * first).sum(), args[2])[0]]

    for got, want in zip(twice(lambda *_: stretched(values)), twice(fn), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("small_ones_reused")
def test_two_backward_passes() -> None:
    args = inputs(dropped, True)
    driver, values = resolved(dropped, args)
    chunks = dict.fromkeys(candidates(Outer(driver, values)), 3)
    torch.manual_seed(1)
    y, _ = Driver(with_sections(driver.function, chunks, {}))(values)
    first = torch.autograd.grad(y.sum(), args[:3], retain_graph=True)
    second = torch.autograd.grad(y.sum(), args[:3])
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


# -- loops that stay in one piece ------------------------------------------------------------------


def every_other(x, h, w, lengths):
    for t in range(x.size(0) // 2):
        h = torch.tanh(x[2 * t] @ w + h)
    return h


def prints(x, h, w, lengths):
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        if bool(h.sum() > 1e9):
            print(t)
    return h


def ends_early(x, h, w, lengths):
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        if bool(h.sum() > 1e9):
            break
    return h


def reads_its_list(x, h, w, lengths):
    outs = [h]
    for t in range(x.size(0)):
        outs.append(torch.tanh(x[t] @ w + outs[-1]))
    return torch.stack(outs)


def grows(x, h, w, lengths):
    parts = []
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        parts.append(h[: t % 3 + 1])
    return torch.cat(parts)


def hands_out_its_list(x, h, w, lengths):
    outs = []
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        outs.append(h)
    return torch.stack(outs), outs


def writes(x, h, w, lengths):
    y = x * 1
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        y[t] += h
    return y


def counts(x, h, w, lengths):
    n = 0
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ w + h)
        n += 1 if bool(h.sum() > 0) else 0
    return h * n


def sizes_by_data(x, h, w, lengths):
    outs = []
    for t in range(x.size(0)):
        outs.append(h[:2] if bool(x[t].sum() > 0) else h[:4])
        h = torch.tanh(x[t] @ w + h)
    return torch.cat(outs), h


def reads_a_tuple(x, h, w, lengths):
    pair = (w, w * 2)
    ws = pair if bool(lengths.sum() > 0) else (w * 2, w)
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ ws[0] + h @ ws[1])
    return h


WHOLE = [
    sizes_by_data, reads_a_tuple, with_branch, every_other, prints, ends_early, reads_its_list,
    grows, hands_out_its_list, writes, counts,
]  # fmt: skip


@pytest.mark.parametrize("fn", WHOLE)
def test_stays_whole(fn: Callable[..., Any]) -> None:
    args = inputs(fn, True)
    driver, values = resolved(fn, args)
    assert not [c for c in candidates(Outer(driver, values)) if c.carried is not None]


# -- gradients of what all chunks share ------------------------------------------------------------


def shares(x, w):
    s = w * 2
    z = torch.cumsum(torch.sort(x * 2, -1).values * s, 1)
    return torch.sort(z, -1).values, s


def test_a_result_that_all_chunks_share_counts_once() -> None:
    x = torch.rand(600, 100, dtype=torch.float64, requires_grad=True)
    w = torch.rand(100, dtype=torch.float64, requires_grad=True)
    budget = min(p.memory.peak_bytes for p in found(shares, [x, w]))

    def gradients(fn: Callable[..., Any]) -> tuple[Tensor, ...]:
        y, s = fn(x, w)
        return torch.autograd.grad(y.sum() * 1e-6 + (s * s).sum(), (x, w))

    for got, want in zip(
        gradients(lt.script(shares, budget=budget)), gradients(shares), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def summed(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    h, outs = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        h = torch.tanh(h * a + x[t])
        outs.append(h.sum(-1))
    return torch.stack(outs), h


def test_the_last_value_of_a_loop_does_not_hold_the_others() -> None:
    """Those of all steps are there to be summed, and would stay with it while the next runs."""
    x, a = torch.randn(90, 500, 60), torch.rand(60)
    found = lt.script(summed)(x, a)
    torch.testing.assert_close(found, summed(x, a), rtol=1e-5, atol=1e-4)
    assert found[1].untyped_storage().nbytes() == x[0].nbytes
    free: Any = lt.script(summed)
    limited: Any = lt.script(summed, budget=int(0.7 * free.memory(x, a).peak_bytes))
    limited(x, a)
    budget = limited.memory(x, a).peak_bytes
    assert_budget_kept(requested_bytes(lambda: limited(x, a)), budget, library_ops=False)
