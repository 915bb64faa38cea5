"""Long products that forward and backward pass share are done in strips, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.tile import axes, strips
from tests.grad.eager_gradients import close, randn, same

N, V, C = 213, 150, 16  # rows: thirteen strips and a rest


@pytest.fixture(autouse=True)
def small_strips(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of 16 terms are long here, and 16 rows a strip."""
    for module, name in ((axes, "LONG"), (strips, "FEWEST"), (strips, "MOST")):
        monkeypatch.setattr(module, name, 16)
    with faults.strict():
        yield


def targets() -> Tensor:
    return torch.arange(N) * 7 % V


def cross_entropy(x: Tensor, w: Tensor):
    return F.cross_entropy(x @ w.t(), torch.arange(x.shape[0]) * 7 % w.shape[0])


def smoothed(x: Tensor, w: Tensor, b: Tensor):
    target = torch.arange(x.shape[0]) * 7 % w.shape[0]
    return F.cross_entropy(F.linear(x, w, b), target, label_smoothing=0.1, reduction="sum")


def by_hand(x: Tensor, w: Tensor):
    scores = x @ w.t()
    z = scores.logsumexp(-1)
    return (z - scores[:, 3]).mean() + 1e-3 * (z * z).mean()


def normalised(x: Tensor, w: Tensor):
    scores = F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).t() / 0.1
    return F.cross_entropy(scores, torch.arange(x.shape[0]) * 7 % w.shape[0])


def largest_column(x: Tensor, w: Tensor):
    return (x @ w.t()).relu().sum(0).max()


def distilled(x: Tensor, w: Tensor, y: Tensor, u: Tensor):
    teacher = F.softmax(y @ u.t(), -1)
    return -(teacher * F.log_softmax(x @ w.t(), -1)).sum(-1).mean()


def each_row(x: Tensor, w: Tensor):
    return F.cross_entropy(x @ w.t(), torch.arange(x.shape[0]) * 7 % w.shape[0], reduction="none")


def two_layers(x: Tensor, w: Tensor, u: Tensor):
    return F.gelu(x @ w.t()) @ u


def layers_and_loss(x: Tensor, w: Tensor, u: Tensor):
    return (F.gelu(x @ w.t()) @ u - x).square().mean()


def both_ways(x: Tensor, w: Tensor):
    scores = x @ w.t()
    return scores.logsumexp(0).mean() + scores.logsumexp(1).mean()


def two_heads(x: Tensor, w: Tensor, u: Tensor):
    first = F.cross_entropy(x @ w.t(), torch.arange(x.shape[0]) * 7 % w.shape[0])
    return first + F.cross_entropy(x @ u.t(), torch.arange(x.shape[0]) * 3 % u.shape[0])


def log_density(x: Tensor, w: Tensor):
    """Of distances that are written out: squares of both, less twice the product."""
    squares = (x * x).sum(1)[:, None] + (w * w).sum(1)[None]
    return -torch.logsumexp(2 * x @ w.t() - squares, 1).mean()


def discrepancy(x: Tensor, w: Tensor):
    """Three products of pairs that have nothing to do with each other."""

    def kernel(a: Tensor, b: Tensor):
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None]
        return torch.exp((2 * a @ b.t() - squares) / 16).mean()

    return kernel(x, x) + kernel(w, w) - 2 * kernel(x, w)


def inputs(fn: object) -> list[Tensor]:
    weights = randn(V, C, seed=1) * 0.3
    other: dict[object, list[Tensor]] = {
        smoothed: [randn(V, seed=2)],
        distilled: [randn(N, C, seed=2), randn(V, C, seed=3)],
        two_layers: [randn(V, C, seed=2)],
        layers_and_loss: [randn(V, C, seed=2)],
        two_heads: [randn(V, C, seed=2)],
    }
    return [randn(N, C), weights, *other.get(fn, [])]


AT_ONCE = [
    cross_entropy, smoothed, by_hand, normalised, distilled, layers_and_loss, two_heads,
    log_density, discrepancy,
]  # fmt: skip
OTHERS = [largest_column, each_row, two_layers, both_ways]


@pytest.mark.parametrize("fn", [*AT_ONCE, *OTHERS], ids=lambda fn: fn.__name__)
def test_in_strips(fn: Callable[..., Tensor]) -> None:
    same(fn, *inputs(fn))
    report = str(lt.script(fn).explain(*[x.requires_grad_() for x in inputs(fn)]))
    assert "once for each 16 rows" in report
    assert ("found together with the output" in report) is (fn in AT_ONCE)


