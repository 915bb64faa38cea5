"""Programs that once came out wrong, made small by hand; each names what was wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.runtime import toolchain
from tests.run.guarded import Guard, guarded, guarded_calls, guarded_memory


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


def argmin_of_all(x: torch.Tensor) -> torch.Tensor:
    return x.argmin()


def argmin_of_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.argmin(0), x.argmax(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(577,), (300, 2), (1000, 33), (65, 400)])
def test_of_equal_values_the_first_wins(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Lanes and held vectors walk in turn, so that a later one may meet an earlier element."""
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(lt.script(argmin_of_all)(x), x.argmin())
    for got, want in zip(lt.script(argmin_of_columns)(x), argmin_of_columns(x), strict=True):
        assert torch.equal(got, want)


def count_and_argmin(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.abs() < 1).sum(), x.min(-1).indices


def test_argmin_beside_a_count_of_everything() -> None:
    """Both run over the same points, one of them over all: there was no such function."""
    x = torch.randint(-5, 6, (1, 80), generator=torch.Generator().manual_seed(0)).float()
    x = x.expand(49, 80)
    for got, want in zip(lt.script(count_and_argmin)(x), count_and_argmin(x), strict=True):
        assert torch.equal(got, want)


def mean_and_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = torch.nansum(x, 1)
    scaled = x.mean() / rows
    return F.layer_norm(scaled, (scaled.shape[-1],)), torch.matmul(rows, rows), -x


def test_groups_that_need_each_other_stay_apart() -> None:
    """Merging a mean over everything with the rows closed a cycle of kernels."""
    x = 1 + torch.rand(127, 17, generator=torch.Generator().manual_seed(0))
    for got, want in zip(lt.script(mean_and_rows)(x), mean_and_rows(x), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-4, atol=1e-5)


def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.sum(0), x.sum(), (x * x).mean(0)


def sums_and_top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.sum(0), x.max(0).values, x.sum()


def sums_of_two_axes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.sum((0, 1)), x.sum(), x.sum((1, 2))


LONG_SUMS: list[tuple[Any, tuple[int, ...]]] = [
    (sums, (1_000_000, 33)),
    (sums, (3_000_000, 2)),
    (sums, (2, 5_000_000)),
    (sums, (4_000_000, 5)),
    (sums_and_top, (3_000_000, 9)),
    (sums_of_two_axes, (3000, 300, 17)),
    (sums_of_two_axes, (3000, 3000, 9)),
]


