"""How results lie in memory: as PyTorch's own do, be it channels_last or another order of dims."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.texpr.orders import inverse, order_of

LAST = torch.channels_last


def pointwise(x):
    return torch.relu(x * 2 + 1)


def both(x):
    y = torch.tanh(x)
    return y, y * x


def with_mean(x):
    return x - x.mean((2, 3), keepdim=True)


def softmaxed(x):
    return torch.softmax(x, 1)


def joined(x):
    return torch.cat([x, x.sin()], 1)


def summed(x):
    return (x * x).sum(1)


def turned(x):
    return x.permute(0, 2, 3, 1) * 2


def flattened(x):
    return torch.exp(x).flatten(2)


def views(x):
    y = x + 1
    return y[:, 2:5], y.transpose(1, 2)


def padded(x):
    return F.pad(x * 3, (1, 2))


def made_so(x):
    return torch.relu(x.contiguous(memory_format=torch.channels_last))


def made_contiguous(x):
    return torch.relu(x.contiguous())


def normed(x):
    return torch.relu(F.group_norm(x, 3))


def moved(x):
    return x.to(memory_format=torch.channels_last) * 2, x.to(x.device, memory_format=LAST) + 1


def rolled(x):
    return torch.roll(x, 1, 2) * 2


def with_ones(x):
    return x * torch.ones(x.shape, dtype=x.dtype), torch.cat([x, torch.ones_like(x)], 1) + 1


PROGRAMS = [
    pointwise, both, with_mean, softmaxed, joined, summed, turned, flattened, views, padded,
    made_so, made_contiguous, normed, moved, rolled, with_ones,
]  # fmt: skip


def last(*sizes: int) -> Tensor:
    return torch.randn(sizes, dtype=torch.float64).contiguous(memory_format=LAST)


INPUTS: dict[str, Callable[[], Tensor]] = {
    "last": lambda: last(3, 6, 40, 37),
    "one image": lambda: last(1, 6, 40, 37),
    "of one row": lambda: last(3, 6, 1, 40),
    "turned": lambda: torch.randn(40, 6, 3, 37, dtype=torch.float64).transpose(0, 2),
    "contiguous": lambda: torch.randn(3, 6, 40, 37, dtype=torch.float64),
    "with gaps": lambda: last(3, 12, 40, 37)[:, ::2],
    "nothing": lambda: last(0, 6, 40, 37),
    "of one channel": lambda: last(3, 1, 40, 37),
    "of one pixel": lambda: last(3, 6, 1, 1),
}
# Every program with some kinds, every kind with some programs: the rest takes longer.
FEW_PROGRAMS = {pointwise, both, summed, flattened, views, normed}
FEW_KINDS = {"last", "turned", "contiguous"}


def results(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def lies(x: Tensor) -> tuple[int, ...]:
    return x.stride() if x.numel() else ()


def with_gradient(fn: Callable[..., Any], x: Tensor) -> tuple[list[Tensor], Tensor]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    found = results(fn(x))
    cotangents = [torch.sin(torch.arange(y.numel()).view(y.shape) * 1.0) for y in found]
    torch.autograd.backward(found, [c.to(y.dtype) for c, y in zip(cotangents, found, strict=True)])
    assert x.grad is not None
    return found, x.grad


def variants() -> list[Any]:
    """Of contiguous inputs results are contiguous, even where PyTorch keeps a permutation's
    order."""
    return [
        pytest.param(f, k, marks=() if f in FEW_PROGRAMS or k in FEW_KINDS else pytest.mark.long)
        for f in PROGRAMS
        for k in INPUTS
        if (f, k) not in ((turned, "contiguous"), (normed, "of one channel"))
    ]


@pytest.mark.parametrize(("fn", "kind"), variants())
def test_as_in_pytorch(fn: Callable[..., Any], kind: str) -> None:
    torch.manual_seed(0)
    x = INPUTS[kind]()
    compiled = lt.script(fn)
    with torch.no_grad():
        for got, want in zip(results(compiled(x)), results(fn(x)), strict=True):
            assert lies(got) == lies(want)
            torch.testing.assert_close(got, want)
    found, gradient = with_gradient(compiled, x)
    wanted, expected = with_gradient(fn, x)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradient, expected)


def test_gradients_lie_as_their_inputs() -> None:
    x = last(3, 6, 40, 37).requires_grad_()
    y = lt.script(pointwise)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.stride() == x.stride()


def test_values_that_are_summed_lie_differently() -> None:
    x, y = last(3, 6, 40, 37).requires_grad_(), torch.randn(3, 6, 40, 37, dtype=torch.float64)
    y.requires_grad_()

    def add(a, b):
        return a + b

    found = lt.script(add)(x, y)
    assert found.stride() == add(x, y).stride()
    gradients = torch.autograd.grad((found * found).sum(), [x, y])
    for got in gradients:
        torch.testing.assert_close(got, 2 * (x + y).detach())


def test_results_may_be_changed_in_place() -> None:
    def fn(x):
        y = x * 3
        y += 1
        return y

    x = last(2, 5, 33, 34)
    found, gradient = with_gradient(lt.script(fn), x)
    wanted, expected = with_gradient(fn, x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, expected)
    y = lt.script(pointwise)(x.clone().requires_grad_())
    y.mul_(2)
    torch.testing.assert_close(y.detach(), pointwise(x) * 2)


def test_gradients_of_gradients() -> None:
    x = last(2, 3, 5, 4).requires_grad_()
    torch.autograd.gradcheck(lt.script(both), x)
    torch.autograd.gradgradcheck(lt.script(both), x)


def test_a_size_that_changes() -> None:
    compiled = lt.script(pointwise)
    for sizes in ((3, 6, 40, 37), (3, 6, 50, 41), (9, 6, 40, 40), (3, 6, 1, 1)):
        x = last(*sizes)
        assert compiled(x).stride() == pointwise(x).stride()
        torch.testing.assert_close(compiled(x), pointwise(x))


class Residual(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.norm2 = norm(6), norm(6)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + x)


@pytest.mark.parametrize(
    "entry", [lt.script, lambda m: lt.trace(m, last(2, 6, 40, 36)), lt.compile]
)
@pytest.mark.parametrize("norm", [lambda c: nn.GroupNorm(3, c), nn.BatchNorm2d])
def test_networks(entry: Callable[..., Any], norm: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    net = Residual(norm).double().to(memory_format=LAST).eval()
    x = last(2, 6, 40, 36)
    compiled = entry(net)
    with torch.no_grad():
        got, want = compiled(x), net(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    found, gradient = with_gradient(compiled, x)
    rows = [p.grad for p in net.parameters()]
    net.zero_grad()
    wanted, expected = with_gradient(net, x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(rows, [p.grad for p in net.parameters()])


def test_the_result_of_relu_is_kept_in_place_of_its_operand() -> None:
    x = last(8, 16, 64, 64).float().requires_grad_()

    def fn(x):
        return torch.relu(x)

    plain = x.detach().contiguous().requires_grad_()
    more = lt.script(fn).memory(x).peak_bytes - lt.script(fn).memory(plain).peak_bytes
    assert more < 4096  # a view that is recorded, not a tensor


@pytest.mark.parametrize(
    ("sizes", "strides", "order"),
    [
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((2, 3, 4, 5), (60, 20, 5, 1), None),
        ((4, 5), (1, 4), (1, 0)),
        ((4, 5), (1, 5), None),
        ((4, 5), (0, 1), None),
        ((1, 3, 4, 5), (7, 1, 15, 3), (2, 0, 3, 1)),
        ((0, 3), (1, 1), None),
        ((), (), None),
        ((2, 1, 4, 5), (20, 20, 5, 1), None),
        ((2, 1, 4, 5), (20, 1, 5, 1), (0, 2, 3, 1)),
        ((8, 1, 1), (1, 1, 8), (2, 0, 1)),
    ],
)
def test_orders(sizes: tuple[int, ...], strides: tuple[int, ...], order: object) -> None:
    assert order_of(sizes, strides) == order


def test_orders_of_dims_of_size_1_give_the_strides() -> None:
    draw = random.Random(0)
    for _ in range(500):
        sizes = [draw.choice([1, 1, 2, 3]) for _ in range(draw.choice([2, 3, 4, 5]))]
        x = torch.empty(sizes).permute(*draw.sample(range(len(sizes)), len(sizes)))
        order = order_of(x.shape, x.stride()) or tuple(range(x.dim()))
        assert x.stride() == torch.empty_permuted(x.shape, order).stride()


def test_equal_shapes_with_other_strides_of_dims_of_size_1() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x), x * 2

    compiled = lt.script(fn)
    x = torch.randn(1, 8, 1)
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1)):
        y = x.permute(order)
        for got, want in zip(compiled(y), fn(y), strict=True):
            assert got.stride() == want.stride()
            assert torch.equal(got, want)


def pair_ops(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x + y, torch.where(x > y, x, y), x * 2 + y, (x - y).relu(), torch.maximum(x, y)


def test_operands_that_are_broadcast_and_permuted() -> None:
    draw = random.Random(0)

    def operand(sizes: list[int]) -> Tensor:
        sizes = [1 if draw.random() < 0.25 else n for n in sizes]
        order = draw.sample(range(len(sizes)), len(sizes))
        return torch.rand([sizes[d] for d in order]).permute(inverse(tuple(order)))

    for _ in range(12):
        sizes = [draw.choice([1, 2, 3, 4]) for _ in range(draw.choice([3, 4]))]
        x, y = operand(sizes), operand(sizes)
        try:
            wants = pair_ops(x, y)
        except RuntimeError:  # sizes that do not fit
            continue
        for got, want in zip(lt.script(pair_ops)(x, y), wants, strict=True):
            assert got.stride() == want.stride()
            assert torch.equal(got, want)


def half_of_each(x: Tensor) -> Tensor:
    return torch.full_like(x, 0.5)


def sorted_halves(x: Tensor) -> Tensor:
    return torch.sort(torch.full_like(x, 0.5) * 3, -1).values


@pytest.mark.parametrize("fn", [half_of_each, sorted_halves])
def test_without_a_gradient_where_gradients_are_recorded(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 2, 8, 8).contiguous(memory_format=LAST).requires_grad_()
    made, expected = lt.script(fn)(x), fn(x)
    torch.testing.assert_close(made, expected, rtol=0, atol=0)
    assert made.stride() == expected.stride()
    assert not made.requires_grad


def normed_by_channel(x):
    y = F.layer_norm(x.movedim(1, -1), (8,))
    return F.dropout(y.movedim(-1, 1), training=True)


def transposed(x):
    return F.dropout(x.transpose(1, 2) * 2, training=True)


def in_a_branch(x):
    y = torch.relu(x)
    if x.shape[0] > 1:
        y = y.permute(3, 1, 0, 2) + 1
    return F.dropout(y, training=True)


def by_letters(x):
    return F.dropout(torch.einsum("nchw->nhwc", x * 2) + 1, training=True)


def in_windows(x):
    return F.dropout(x.unfold(2, 4, 2).cos(), training=True)


def of_a_diagonal(x):
    return F.dropout(x[:, :4].diagonal().cos(), training=True)


DRAWN = (normed_by_channel, transposed, in_a_branch, by_letters, in_windows, of_a_diagonal)


@pytest.mark.parametrize("program", DRAWN)
def test_what_is_turned_lies_as_pytorchs_so_that_masks_are_the_same(program: Any) -> None:
    """They are drawn in the order of memory."""
    x = torch.randn(4, 8, 20, 10)
    for call in (lt.script(program), lt.compile(program)):
        torch.manual_seed(0)
        want = program(x)
        torch.manual_seed(0)
        got = call(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def test_two_copies_of_a_turned_value_are_two_tensors() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = x.unsqueeze(0).clone()
        zeros = torch.zeros_like(first, dtype=torch.int64)
        return first, zeros, first.clone()

    x = torch.arange(12.0).view(6, 2).t()
    first, zeros, second = lt.script(fn)(x)
    assert torch.equal(second, fn(x)[2])
    first.fill_(-1)
    assert torch.equal(second, fn(x)[2])
    assert torch.equal(zeros, fn(x)[1])


def test_what_lies_beside_a_loop() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = torch.zeros_like(y)
        for i in range(y.shape[0]):
            z[i].add_(1)
        return x.movedim(0, -1) + 0

    x, y = torch.rand(11, 9, 6), torch.rand(5, 4)
    made = lt.script(fn)
    assert made(x, y).stride() == fn(x, y).stride()


def filled_by_rows(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] + y[i - 1]
    return y * 1


def decayed(x: Tensor) -> Tensor:
    h = x * 0
    for i in range(x.shape[0]):
        h = 0.5 * h + x[i]
    return h + 1


def halved(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = x / 2
    return x * 1


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("fn", [filled_by_rows, decayed, halved])
def test_what_comes_of_a_loop_lies_as_in_pytorch(fn: Any, rows: int) -> None:
    x = torch.rand(8, rows).t()
    if fn is decayed:
        x = torch.rand(8, rows, rows).transpose(0, 2)
    got, want = lt.script(fn)(x), fn(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def test_to_another_format_is_a_copy() -> None:
    """Of a tensor that lies otherwise; one that lies so already is the caller's own."""

    def added(x):
        y = x.to(memory_format=torch.channels_last)
        y.add_(1)
        return y

    for x in (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5).contiguous(memory_format=LAST)):
        mine = x.clone(memory_format=torch.preserve_format)
        want, got = added(x), lt.script(added)(mine)
        assert got.stride() == want.stride()
        assert torch.equal(mine, x)
        assert (got.data_ptr() == mine.data_ptr()) == (want.data_ptr() == x.data_ptr())