@pytest.mark.parametrize("rows", [32, 47, 48, 49, 2 * N])
def test_any_number_of_rows(rows: int) -> None:
    compiled = lt.script(cross_entropy)
    for n in (N, rows):  # one signature
        x, w = randn(n, C).requires_grad_(), randn(V, C, seed=1).requires_grad_()
        found = torch.autograd.grad(compiled(x, w), [x, w])
        for g, want in zip(found, torch.autograd.grad(cross_entropy(x, w), [x, w]), strict=True):
            close(g, want)


def test_only_one_gradient_and_none() -> None:
    same(cross_entropy, *inputs(cross_entropy), wanted=(True, False))
    same(cross_entropy, *inputs(cross_entropy), wanted=(False, True))
    x, w = inputs(cross_entropy)
    close(lt.script(cross_entropy)(x, w), cross_entropy(x, w))


@pytest.mark.parametrize("fn", [cross_entropy, log_density, discrepancy])
def test_no_values_of_pairs_are_stored(fn: Callable[..., Tensor]) -> None:
    x, w = (x.requires_grad_() for x in inputs(fn))
    buffers = lt.script(fn).explain(x, w).memory.buffers
    assert max(b.nbytes for b in buffers if b.kind in ("temporary", "output")) < N * V * 8 // 4


def test_the_backward_pass_again_and_scaled() -> None:
    x, w = (x.requires_grad_() for x in inputs(cross_entropy))
    want = torch.autograd.grad(cross_entropy(x, w), [x, w])
    loss = lt.script(cross_entropy)(x, w)
    first = torch.autograd.grad(loss, [x, w], retain_graph=True)
    for g in first:
        g.zero_()  # the caller's own
    for g, expected in zip(torch.autograd.grad(3 * loss, [x, w]), want, strict=True):
        close(g, 3 * expected)


def test_gradients_are_added_up() -> None:
    x, w = (x.requires_grad_() for x in inputs(cross_entropy))
    compiled = lt.script(cross_entropy)
    for _ in range(2):
        compiled(x, w).backward()
    want = torch.autograd.grad(2 * cross_entropy(x, w), [x, w])
    for g, expected in zip((x.grad, w.grad), want, strict=True):
        assert g is not None
        close(g, expected)


def test_double_backward() -> None:
    def second(fn: Callable[..., Tensor]) -> Tensor:
        x, w = (x.requires_grad_() for x in inputs(cross_entropy))
        (g,) = torch.autograd.grad(fn(x, w), [x], create_graph=True)
        return torch.autograd.grad(g.square().sum(), w)[0]

    close(second(lt.script(cross_entropy)), second(cross_entropy))


def test_a_target_out_of_bounds_is_an_error() -> None:
    def loss(x: Tensor, w: Tensor, target: Tensor):
        return F.cross_entropy(x @ w.t(), target)

    compiled = lt.script(loss)
    x, w = (x.requires_grad_() for x in inputs(cross_entropy))
    compiled(x, w, targets())
    with pytest.raises(IndexError):
        compiled(x, w, targets() + V)


def test_sums_in_half_precision_are_not_added_to() -> None:
    """A sum of bfloat16 that is stored after each strip would be rounded each time."""
    x, w = (x.bfloat16().requires_grad_() for x in inputs(cross_entropy))
    found = torch.autograd.grad(lt.script(cross_entropy)(x, w), [x, w])
    wide = [x.detach().double().requires_grad_() for x in (x, w)]
    want = torch.autograd.grad(cross_entropy(*wide), wide)
    for g, expected in zip(found, want, strict=True):
        assert (g.double() - expected).norm() < 0.02 * expected.norm()


def test_nan_in_one_row_is_added_up_once() -> None:
    """A kernel that has lost a NaN in a minimum runs again: not one that adds to what it found."""

    def seen(x: Tensor, w: Tensor):
        scores = x @ w.t()
        positive = (scores > 0).sum(0)
        return scores.logsumexp(1).nan_to_num(2.0).sum(), positive

    x, w = inputs(cross_entropy)
    x[3] = torch.nan
    same(seen, x, w)


def test_gradients_in_float16_are_found_for_the_scaled_loss() -> None:
    """For the cotangent 1 they would underflow, which losses are scaled against."""
    x, w = (x.half().requires_grad_() for x in inputs(cross_entropy))
    compiled = lt.script(cross_entropy)
    assert "found together with the output" not in str(compiled.explain(x, w))
    found = torch.autograd.grad(compiled(x * 1e-2, w * 1e-2) * 4096, [x, w])
    wide = [x.detach().double().requires_grad_() for x in (x, w)]
    loss = cross_entropy(wide[0] * 1e-2, wide[1] * 1e-2)
    for g, want in zip(found, torch.autograd.grad(loss * 4096, wide), strict=True):
        assert (g.double() - want).norm() < 2e-2 * want.norm()