@pytest.mark.parametrize(("program", "shape"), LONG_SUMS, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_sum_keeps_its_digits(program: Any, shape: tuple[int, ...], threads: int) -> None:
    """One float32 accumulator for a million rows loses a percent: each addition rounds alike."""
    x = torch.full(shape, 0.1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result: Any = lt.script(program)(x)
    finally:
        torch.set_num_threads(before)
    # a lane of fewer adds up more terms
    near = 5e-5 * 64 / toolchain.target().vector_bytes
    for got, want in zip(result, program(x.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=near, atol=0)


def sums_of_scores(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = (q @ k.transpose(1, 2)).exp()
    return s.sum(1), s.sum(2)


@pytest.mark.parametrize("batches", [4, 8])
@pytest.mark.parametrize("guard", Guard)
def test_a_few_batches_shared_out_by_the_grid(batches: int, guard: Guard) -> None:
    """A short axis of which each task had some points was unrolled as if it had all."""
    q, k = (torch.randn(batches, 64, 32) * 0.1 for _ in range(2))
    with guarded_memory() as memory:
        memory.guard = guard
        results = lt.script(sums_of_scores)(guarded(q, guard), guarded(k, guard))
        memory.check()
    for got, want in zip(results, sums_of_scores(q, k), strict=True):
        torch.testing.assert_close(got, want)


def products_of_ints(x: torch.Tensor) -> torch.Tensor:
    ints = x.to(torch.int32)
    return ints.t() @ ints


def test_half_a_register_is_stored_in_part() -> None:
    """gcc stored it by an instruction that faults for the lanes that are not stored, too."""
    x = torch.randn(63, 4, generator=torch.Generator().manual_seed(0)) * 5
    with guarded_memory() as memory:
        memory.guard = Guard.AFTER
        assert torch.equal(lt.script(products_of_ints)(x), products_of_ints(x))
        memory.check()


def layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.relu(x @ w)
    mean, size = h.mean(1, keepdim=True), h.var(1, keepdim=True)
    y = ((h - mean) / (size + 1e-5).sqrt()) @ v
    top = y.amax(1, keepdim=True)
    return h, mean, size, y, top, (y - top).exp().sum(1)


def test_merging_groups_closes_no_cycle() -> None:
    """A group was merged with one that needs, by way of a third, what the group makes."""
    args = (torch.randn(200, 20), torch.randn(20, 64) * 0.2, torch.randn(64, 10))
    for got, want in zip(lt.script(layers)(*args), layers(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def attention_of_chunks(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    q, k, v = (x + b).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v) @ out


def test_columns_of_values_are_not_those_that_scores_are_summed_over() -> None:
    """q, k and v have as many columns and lie in one tensor: these were taken to be one axis, and
    the scores of all keys were summed again within each step along it, on top of what was there."""
    args = (torch.randn(34, 35, 108), torch.randn(108), torch.randn(36, 36))
    got, want = lt.script(attention_of_chunks)(*args), attention_of_chunks(*args)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def expanded(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w, b)), v)


@pytest.mark.parametrize("guard", Guard)
def test_batches_of_a_swept_tile(guard: Guard) -> None:
    """The tile of a value of three axes holds 7 batches of 8; 8 were computed."""
    w, v = torch.randn(256, 64) * 0.1, torch.randn(64, 256) * 0.1
    args = [t.requires_grad_() for t in (torch.randn(8, 96, 64), w, torch.randn(256), v)]
    with guarded_calls(guard):
        made = lt.script(expanded)(*args)
        got = torch.autograd.grad(made, args, torch.ones_like(made))
    want = torch.autograd.grad(expanded(*args).sum(), args)
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-3)


def batch_norm(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = x + b
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


def test_what_depends_on_a_sum_is_computed_after_it() -> None:
    """Beside one operand's tile a later one's was computed, from a sum that had not begun."""
    args = (torch.randn(48, 40, requires_grad=True), torch.randn(40, requires_grad=True))
    weight = torch.randn(48, 40)
    got = torch.autograd.grad(lt.script(batch_norm)(*args), args, weight)
    want = torch.autograd.grad(batch_norm(*args), args, weight)
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4)


def of_no_rows(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    last = x[-2:-1:3]
    return last, last[0:-1:3, i]


def test_a_cotangent_without_elements_is_not_read() -> None:
    """Its memory is at no address, and on vectors it was read where a mask left nothing of it."""
    x = torch.rand(5, 4, dtype=torch.float64).requires_grad_()
    last, nothing = lt.script(of_no_rows)(x, torch.tensor([0, 2, 1]))
    assert nothing.shape == (0, 3)
    (gradient,) = torch.autograd.grad((last.sum() + nothing.sum()), x)
    assert torch.equal(gradient, torch.eye(5, dtype=torch.float64)[3][:, None].expand(5, 4))
    (gradient,) = torch.autograd.grad(lt.script(of_no_rows)(x, torch.tensor([1]))[1].sum(), x)
    assert not gradient.any()


def commutator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b - b @ a


def squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ a + b


def both_grams(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ a.t() + a.t() @ a + b


@pytest.mark.parametrize("fn", [commutator, squared, both_grams])
def test_two_products_over_the_same_axes(fn: Any) -> None:
    """In one kernel an axis of the second product became one that it had itself."""
    a, b = torch.rand(2, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = (a.requires_grad_(), b.requires_grad_())
    got, want = lt.script(fn)(*given), fn(*given)
    torch.testing.assert_close(got, want)
    weights = torch.linspace(-1, 1, 400, dtype=torch.float64).view(20, 20)
    of_both = [torch.autograd.grad(y, given, weights, allow_unused=True) for y in (got, want)]
    for ours, theirs in zip(*of_both, strict=True):
        torch.testing.assert_close(ours, theirs)


def doubled_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def test_cotangents_that_are_not_what_lies_in_memory() -> None:
    """PyTorch's own zeros have no memory; the imaginary part of a conjugate is to be negated."""
    x = torch.rand(3, dtype=torch.float64).requires_grad_()
    nothing = torch._efficientzerotensor((3,), dtype=torch.float64)  # pyright: ignore
    (gradient,) = torch.autograd.grad(lt.script(doubled_sine)(x), x, nothing)
    assert not gradient.any()
    negated = torch.complex(x.detach(), x.detach() + 1).conj().imag
    assert negated.is_neg()
    (gradient,) = torch.autograd.grad(lt.script(doubled_sine)(x), x, negated)
    torch.testing.assert_close(gradient, -2 * (x.detach() + 1) * x.detach().cos())


def windows_of_one_row(x: torch.Tensor) -> torch.Tensor:
    return F.unfold(x * 2, (2, 2), stride=3)


def test_places_that_no_window_reaches() -> None:
    """A remainder is below its divisor: the third row was given what is the next channel's."""
    x = torch.rand(1, 4, 3, 6, dtype=torch.float64).requires_grad_()
    (ours,) = torch.autograd.grad(lt.script(windows_of_one_row)(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(windows_of_one_row(x).square().sum(), x)
    torch.testing.assert_close(ours, theirs)


def numbers_of_a_dtype(x: torch.Tensor) -> list[torch.Tensor]:
    tenth = torch.full((4,), 0.1, dtype=x.dtype)
    rows = torch.zeros(4, dtype=x.dtype)
    rows[1:] = 0.1
    computed = [tenth.double(), rows.double() * 3, (tenth * 3).double(), torch.tensor(0.1) * x[0]]
    compared = [tenth == 0.1, x >= 0.1, x != 0.3]
    return [*computed, *compared, x + 0.1, x * 0.1, x / 0.3, x // 0.1, x % 0.3]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_numbers_are_those_that_the_dtype_has(dtype: torch.dtype) -> None:
    """A constant tensor that became another dtype kept digits that it never had."""
    x = torch.tensor([0.1, 0.3, -0.45, 1.7], dtype=dtype)
    for got, want in zip(lt.script(numbers_of_a_dtype)(x), numbers_of_a_dtype(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def turned_round(x: torch.Tensor) -> torch.Tensor:
    return x.permute(*range(x.dim() - 1, -1, -1))


def test_a_range_is_spread_to_arguments() -> None:
    """Its numbers came as one list."""
    for shape in ((3,), (3, 4), (2, 3, 4)):
        x = torch.rand(shape)
        assert torch.equal(lt.script(turned_round)(x), turned_round(x))


def empty_part(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.cat((x[:0], z)) * 2


def part_without_rows(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.cat((z, x[:, :0].t(), z))


def test_an_empty_part_has_a_gradient_of_zeros() -> None:
    """It had none: nothing of it is read."""
    for fn in (empty_part, part_without_rows):
        x = torch.ones(5, 5, requires_grad=True)
        z = torch.ones(5, 5, requires_grad=True)
        lt.script(fn)(x, z).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.zeros(5, 5))


def of_chosen_rows(x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[[1, 3]].sum(), x[places].sum(), x[mask].sum(), x[[0, -1]].mean()])


def test_sums_of_rows_that_a_list_chooses() -> None:
    """A list was taken for a mask."""
    args = (
        torch.randn(5, 3),
        torch.tensor([1, 1, 4]),
        torch.tensor([True, False, True, True, False]),
    )
    torch.testing.assert_close(lt.script(of_chosen_rows)(*args), of_chosen_rows(*args))
