"""`torch.utils.checkpoint` inside compiled code: values, gradients and state as PyTorch's, and less
memory."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as cp
from torch import nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.execute.block_plan import BlockPlan
from tests.memory.contract import assert_within_contract, requested_bytes

again = functools.partial(checkpoint, use_reentrant=False)


def layer(x, w):
    return torch.tanh(x @ w).relu()


def of_a_function(x, w):
    return checkpoint(layer, x, w, use_reentrant=False).sum(1)


def by_a_partial(x, w):
    return again(layer, x, w) * 2


def with_a_keyword(x, w):
    return checkpoint(layer, x, w=w, use_reentrant=False, preserve_rng_state=True)


def of_a_closure(x, w):
    scale = w.sum()
    return checkpoint(lambda y: (y * scale).exp(), x, use_reentrant=False)


def two_results(x, w):
    def both(y):
        return y @ w, (y * w.sum()).detach(), y.shape[0]

    a, b, n = checkpoint(both, x, use_reentrant=False)
    return a * n, b


def within_one(x, w):
    def outer(y):
        return checkpoint(layer, y, w, use_reentrant=False).cos()

    return checkpoint(outer, x, use_reentrant=False)


def in_a_loop(x, w):
    for _ in range(3):
        x = checkpoint(layer, x, w, use_reentrant=False) + x
    return x


def in_a_branch(x, w):
    if x.sum() > 1e6:
        return x
    return checkpoint(layer, x, w, use_reentrant=False)


def of_a_list(x, w):
    tensors = []
    for row in x:
        tensors.append(row * w.sum())

    return checkpoint(torch.stack, tensors, use_reentrant=False)


def writing_outside(x, w):
    y = x * 2

    def change(z):
        y.add_(z @ w)
        return z.sin()

    made = checkpoint(change, x, use_reentrant=False)
    return made + y


def reentrant(x, w):
    return checkpoint(layer, x, w, use_reentrant=True)


def of_parameters_alone(x, w):
    held = w * 1
    return checkpoint(lambda y: (y @ held).sin(), x.detach(), use_reentrant=True)


def hands_on(x, w):
    return checkpoint(lambda y: y, x, use_reentrant=False) * w.sum()


def with_a_view(x, w):
    return checkpoint(lambda y: y.t(), x, use_reentrant=False).exp() * w.sum()


PROGRAMS = [
    of_a_function,
    by_a_partial,
    with_a_keyword,
    of_a_closure,
    two_results,
    within_one,
    in_a_loop,
    in_a_branch,
    of_a_list,
    writing_outside,
    reentrant,
    of_parameters_alone,
    hands_on,
    with_a_view,
]


def _run(fn: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    made = fn(x, w)
    results = made if isinstance(made, tuple) else (made,)
    first = results[0]
    if first.requires_grad:
        (first * torch.arange(first.numel()).view_as(first)).mean().backward()
    flags = [r.requires_grad for r in results]
    return [*(r.detach() for r in results), x.grad, w.grad, flags]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_gradients(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(n, 40, dtype=torch.float64) / 6 for n in (5, 40))
    compiled = lt.script(fn)
    for _ in range(2):
        torch.testing.assert_close(_run(compiled, x, w), _run(fn, x, w))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), fn(x, w))


def test_second_derivatives() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    fn = lt.script(of_a_closure)
    assert torch.autograd.gradcheck(fn, (x, w))
    assert torch.autograd.gradgradcheck(fn, (x, w))


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout())
            for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + cp.checkpoint(layer, x, use_reentrant=False)
        return x


@pytest.mark.parametrize("entry", [lt.script, lt.compile], ids=["script", "compile"])
def test_random_numbers_and_statistics_as_in_eager(entry: Any) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    eager, x = Net(), torch.randn(48, 64)
    net = Net()
    net.load_state_dict(eager.state_dict())
    compiled = entry(net)
    for model in (eager, compiled):
        torch.manual_seed(1)
        model(x).square().mean().backward()
    for a, b in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(net.state_dict(), eager.state_dict())
    assert "recomputed in the backward pass" in str(compiled.explain(x))


@pytest.mark.parametrize("entry", [lt.script, lt.compile], ids=["script", "compile"])
def test_a_graph_that_is_kept_is_run_again_as_often(entry: Any) -> None:
    """Each backward pass writes the counters of batches, as eager's checkpoints do."""

    def derived(call: Callable[..., Any], net: nn.Module) -> list[Any]:
        torch.manual_seed(1)
        y = call(x).square().mean()
        first = torch.autograd.grad(y, x, retain_graph=True)
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return [*first, slope, *torch.autograd.grad(slope.square().sum(), x), *net.buffers()]

    torch.compiler.reset()
    torch.manual_seed(0)
    eager = Net(16).double()
    x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    net = copy.deepcopy(eager)
    torch.testing.assert_close(derived(entry(net), net), derived(eager, eager))


