"""Products of bfloat16 and float16 by PyTorch's library in a region, and what is saved there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen.host.parser import parse_host
from lowtide.codegen.host.printer import print_host
from lowtide.diagnostics import faults


@pytest.fixture(autouse=True)
def by_library() -> Iterator[None]:
    with config.override(products="library"):
        yield


def feed_forward(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (96,)), w, b)), v)


def heads(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """The gradient of a product whose result lies by columns."""
    q, k = (F.linear(x, u).view(4, 40, 4, 32).transpose(1, 2) for u in (w, v.t()))
    return torch.softmax(q @ k.transpose(-2, -1) * 0.2, -1) @ k


def summed(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Two products in one sum."""
    return F.linear(x, w, b) + F.linear(x.flip(0), w)


PROGRAMS = [feed_forward, heads, summed]


def operands(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((4, 40, 96), (128, 96), (128,), (96, 128))
    found = [torch.randn(s) / (1 if k == 0 else 10) for k, s in enumerate(shapes)]
    return [x.bfloat16().to(dtype).requires_grad_() for x in found]


def outcome(fn: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    y = fn(*given)
    wanted = torch.autograd.grad(y.float().sin().sum(), given, allow_unused=True)
    return [y.detach(), *(g for g in wanted if g is not None)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_exact_as_eager(fn: Callable[..., Tensor], dtype: torch.dtype) -> None:
    exact = outcome(fn, operands(torch.float64))
    with faults.strict():
        found = outcome(lt.script(fn), operands(dtype))
    eager = outcome(fn, operands(dtype))
    for a, b, e in zip(found, eager, exact, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        off, theirs = ((x.double() - e).abs().max() for x in (a, b))
        assert off <= 4 * theirs + 4 * torch.finfo(dtype).eps * e.abs().max()


def host_program(fn: Any, *args: Tensor) -> str:
    stages: Any = lt.script(fn).stages(*args)
    (text,) = [t for name, t in stages if name == "host program"]
    return text


def test_the_host_program_calls_it() -> None:
    given = [x.detach() for x in operands(torch.bfloat16)]
    assert host_program(feed_forward, *given).count("matmul(") == 2


def column(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(b[:, None], x, w)


def matrix(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(b.repeat(48, 1).t(), x, w)


def by_columns(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """A result that lies by columns."""
    return F.linear(w.t(), x, b).t().contiguous()


def in_parts(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Readers of parts, at other places of product and bias."""
    u, v, s = F.linear(w.t(), x, b).view(48, 3, 64).unbind(1)
    return (u.sin() + v).exp() * s


def of_groups(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """A bias that the library has no strides for: the kernels round once, too."""
    rows = x[:3, :1, None].float() + x.float().view(3, 64, 64) @ w.float()
    return rows.to(b.dtype).neg()


def batches(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.baddbmm(b.view(3, 64, 1), x.view(3, 64, 64), w.expand(3, 64, 48))


@pytest.mark.parametrize("fn", [column, matrix, by_columns, in_parts, of_groups, batches])
def test_a_bias_is_added_before_the_sum_is_rounded(fn: Callable[..., Tensor]) -> None:
    """The bias cancels the product: a second rounding would be most of the result."""
    torch.manual_seed(0)
    x, w = torch.randn(192, 64).bfloat16(), torch.randn(64, 1).bfloat16().expand(64, 48)
    if fn is of_groups:
        x[:3, 0] = -(x[::64].float() @ w[:, 0].float())
    given = (-(x.float() @ w[:, 0].float()).bfloat16(), x, w.contiguous())
    with faults.strict():
        found = lt.script(fn)(*given)
    eager, exact = fn(*given), fn(*(t.double() for t in given)).double()
    off, theirs = ((y.double() - exact).abs().max() for y in (found, eager))
    assert off <= 4 * theirs + 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max()


def test_the_library_adds_a_bias() -> None:
    given = [x.detach() for x in operands(torch.bfloat16)]
    text = host_program(feed_forward, *given)
    assert text.count("matmul(") == 2
    assert text.count(", bias ") == 1
    assert print_host(parse_host(text)) == text
    for fn in (column, matrix, by_columns):
        b, x, w = torch.ones(192), torch.ones(192, 64), torch.ones(64, 48)
        assert ", bias " in host_program(fn, *(t.bfloat16() for t in (b, x, w)))


def wide(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return (x.float() @ w.float().t()).sin()


def test_a_sum_that_stays_in_float32_is_not_rounded() -> None:
    given = [x.detach() for x in operands(torch.bfloat16)]
    torch.testing.assert_close(lt.script(wide)(*given), wide(*given), rtol=1e-5, atol=1e-5)


def test_a_bias_brings_back_what_is_too_large_for_float16() -> None:
    x, w = torch.full((64, 64), 40.0).half(), torch.full((64, 64), 40.0).half()
    given = x, w, torch.full((64,), -60000.0).half()
    assert torch.equal(lt.script(with_bias)(*given), torch.full((64, 64), 42400.0).half())


def with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def test_what_is_saved_is_rounded() -> None:
    """Of a linear layer its result in 16 bits, not the sum in 32."""
    given = operands(torch.bfloat16)
    text = str(lt.script(feed_forward).explain(*given))
    assert f"saved {2 * 4 * 40 * 128:,} bytes" in text
    assert f"saved {4 * 4 * 40 * 128:,} bytes" not in text