def test_what_reads_memory_as_it_lies() -> None:
    def first(x):
        return (x.to(memory_format=torch.channels_last) * 2).as_strided((4,), (1,))

    x = torch.rand(2, 3, 4, 5)
    torch.testing.assert_close(lt.script(first)(x), first(x))


def test_a_made_tensor_turned_lies_turned() -> None:
    def joined_and_turned(x):
        return torch.cat([x, torch.ones(2, 5)], 0).T

    assert lt.script(joined_and_turned)(torch.rand(3, 5)).stride() == (1, 5)


def of_two_orders(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """`x` is turned, `y` is contiguous, and so is `row`, which is repeated along `x`."""
    row = y[0, 0]
    quotients = x // y, y // x, torch.div(y, x, rounding_mode="floor"), x // 2.0, 2.0 // x
    logs = torch.xlogy(y, x), torch.special.xlog1py(y, x), torch.logaddexp(row, x)
    signs = torch.copysign(y, x), torch.copysign(x, y), torch.heaviside(row, x)
    losses = [F.binary_cross_entropy(a / 9, b / 9, reduction="none") for a, b in ((x, y), (y, x))]
    return *quotients, *logs, *signs, *losses, torch.logical_and(row, x), torch.logical_xor(row, x)


def of_one_order(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    bits = torch.eye(2, dtype=torch.int64)[:, :, None].expand(2, 2, 2).transpose(0, 2)
    norms = F.batch_norm(x, None, None, training=True), F.batch_norm(x, y[0, 0, :5], y[0, 1, :5])
    return 2**x, 2.5**x, F.one_hot(bits, 3), *norms


@pytest.mark.parametrize("fn", [of_two_orders, of_one_order])
def test_what_pytorch_decomposes_on_meta_lies_as_on_the_cpu(fn: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 6, 5, generator=generator).transpose(1, 2) + 1
    y = torch.rand(4, 5, 6, generator=generator) + 1
    for got, want in zip(lt.script(fn)(x, y), fn(x, y), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
