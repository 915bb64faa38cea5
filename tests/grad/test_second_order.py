"""Gradients of gradients by kernels: PyTorch's values at zeros, ties and kinks, too, and no tensor
of pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lowtide as lt
from lowtide.execute import second_order
from lowtide.memory.measure import measure_peak

Function = Callable[[Tensor, Tensor], Tensor]


def lennard_jones(x: Tensor, y: Tensor) -> Tensor:
    r2 = (x[:, None] - y[None]).square().sum(-1) + 0.5
    return (1 / r2**6 - 1 / r2**3).sum(1) + torch.exp(-r2).mean(1)


def distances(x: Tensor, y: Tensor) -> Tensor:
    d = x[:, None] - y[None]
    return (d * d).sum(-1).sqrt().sum(1)


def attention(x: Tensor, y: Tensor) -> Tensor:
    return (torch.softmax(x @ y.t(), 1) @ y).sin().sum(1)


def norms(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x @ y.t(), (y.shape[0],)).sin().sum(1)


def rectified(x: Tensor, y: Tensor) -> Tensor:
    return (torch.relu(x[:, None] - y[None]) ** 2).sum((1, 2)) + (x - 1).abs().pow(3).sum(1)


def chosen(x: Tensor, y: Tensor) -> Tensor:
    s = x @ y.t()
    return torch.where(s > 0, s.exp(), s**3).sum(1)


def nearest(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y[None]).square().sum(-1).min(1)[0].sin()


def largest(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.t()).amax(1).sin() + torch.maximum(x, x.flip(0)).pow(3).sum(1)


def classes(x: Tensor, y: Tensor) -> Tensor:
    target = torch.arange(x.shape[0]) % y.shape[0]
    return F.cross_entropy(x @ y.t(), target, reduction="none") + torch.logsumexp(x, 1)


def activations(x: Tensor, y: Tensor) -> Tensor:
    s = x @ y.t()
    return (F.gelu(s) + F.silu(s) + F.softplus(s) + torch.tanh(s) * torch.sigmoid(s)).sum(1)


def linear(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.sum(0)


BY_KERNELS = [
    lennard_jones, distances, attention, norms, rectified, chosen, largest, classes,
    activations, linear,
]  # fmt: skip


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] * y[None]).prod(-1).sum(1)


def lengths(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y[None]).norm(dim=-1).sum(1)


def huber(x: Tensor, y: Tensor) -> Tensor:
    s = x @ y.t()
    return F.smooth_l1_loss(s, torch.zeros_like(s), reduction="none").sum(1)


def powers(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] ** y[None]).sum((1, 2)) + torch.pow(0.0, x).sum(1)


def of_exponents(x: Tensor, y: Tensor) -> Tensor:
    return F.elu(x @ y.t(), 0.5).sum(1)


BY_PYTORCH = [products, lengths, huber, nearest, powers, of_exponents]


def inputs(kind: str) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    if kind == "ties":
        return tuple(torch.randint(-1, 2, (n, 3), generator=g).float() for n in (37, 50))
    x, y = (torch.randn(n, 3, generator=g) for n in (37, 50))
    if kind == "zeros":
        x[:5], y[:5], y[7] = 0, 0, x[9]
    return x, y


def twice(f: Function, x: Tensor, y: Tensor, is_vector: bool) -> list[Tensor | None]:
    """First and second derivatives; of a vector also those for its cotangent."""
    x, y = (t.detach().requires_grad_() for t in (x, y))
    e = f(x, y)
    v = torch.linspace(-1, 1, e.numel(), dtype=x.dtype).view_as(e).requires_grad_()
    first = torch.autograd.grad(
        e, (x, y), v if is_vector else torch.ones_like(e), create_graph=True
    )
    loss = sum((g.square().sum() + g.sin().sum() for g in first), torch.zeros((), dtype=x.dtype))
    wanted = (x, y, v) if is_vector else (x, y)
    second = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [*(g.detach() for g in first), *second]


def check(got: Sequence[Tensor | None], eager: Sequence[Any], exact: Sequence[Any]) -> None:
    assert [g is None for g in got] == [e is None for e in eager]
    for g, e, x in zip(got, eager, exact, strict=True):
        if g is None:
            continue
        assert torch.equal(g.isnan(), e.isnan())
        assert torch.equal(g.isinf(), e.isinf())
        x = x.nan_to_num(0, 0, 0)
        error, own = ((t.double().nan_to_num(0, 0, 0) - x).abs().max() for t in (g, e))
        assert error <= 4 * own + 8 * torch.finfo(torch.float32).eps * x.abs().max()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each backward pass that is differentiated, whether kernels run it."""
    found: list[bool] = []
    plan = second_order._second  # pyright: ignore[reportPrivateUsage]

    def noted(*args: Any) -> Any:
        made = plan(*args)
        found.append(made is not None)
        return made

    monkeypatch.setattr(second_order, "_second", noted)
    return found


