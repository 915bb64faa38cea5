"""Under autocast programs are compiled, with PyTorch's casts: values, dtypes, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt

BF16 = torch.bfloat16


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def two_outputs(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x @ w.t() + b), (x * 2).sum()


def distances(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return ((x[:, None] - w[None]) ** 2).sum(-1).min(1).values


def attention(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(x @ w.t() / 8, -1) @ w


def losses(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x @ w.t()
    return F.cross_entropy(y, torch.arange(40)) + F.mse_loss(torch.sigmoid(y), torch.zeros(40, 48))


def apart(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        wide = x @ w.t()
    return wide + x @ w.t()


def by_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x @ w.t(), (48,), b, b * 2)


def by_batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = (x @ w.t()).view(8, 5, 48).transpose(1, 2)
    still = F.batch_norm(y, b.detach() * 0, b.detach().abs() + 0.5, b, b)
    return F.batch_norm(y, None, None, b, training=True) + still


def by_group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = (x @ w.t()).view(8, 5, 48).transpose(1, 2)
    return F.group_norm(y, 6, b, b * 2) + F.instance_norm(y, weight=b)


WAYS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "eager": lambda net, x: net,
    "script": lambda net, x: lt.script(net),
    "trace": lambda net, x: lt.trace(net, (x,)),
    "compile": lambda net, x: lt.compile(net),
}


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


def by_einsum(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("nc,mc->nm", x, w).relu()


def gradients(
    f: Callable[..., Any], dtype: torch.dtype, inputs: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=dtype):
        found = f(*leaves)
    outputs = list(found) if isinstance(found, tuple) else [found]
    sum(y.double().square().sum() for y in outputs).backward()  # type: ignore[union-attr]
    return outputs, [x.grad for x in leaves if x.grad is not None]


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(40, 32), torch.randn(48, 32) * 0.2, torch.randn(48)]


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize(
    "f", [layer, two_outputs, distances, attention, losses, apart, by_layer, by_batch, by_group]
)
def test_values_and_gradients(f: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled = lt.script(f)
    before = lt.cache_stats()
    found, found_grads = gradients(compiled, dtype, inputs())
    since = lt.cache_stats() - before
    assert since.calls_eager + since.regions_eager == 0
    assert since.compiles >= 2
    expected, expected_grads = gradients(f, dtype, inputs())
    assert [y.dtype for y in found] == [y.dtype for y in expected]
    for one, other in zip((*found, *found_grads), (*expected, *expected_grads), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * scale)


def test_each_setting_is_a_program_of_its_own() -> None:
    compiled = lt.script(product)
    x, w, _ = inputs()
    for _ in range(2):
        assert compiled(x, w).dtype is torch.float32
        with torch.autocast("cpu", dtype=BF16):
            assert compiled(x, w).dtype is BF16
            with torch.autocast("cpu", dtype=torch.float16):
                assert compiled(x, w).dtype is torch.float16
            with torch.autocast("cpu", enabled=False):
                assert compiled(x, w).dtype is torch.float32
            assert compiled(x.double(), w.double()).dtype is torch.float64


@pytest.mark.parametrize("way", ["script", "trace", "compile"])
def test_training_a_module(way: str) -> None:
    losses: dict[str, list[float]] = {}
    x, target = torch.randn(40, 16), torch.randn(40, 3)
    for name in ("eager", way):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
        run: Any = WAYS[name](net, x)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses[name] = []
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=BF16):
                loss = F.mse_loss(run(x), target)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses[way] == pytest.approx(losses["eager"], rel=0.02)
    assert losses[way][-1] < losses[way][0]


def test_a_gradient_of_a_gradient() -> None:
    """PyTorch runs the ops again, with the casts of the forward pass."""

    def second(f: Callable[..., Any]) -> Tensor:
        x, w, b = (t.clone().requires_grad_() for t in inputs())
        with torch.autocast("cpu", dtype=BF16):
            y = f(x, w, b)
        (g,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
        (gg,) = torch.autograd.grad(g.square().sum(), w)
        return gg

    found, expected = second(lt.script(layer)), second(layer)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.03 * scale)


def test_ops_that_decide_for_themselves_are_left() -> None:
    compiled = lt.script(by_einsum)
    x, w, _ = inputs()
    with torch.autocast("cpu", dtype=BF16):
        text = str(compiled.explain(x, w))
        found = compiled(x, w)
    assert "autocast decides within it" in text
    assert found.dtype is BF16