class Deep(nn.Module):
    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.checkpoints = checkpoints

    def inner(self, layer: nn.Module, x):
        return torch.fft.fft(layer(x)).real.sin().cumsum(1)

    def forward(self, x):
        for k in range(4):
            if self.checkpoints:
                x = checkpoint(self.twice, k, x, use_reentrant=False)
            else:
                x = self.twice(k, x)
        return x.sum()

    def twice(self, k: int, x):
        return self.inner(self.layers[2 * k + 1], self.inner(self.layers[2 * k], x))


@pytest.mark.parametrize("entry", [lt.script, lt.compile], ids=["script", "compile"])
def test_less_is_kept(entry: Any) -> None:
    torch.compiler.reset()
    x = torch.randn(8192, 64)
    plain, checkpointed = (entry(Deep(c)).memory(x).peak_bytes for c in (False, True))
    assert checkpointed < 0.75 * plain


def test_a_captured_checkpoint_needs_what_is_predicted() -> None:
    torch.compiler.reset()
    compiled, x = lt.compile(Deep(True)), torch.randn(8192, 64)
    predicted = compiled.memory(x)
    assert not any("not counted" in note for note in predicted.notes)
    for _ in range(2):
        compiled(x).backward()
        compiled.zero_grad()
    asked = requested_bytes(lambda: compiled(x).backward())
    assert_within_contract(asked, predicted.peak_bytes, library_ops=False)


class Captured(nn.Module):
    """Writes in the checkpoint, results that are no tensors, one within another."""

    def forward(self, x, w):
        def inner(y, scale: int):
            z = y @ w
            z += scale
            return z.sin(), y.shape[0], (z * 2).detach()

        def outer(y):
            a, n, b = checkpoint(inner, y, 3, use_reentrant=False)
            return a * n, b

        a, b = checkpoint(outer, x, use_reentrant=False)
        return (a.exp(), b)


def test_captured_values_and_gradients() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    x, w = (torch.randn(n, 40, dtype=torch.float64) / 6 for n in (5, 40))
    net = Captured()
    torch.testing.assert_close(_run(lt.compile(net, fullgraph=True), x, w), _run(net, x, w))


def test_why_one_is_kept_is_told() -> None:
    x, w = torch.randn(5, 40, requires_grad=True), torch.randn(40, 40)
    assert "a checkpoint that PyTorch recomputes" in str(lt.script(of_a_list).explain(x, w))


def scaled_if_cast(x, w):
    y = x @ w
    return y * 2 if y.dtype == torch.bfloat16 else y


def _checkpointed(x, w):
    return checkpoint(scaled_if_cast, x, w, use_reentrant=False)


def test_autocast_is_the_same_again() -> None:
    x, w = torch.ones(40, 40, requires_grad=True), torch.ones(40, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = lt.script(_checkpointed)(x, w)
    made.sum().backward()
    assert made.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad[0, 0] == 80


def _with_contexts(x):
    return checkpoint(torch.sin, x, use_reentrant=False, context_fn=cp.noop_context_fn)


def test_contexts_are_refused_with_a_remedy() -> None:
    with pytest.raises(lt.CompileError, match="`context_fn`"):
        lt.script(_with_contexts)(torch.ones(3))


class Held(nn.Module):
    """As libraries of transformers write it: the checkpoint is an attribute, of `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))
        self.run = functools.partial(checkpoint, use_reentrant=False)

    def forward(self, x):
        for layer in self.layers:
            x = self.run(layer.__call__, x).sin()
        return x


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)))

    def forward(self, x):
        return cp.checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@pytest.mark.parametrize("make", [Held, Sequence])
def test_other_spellings(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(50, 40, requires_grad=True)
    compiled = lt.script(model)
    found = []
    for f in (compiled, model):
        model.zero_grad()
        f(x).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(found[0], found[1])
    assert "recomputed in the backward pass" in str(compiled.explain(x))


def test_another_partial_is_another_program() -> None:
    model, x = Held(), torch.randn(50, 40)
    compiled = lt.script(model)
    want = compiled(x)
    model.run = functools.partial(checkpoint, use_reentrant=True)
    torch.testing.assert_close(compiled(x), want)
    model.run = functools.partial(nn.functional.linear, weight=None)
    with pytest.raises(lt.CompileError):
        compiled(x)


def test_a_section_made_in_a_call_is_planned_once() -> None:
    x, w = torch.randn(50, 40, requires_grad=True), torch.randn(40, 40)
    compiled, counts = lt.script(of_a_function), []
    for _ in range(4):
        compiled(x, w).sum().backward()
        gc.collect()
        counts.append(sum(type(made) is BlockPlan for made in gc.get_objects()))
    assert counts[1] == counts[-1]
