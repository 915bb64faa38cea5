"""Traced functions: what is recorded gives what eager gives, on other sizes than the example's."""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agree import agree, same

import lowtide as lt
from lowtide.ir.parser import parse_function

R = torch.rand
W = torch.rand(4, 5)
Pair = namedtuple("Pair", ["first", "second"])


def arith(x, y):
    return (1 - x) * y / (x + 2) + 3 // (y + 1) - 2**x + 7 % (x + 1)


def compares(x, y):
    return (x > y) & ~(x == 0.5) | (y.__gt__(1)), x != y, abs(-x)


def matrix(x, y):
    return torch.einsum("ij,kj->ik", x, y) + x @ y.mT


def closure(x):
    return x @ W


def factories(x):
    n = x.size(0)
    return x + torch.zeros(n, x.shape[1]) + torch.arange(n)[:, None] + torch.ones_like(x) * 2


def literal(x):
    bias = torch.tensor([1.0, 2.0])
    bias[0] = 5
    return x[:, :2] * bias + torch.tensor(2.0)


def accumulate(x):
    total = torch.tensor(0.0)
    total += x.sum()
    return total


def sizes(x):
    b, t = x.shape
    return x.reshape(b * t), x.view(-1, x.shape[0]), x.new_zeros((x.numel() // 2,))


def size_float(x):
    return x * x.shape[0] ** -0.5 + x / x.size(-1) + x * (x.size(0) / 3)


def size_math(x):
    n = math.floor(x.shape[0] / 2)
    return (
        x[:n],
        x[n:],
        x.expand(2, *x.shape),
        x.reshape(math.prod(x.shape)),
        x.flatten()[: sum(x.shape)],
    )


def items(x):
    return x[0], x[..., None, -1], x[x > 0.5], x[[0, 1]], x[:, torch.tensor([1, 0])], x[1:, ::2]


def set_items(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] = y[:, 0] * 2
    y[y > 1] = 0
    return y


def in_place(x):
    y = x * 2
    z = y.view(-1)
    z += 1
    y.mul_(3).clamp_(max=4)
    y **= 2
    return y, z


def change_input(x):
    x.add_(1)
    return x * 2


def out_argument(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    a, b = torch.max(y, 1)
    return y, a, b


def results(x):
    top = torch.topk(x, 2)
    values, indices = x.sort(dim=1)
    q, r = torch.linalg.qr(x)
    return top.values, values, indices, q @ r, x.max(0).values, torch.aminmax(x).max


def pieces(x):
    a, b = x.chunk(2, dim=1)
    c, d = x.split([1, 3], dim=1)
    return torch.cat([a, b], 0), torch.stack((c[:, 0], d[:, 0])), x.unbind(1)[1]


def functional(x):
    y = F.layer_norm(x, (4,))
    y = F.gelu(y) + F.silu(y) + F.relu(y, inplace=False)
    return F.softmax(y, -1), F.log_softmax(y, dim=1), F.pad(y, (1, 1)), F.normalize(y)


def losses_of_distances(x):
    def far(a, b):
        return 1.0 - F.cosine_similarity(a, b) * W.mean()

    others = (x + 1).roll(1, 0), x * 2
    learned = torch.nn.TripletMarginWithDistanceLoss(distance_function=far, swap=True)
    usual = torch.nn.TripletMarginWithDistanceLoss()
    return learned(x, *others) * 2, usual(x, *others)


def dict_result(x):
    return {"b": x + 1, "a": [x, (x * 2, None)]}


def named_result(x):
    return Pair(x + 1, [x])


def dtypes(x):
    return x.to(torch.float64), x.double().float(), x.int() + 1, x.type(torch.int64), x.bool()


def views(x):
    return x.T, x.t().contiguous(), x.permute(1, 0), x.unsqueeze(0).squeeze(), x.transpose(0, 1)


def size_result(x):
    return x.shape[0] * 2, x + x.dim()


def special(x):
    return torch.special.expit(x), torch.linalg.norm(x), torch.fft.fft(x).abs(), x.logsumexp(1)


def properties(x):
    assert x.dtype == torch.float32
    assert x.shape[0] > 1
    if x.is_contiguous() and x.ndim == 2 and not x.is_cuda:
        return x + x.stride(1)
    return x


def copied(x):
    y = copy.deepcopy(x)
    y += 1
    return x, y


def random(x):
    return x + torch.rand(x.shape)


ONE: list[Callable[..., Any]] = [
    closure, factories, literal, accumulate, sizes, size_float, size_math, items, set_items,
    in_place, change_input, out_argument, results, pieces, functional, dict_result, named_result,
    losses_of_distances, dtypes, views, size_result, special, properties, copied,
]  # fmt: skip


@pytest.mark.parametrize("fn", ONE, ids=lambda fn: fn.__name__)
def test_one_input(fn: Callable[..., Any]) -> None:
    traced = lt.trace(fn, (R(4, 4),))
    agree(traced, fn, (R(4, 4),), (R(6, 4),))
    assert parse_function(str(traced.graph)) == traced.graph


@pytest.mark.parametrize("fn", [arith, compares, matrix], ids=lambda fn: fn.__name__)
def test_two_inputs(fn: Callable[..., Any]) -> None:
    traced = lt.trace(fn, (R(3, 4), R(3, 4)))
    agree(traced, fn, (R(3, 4), R(3, 4)), (R(5, 6), R(5, 6)))


def test_random_numbers_are_drawn_at_each_call() -> None:
    with pytest.warns(lt.TracerWarning, match="draws random numbers"):
        traced = lt.trace(random, R(4))
    agree(traced, random, (R(5),))
    assert not torch.equal(traced(R(3)), traced(R(3)))


def test_torch_ops_are_recorded() -> None:
    traced = lt.trace(lambda x: torch.ops.aten.add.Tensor(x, x) + torch.ops.aten.exp(x), R(2))
    x = R(4)
    same(traced(x), x + x + x.exp())


def test_names_of_torch_jit_are_taken() -> None:
    traced = lt.trace(
        torch.sin, (R(2),), check_trace=False, strict=False, check_tolerance=1e-3, optimize=None,
        _force_outplace=False, _module_class=None, _store_inputs=True,
    )  # fmt: skip
    assert isinstance(traced, lt.ScriptFunction)
    assert isinstance(traced, lt.TracedFunction)


def test_what_can_be_asked() -> None:
    def fn(x, y):
        return (x * y + 1).relu()

    traced = lt.trace(fn, (R(3), R(3)))
    x = R(50)
    assert "torch.mul" in str(traced.graph)
    assert traced.code.startswith("def fn(x: Tensor, y: Tensor) -> Tensor:")
    assert len(traced.explain(x, x).kernels) == 1
    assert traced.memory(x.to("meta"), x.to("meta")).peak_bytes == 200
    assert traced.stages(x, x)[0][0] == "ir"
    assert traced.__name__ == "fn"
    assert traced.graph.loc.file == __file__


def test_places_are_the_users() -> None:
    traced = lt.trace(functional, R(2, 4))
    assert {op.loc.file for op in traced.graph.walk()} == {__file__}


def test_private_in_place_activations_become_plain() -> None:
    def fn(x):
        y = F.relu(x * 2 - 1, inplace=True)
        z = F.hardtanh_(x + 1)
        return F.relu_(y + z).exp(), torch.relu_(z)

    traced = lt.trace(fn, R(3))
    agree(traced, fn, (R(5),))
    assert str(traced.graph).count("mutate") == 2  # of z
    x = R(50)
    assert len(lt.trace(lambda x: F.relu(x + 1, inplace=True) * 2, R(3)).explain(x).kernels) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (F.relu(x, inplace=True), x),
        lambda x: _seen(x * 2 - 1, lambda y: y.view(-1)),
        lambda x: _seen(x * 2 - 1, lambda y: y[0]),
        lambda x: _seen(x - 0.5, lambda y: F.dropout(y, training=False)),
        lambda x: _seen(F.dropout(x - 0.5, training=False), torch.clone),
        lambda x: _seen((x - 0.5).contiguous(), torch.clone),
        lambda x: _seen(x - 0.5, lambda y: [y, y.t()][1]),
    ],
)
def test_in_place_activations_that_others_see_stay(fn: Callable[..., Any]) -> None:
    agree(lt.trace(fn, R(3, 3)), fn, (R(4, 4),))


def _seen(y: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    before = view(y)
    after = F.relu(y, inplace=True)
    return before, after, y


@pytest.mark.parametrize(
    "text", ["x ** 2", "x ** y", "2 ** x", "x // y", "x % 2", "7 // x", "x @ y.T"]
)
def test_operators_are_ops_of_ours(text: str) -> None:
    x, y = R(3, 4) + 1, R(3, 4) + 1
    traced = lt.trace(eval(f"lambda x, y: {text}"), (x, y))
    assert traced.explain(x, y).torch_ops == ()