@pytest.mark.parametrize("kind", ["plain", "zeros", "ties"])
@pytest.mark.parametrize("f", [*BY_KERNELS, *BY_PYTORCH], ids=lambda f: f.__name__)
def test_as_in_pytorch(f: Function, kind: str, planned: list[bool]) -> None:
    x, y = inputs(kind)
    compiled = lt.script(f)
    for is_vector in (False, True):
        eager, exact = (twice(f, *given, is_vector) for given in ((x, y), (x.double(), y.double())))
        check(twice(compiled, x, y, is_vector), eager, exact)
    assert all(made == (f in BY_KERNELS) for made in planned)
    assert planned


def leaky(x: Tensor, y: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.1)


def larger(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, x.flip(0)) * y.sum()


def extreme(x: Tensor, y: Tensor) -> Tensor:
    return x.amax(1)


@pytest.mark.parametrize("is_vector", [False, True])
@pytest.mark.parametrize("f", [leaky, larger, extreme], ids=lambda f: f.__name__)
def test_none_or_zeros(f: Function, is_vector: bool, planned: list[bool]) -> None:
    """The mask of a maximum hands nothing on, that of a relu zeros."""

    def edges(f: Function) -> list[object]:
        x, y = (t.requires_grad_() for t in inputs("plain"))
        e = f(x, y)
        v = torch.ones_like(e).requires_grad_(is_vector)
        first: tuple[Any, ...] = torch.autograd.grad(
            e, (x, y), v, create_graph=True, allow_unused=True
        )
        found: list[object] = []
        for g in first:
            found.append(g is not None and g.requires_grad)
            if g is not None and g.requires_grad:
                wanted = (x, y, v) if is_vector else (x, y)
                second: tuple[Any, ...] = torch.autograd.grad(
                    g, wanted, torch.ones_like(g), retain_graph=True, allow_unused=True
                )
                found += [s is None for s in second]
        return found

    assert edges(lt.script(f)) == edges(f)
    assert planned == [True]


def test_parts_of_a_gradient_have_names_of_their_own(planned: list[bool]) -> None:
    def second(f: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        q, k = (t[None, None].detach().requires_grad_() for t in inputs("plain"))
        first = torch.autograd.grad(f(q, k).square().sum(), (q, k), create_graph=True)
        return [*torch.autograd.grad([g.sin().sum() for g in first], (q, k))]

    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(second(lt.script(library_attention)), second(library_attention))
    assert planned == [True]


def library_attention(q: Tensor, k: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, k).sin()


def test_no_pairs() -> None:
    x, y = torch.randn(2000, 3), torch.randn(1500, 3)
    compiled = lt.script(lennard_jones)
    twice(compiled, x, y, True)
    peak, _ = measure_peak(lambda: twice(compiled, x, y, True))
    assert peak.peak_bytes < 4_000_000  # a tensor of pairs has 12 MB


def test_third_derivatives(planned: list[bool]) -> None:
    def third(f: Function) -> list[Tensor]:
        x, y = (t.double().requires_grad_() for t in inputs("plain"))
        (first,) = torch.autograd.grad(f(x, y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return [*torch.autograd.grad(second.sin().sum(), (x, y))]

    torch.testing.assert_close(third(lt.script(attention)), third(attention))
    assert planned == [True]


def test_a_penalty_of_a_module() -> None:
    """The gradient of the input is part of the loss; parameters get theirs."""

    def step(module: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x = torch.linspace(-1, 1, 60).view(20, 3).requires_grad_()
        (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        module.zero_grad()
        (slope.norm(dim=1) - 1).square().mean().backward()
        return [p.grad for p in module.parameters() if p.grad is not None]

    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 1)
    )
    want = [g.clone() for g in step(module, module)]
    for run in (lt.script(module), lt.compile(module)):
        torch.testing.assert_close(step(module, run), want, rtol=1e-4, atol=1e-6)


def test_some_inputs_only() -> None:
    x, y = inputs("plain")

    def second(f: Function) -> Tensor:
        x_ = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(x_, y).sum(), x_, create_graph=True)
        return torch.autograd.grad(first[:, 0].sum(), x_)[0]

    torch.testing.assert_close(
        second(lt.script(attention)), second(attention), rtol=1e-4, atol=1e-5
    )


def test_a_changed_input_is_seen() -> None:
    """As in PyTorch, what the graph needs must not be changed in place."""
    x, y = (t.requires_grad_() for t in inputs("plain"))
    scale = torch.ones(3)
    compiled = lt.script(lambda_free)
    first = torch.autograd.grad(compiled(x * scale, y).sum(), x, create_graph=True)[0]
    scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.square().sum(), x)


def lambda_free(x: Tensor, y: Tensor) -> Tensor:
    return attention(x, y)
