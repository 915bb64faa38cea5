"""Products compiled = eager for every layout of the operands, contractions of length 0 on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults

EXTENTS = [0, 1, 5, 64, 145, 600]  # of the contraction: none, less than, and several tiles


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


def plain(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b).relu()


def left_across(a: Tensor, b: Tensor) -> Tensor:
    return (a.t() @ b).relu()


def right_across(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.t()).relu()


def both_across(a: Tensor, b: Tensor) -> Tensor:
    return (a.t() @ b.t()).relu()


def close(got: Tensor, a: Tensor, b: Tensor, program: Callable[[Tensor, Tensor], Tensor]) -> None:
    want = program(a.double(), b.double())
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    assert (got.double() - want).abs().amax() <= 64 * torch.finfo(got.dtype).eps * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", EXTENTS)
@pytest.mark.parametrize("program", [plain, left_across, right_across, both_across])
def test_layouts(program: Callable[[Tensor, Tensor], Tensor], k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    compiled = lt.script(program)
    for n, m in ((37, 50), (300, 410)):
        a = torch.randn(n, k, generator=generator, dtype=dtype)
        b = torch.randn(k, m, generator=generator, dtype=dtype)
        a = a.t().contiguous() if program in (left_across, both_across) else a
        b = b.t().contiguous() if program in (right_across, both_across) else b
        close(compiled(a, b), a, b, program)


def test_a_length_of_none_after_one_of_many() -> None:
    """The first tile of a sum is stored, not added: where there is no tile, zeros are."""
    compiled = lt.script(plain)
    for k in (600, 0, 40, 0):
        a, b = torch.randn(70, k), torch.randn(k, 90)
        close(compiled(a, b), a, b, plain)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    a, b = torch.randn(70, 200), torch.randn(200, 90)
    a[3, 150], a[4, 7] = float("nan"), float("inf")
    got = lt.script(plain)(a, b)
    assert torch.equal(got.isnan(), plain(a, b).isnan())
    assert torch.equal(got.isinf(), plain(a, b).isinf())


def products_and_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    p = a @ b
    return p.sum(0), p.amax(1)


@pytest.mark.parametrize("k", EXTENTS)
def test_a_product_that_is_only_reduced(k: int) -> None:
    a, b = torch.randn(130, k), torch.randn(k, 500)
    for got, want in zip(
        lt.script(products_and_sums)(a, b), products_and_sums(a.double(), b.double()), strict=True
    ):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)


def of_detached(a: Tensor, b: Tensor) -> Tensor:
    return a.detach() @ b


def test_no_gradient_of_what_requires_one() -> None:
    a, b = torch.randn(70, 200, requires_grad=True), torch.randn(200, 90)
    got = lt.script(of_detached)(a, b)
    assert not got.requires_grad
    torch.testing.assert_close(got, of_detached(a, b), rtol=1e-4, atol=1e-4)


def test_a_product_beside_an_attention_in_one_kernel() -> None:
    def f(y: Tensor, g: Tensor, w: Tensor) -> Tensor:
        return (y @ w) + torch.softmax(y @ y.mT, 1) @ g

    torch.manual_seed(0)
    y, g, w = torch.randn(36, 34), torch.randn(36, 34), torch.randn(34, 34)
    want = f(y.double(), g.double(), w.double())
    got = lt.script(f)(y, g, w)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
