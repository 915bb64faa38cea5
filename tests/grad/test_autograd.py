"""What PyTorch's autograd promises holds for compiled functions: modes, hooks, graphs, views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults, stats
from lowtide.execute.mutation import copied
from tests.grad.eager_gradients import close, randn, same


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


def score(x: Tensor, y: Tensor):
    return torch.tanh(x @ y.t()).sum(1), (x * x).mean()


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_only_some_inputs(wanted: tuple[bool, bool]) -> None:
    same(score, randn(40, 5), randn(36, 5, seed=1), wanted=wanted)


def test_only_some_gradients_and_outputs() -> None:
    x, y = leaf(40, 5), leaf(36, 5, seed=1)
    for k in (0, 1):
        for inputs in ([x], [y], [x, y]):
            got = torch.autograd.grad(lt.script(score)(x, y)[k].sum(), inputs, allow_unused=True)
            want = torch.autograd.grad(score(x, y)[k].sum(), inputs, allow_unused=True)
            for g, w in zip(got, want, strict=True):
                assert (g is None) == (w is None) or not g.any()  # type: ignore[union-attr]
                if g is not None and w is not None:
                    close(g, w)


def test_modes() -> None:
    compiled, x, y = lt.script(score), leaf(40, 5), leaf(36, 5, seed=1)
    with torch.no_grad():
        assert not compiled(x, y)[0].requires_grad
    with torch.inference_mode():
        assert compiled(x, y)[0].is_inference()
    assert compiled(x, y)[0].requires_grad
    assert not compiled(x.detach(), y.detach())[0].requires_grad


def test_retain_graph() -> None:
    x, y = leaf(40, 5), leaf(36, 5, seed=1)
    out = lt.script(score)(x, y)[0].sum()
    out.backward(retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    out.backward()
    close(x.grad, 2 * first)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_hooks() -> None:
    x, y = leaf(40, 5), leaf(36, 5, seed=1)
    seen: list[str] = []
    x.register_hook(lambda g: seen.append("x") or g * 2)
    out = lt.script(score)(x, y)[0]
    out.register_hook(lambda g: seen.append("out"))
    out.sum().backward()
    assert seen == ["out", "x"]
    want = torch.autograd.grad(score(x, y)[0].sum(), x)[0]
    close(x.grad, want)  # type: ignore[arg-type]
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t,
        lambda t: t,  # type: ignore[arg-type,func-returns-value]
    ):
        lt.script(score)(x, y)
    assert packed


def test_an_input_changed_in_place_is_an_error() -> None:
    x, y = leaf(40, 5), leaf(36, 5, seed=1)
    middle = y * 1
    out = lt.script(score)(x, middle)[0].sum()
    middle.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def halves(x: Tensor):
    top = x.max(1).values
    return top, (x - top[:, None]).exp().sum(1)


def test_an_output_changed_in_place_is_none() -> None:
    """Eager keeps no output of these: changing one must not reach the backward pass."""
    x = leaf(40, 36)
    top, mass = lt.script(halves)(x)
    top.mul_(0.0)
    mass.sum().backward()
    want = torch.autograd.grad(halves(x)[1].sum(), x)[0]
    close(x.grad, want)  # type: ignore[arg-type]


def cubic(x: Tensor, w: Tensor):
    return ((x @ w).tanh() * x[:, :1]).sum(1)


def test_double_backward() -> None:
    x, w = leaf(34, 5), leaf(5, 6, seed=1)
    assert torch.autograd.gradgradcheck(lt.script(cubic), (x, w), fast_mode=True)
    results = []
    for f in (lt.script(cubic), cubic):
        (g,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
        penalty = (g.norm(dim=1) - 1).pow(2).mean()
        results.append(torch.autograd.grad(penalty, (x, w)))
    for got, want in zip(*results, strict=True):
        close(got, want)


def nested(xs: list[Tensor], pair: tuple[Tensor, int]):
    y, n = pair
    return [x * n + y.max(0).values for x in xs], xs[0].sum()


def test_containers_once_and_twice() -> None:
    def run(f):
        xs, y = [leaf(40, 6, seed=k) for k in range(3)], leaf(35, 6, seed=9)
        out, total = f(xs, (y, 3))
        loss = sum(o.pow(2).sum() for o in out) * total
        first = torch.autograd.grad(loss, [*xs, y], create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), [*xs, y])
        return [*first, *second]

    for got, want in zip(run(lt.script(nested)), run(nested), strict=True):
        close(got, want)


def test_expanded_and_strided_cotangents() -> None:
    def wide(x: Tensor, y: Tensor):
        return x[:, None] * y[None]

    for reduce in (
        lambda o: o.sum(), lambda o: o.t().contiguous().exp().sum(), lambda o: o[::2, 1:].sum(),
        lambda o: (o * torch.arange(36.0)[:, None].t()).sum(0).pow(2).sum(),
        lambda o: o.mean(1).sum(), lambda o: torch.stack([o, o]).prod(0).sum(),
    ):  # fmt: skip
        x, y = leaf(40), leaf(36, seed=1)
        reduce(lt.script(wide)(x, y)).backward()
        want = torch.autograd.grad(reduce(wide(x, y)), (x, y))
        close(x.grad, want[0])  # type: ignore[arg-type]
        close(y.grad, want[1])  # type: ignore[arg-type]


def views(x: Tensor):
    y = x * 2
    return x.t(), y, y[1:], x.detach(), x.view(-1), y.argmax(1), x


def test_views_and_what_carries_none() -> None:
    same(views, randn(40, 6))
    x = leaf(40, 6)
    out = lt.script(views)(x)
    assert out[0]._base is x
    assert out[4]._base is x
    assert out[2]._base is out[1]
    assert out[6] is x
    assert not out[3].requires_grad
    assert out[3].data_ptr() == x.data_ptr()
    assert not out[5].requires_grad


def in_the_middle(x: Tensor, w: Tensor):
    y = torch.relu(x * w)
    z = torch.cumsum(y, 1)
    return (z * y).sum(), torch.sort(z, dim=0).values.tanh()


def convolution(x: Tensor, k: Tensor):
    y = F.conv2d((x * 2).sin(), k)
    return (y.relu() + 1).log().sum((2, 3))


def test_between_ops_of_pytorch() -> None:
    same(in_the_middle, randn(40, 6), randn(6, seed=1))
    same(convolution, randn(2, 3, 33, 34), randn(4, 3, 3, 3, seed=1))


def in_place(x: Tensor, w: Tensor):
    buffer = x * 1
    for i in range(3):
        buffer[:, i] = torch.relu(buffer[:, i + 1] + w[i])
    buffer += x.exp()
    return buffer.tanh().sum(1)


def grown(x: Tensor):
    total = torch.zeros_like(x[0])
    for i in range(x.shape[0]):
        if x[i].sum() > 0:
            total = total + x[i].sigmoid()
        else:
            total = total * 0.5 - x[i]
    return total


def test_mutation_and_control_flow() -> None:
    same(in_place, randn(40, 6), randn(6, seed=1))
    same(grown, randn(9, 40))


def coupled(x: Tensor, w: Tensor):
    total = torch.zeros(x.size(0))
    for _ in range(5):  # more than one region
        a, b = x.split(2, 1)
        s, t = torch.tanh(a @ w).split(2, 1)
        x = torch.cat([b * s.exp() + t, a], 1)
        total += s.sum(1)  # after it, halves of x that are views may have changed, too
    return x, total


def test_copies_for_the_backward_pass_lie_as_their_originals() -> None:
    same(coupled, randn(5, 4), randn(2, 4, seed=1))
    same(coupled, randn(50, 4), randn(2, 4, seed=1))
    base = randn(7)
    for x in (base[1:6:2], base.as_strided((3, 2), (1, 2)), base[:1].expand(4)):
        copy = copied(x)
        assert torch.equal(copy, x)
        assert copy.stride() == x.stride()
        assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def sharp(x: Tensor, y: Tensor):
    s = x @ y.t()
    return (
        s.amax(1),
        F.pad(s[None], (1, 1), mode="replicate").sum(),
        torch.cdist(x, y, p=3.0),
    )


def test_ops_left_to_pytorch_still_differentiate() -> None:
    same(sharp, randn(40, 5), randn(40, 5, seed=1), compiled_whole=False)
    told = str(lt.script(sharp).explain(leaf(40, 5), leaf(40, 5, seed=1)))
    assert "the gradient of a clamped index" in told
    assert "PyTorch's own" in told


def unused(x: Tensor, y: Tensor):
    return (x * 2).sum(), y.shape[0] + x


def test_inputs_that_matter_not() -> None:
    same(unused, randn(40), randn(5, seed=1))


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    compiled, x, y = lt.script(score), leaf(40, 5), leaf(36, 5, seed=1)
    checkpoint(compiled, x, y, use_reentrant=False)[0].sum().backward()
    close(x.grad, torch.autograd.grad(score(x, y)[0].sum(), x)[0])  # type: ignore[arg-type]


def test_transforms_run_as_python() -> None:
    compiled, x, y = lt.script(score), randn(40, 5), randn(36, 5, seed=1)
    got = torch.func.grad(lambda v: compiled(v, y)[0].sum())(x)
    close(got, torch.func.grad(lambda v: score(v, y)[0].sum())(x))
    jacobian = torch.autograd.functional.jacobian(lambda v: compiled(v, y)[0], x)
    close(jacobian, torch.autograd.functional.jacobian(lambda v: score(v, y)[0], x))
    x.requires_grad_()
    many = torch.eye(40, dtype=torch.float64)
    got, want = (
        torch.autograd.grad(f(x, y)[0], x, many, is_grads_batched=True)[0]
        for f in (compiled, score)
    )
    close(got, want)


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, target: Tensor):
    h = torch.relu(x @ w1 + b1)
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, keepdim=True) + 1e-5).sqrt()
    return F.cross_entropy(h @ w2 + b2, target)


def test_training() -> None:
    """50 steps of two hand-written layers: the losses of eager, from kernels compiled once."""
    x, target = (
        randn(200, 20),
        torch.randint(10, (200,), generator=torch.Generator().manual_seed(0)),
    )
    histories: list[list[float]] = []
    for f in (lt.script(mlp), mlp):
        parameters = [
            torch.nn.Parameter(randn(*s, seed=k) * 0.2)
            for k, s in enumerate([(20, 64), (64,), (64, 10), (10,)])
        ]
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        losses: list[float] = []
        before = stats.cache_stats()
        for step in range(50):
            optimizer.zero_grad()
            rows = slice(0, 200 - step % 3 * 20)
            loss = f(x[rows], *parameters, target[rows])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        done = stats.cache_stats() - before
        assert done.regions_eager == done.calls_eager == 0
        assert done.compiles <= 2
        histories.append(losses)
    assert histories[0][-1] < 0.5 * histories[0][0]
    torch.testing.assert_close(
        torch.tensor(histories[0]), torch.tensor(histories[1]), rtol=1e-5, atol=1e-6
    )


def only_compared(x: Tensor) -> Tensor:
    return x * (torch.floor_divide(x, 2) >= 0)


def test_what_is_only_compared_has_no_edge() -> None:
    """PyTorch cannot go back through floor_divide, and needs not."""
    x = torch.randn(40, requires_grad=True)
    (got,) = torch.autograd.grad(lt.script(only_compared)(x).sum(), x)
    (want,) = torch.autograd.grad(only_compared(x).sum(), x)
    torch.testing.assert_close(got, want)


# ---- writes that autograd does not see ----------------------------------------------------------


def counted_up(x):
    y = x * 2
    z = y.detach()
    z += 1
    return y, z


def first_set(x):
    y = x * 2
    y.detach()[1:][0] = 1.0
    return y * y


@pytest.mark.parametrize("f", [counted_up, first_set])
def test_a_write_into_what_is_detached_keeps_the_gradient(f: Any) -> None:
    x = torch.randn(4, 40, requires_grad=True)
    got, want = lt.script(f)(x), f(x)
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    for a, b in zip(got, want, strict=True):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b)
    (mine,) = torch.autograd.grad(got[0].sum(), x)
    (theirs,) = torch.autograd.grad(want[0].sum(), x)
    torch.testing.assert_close(mine, theirs)


def minus_the_mean(x, mean, var):
    y = F.batch_norm(x, mean, var, training=True)
    return torch.tanh(y * 3 - mean)


def test_running_statistics_that_are_read_are_those_of_the_call() -> None:
    """PyTorch writes them without telling autograd; a call may come before the backward pass."""

    def gradient(f: Any) -> Tensor:
        x, mean, var = leaf(6, 5).float(), torch.zeros(5), torch.ones(5)
        ys = f(x, mean, var), f(x * 2 + 1, mean, var)
        (found,) = torch.autograd.grad(sum(y.square().sum() for y in ys), x)
        return found

    torch.testing.assert_close(gradient(lt.script(minus_the_mean)), gradient(minus_the_mean))


def low_order(x):
    return torch.linalg.vector_norm(x, 0.5, dim=1)


@pytest.mark.parametrize("end", [float("inf"), float("nan")])
def test_the_slope_of_a_norm_of_low_order_at_0(end: float) -> None:
    found: list[Tensor] = []
    for fn in (low_order, lt.script(low_order)):
        x = torch.tensor([[0.0, end, 1.0], [0.0, 2.0, 3.0]], requires_grad=True)
        fn(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, equal_nan=True)


def counts(x, y):
    apart = F.pairwise_distance(x, y, 0.0)
    return x.norm(p=0, dim=1), torch.linalg.vector_norm(x, 0), torch.linalg.norm(x[0], 0), apart


def test_norms_of_order_0_require_a_gradient_as_in_eager_mode() -> None:
    x, y = leaf(4, 5), randn(4, 5, seed=1)
    for found, theirs in zip(lt.script(counts)(x, y), counts(x, y), strict=True):
        assert found.requires_grad == theirs.requires_grad
        torch.testing.assert_close(found, theirs)
        mine, want = (
            torch.autograd.grad(z.sum(), x, allow_unused=True)[0] for z in (found, theirs)
        )
        assert (mine is None) == (want is None)
        assert mine is None or torch.equal(mine, want)


def test_a_second_backward_pass_where_nothing_is_saved() -> None:
    def total(x: Tensor):
        return x.sum()

    x = leaf(3)
    y = lt.script(total)(x)
    y.backward()
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
