"""Numbers at the ends, and what units of a GPU do with them: quotients, NaN, wrap-around."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.module import PRELUDE
from lowtide.runtime import block_kernels, cubins

INF, NAN = math.inf, math.nan
ENDS = {
    torch.float32: [0.0, -0.0, 1.0, -1.5, 2.5, INF, -INF, NAN, 3.4e38, -3.4e38, 7.3, 2.0**24 + 2],
    torch.int32: [0, 1, -1, 3, -7, 31, 2**31 - 1, -(2**31), 2**31 - 2],
    torch.int64: [0, 1, -1, 3, -7, 63, 2**63 - 1, -(2**63), 2**62],
    torch.uint8: [0, 1, 7, 100, 127, 128, 200, 255],
}
KEPT: dict[str, Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "arithmetic": lambda a, b: (a + b, a - b, a * b, -a),
    "against constants": lambda a, b: (a + 100 > 3, (a - 5) * 7, b - 100 < a),
    "order": lambda a, b: (a + b > a, torch.maximum(a, b), torch.minimum(a + b, b), a.sign()),
    "extremes": lambda a, b: ((a * b).amax(1), (a - b).amin(0), (a + b).max(1)[1]),
    "places": lambda a, b: ((a * b).argmax(1), (a * b).argmin(0)),
    "truths": lambda a, b: ((a * b != 0).any(1), (a < b).all(0), (a == b).sum(1)),
    "casts": lambda a, b: (a.bool(), a.to(torch.float64), (a > b).to(torch.uint8)),
}


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = torch.tensor(ENDS[dtype], dtype=dtype)
    n = len(x)
    return x[:, None].expand(n, n).contiguous(), x[None].expand(n, n).contiguous()


def agree(fn: Callable[..., Tensor | tuple[Tensor, ...]], *given: Tensor) -> None:
    """Without a tolerance; and not PyTorch's own."""
    want = fn(*given)
    traced = lt.trace(fn, given)
    assert traced.explain(*given).torch_ops == ()
    got = traced(*given)
    for g, w in zip(*((x,) if isinstance(x, Tensor) else x for x in (got, want)), strict=True):
        torch.testing.assert_close(g, w, rtol=0.0, atol=0.0, equal_nan=True)
        if w.is_floating_point():
            assert torch.equal(g.signbit() & (g == 0), w.signbit() & (w == 0))


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("dtype", ENDS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_ends(dtype: torch.dtype, what: str) -> None:
    agree(KEPT[what], *pairs(dtype))


@pytest.mark.parametrize("divisor", [3, -7, 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_division_of_integers(dtype: torch.dtype, divisor: int) -> None:
    agree(
        lambda a: (a // divisor, a % divisor, torch.fmod(a, divisor), a << 5, a >> 3),
        torch.tensor(ENDS[dtype], dtype=dtype),
    )


@pytest.mark.filterwarnings("ignore")
def test_numbers_go_before_nan() -> None:
    a, b = pairs(torch.float32)
    agree(lambda a, b: (torch.fmax(a, b) + 0.0, torch.fmin(a, b) + 0.0), a, b)


def test_casts_out_of_range() -> None:
    x = torch.tensor([-1.5, -200.0, 255.5, 256.0, 300.0, 3e4])
    agree(lambda x: (x.to(torch.uint8), x.to(torch.int64), x.to(torch.float16)), x)


# ---- As compiled for a GPU


def ptx(expression: str, count: int, kind: str = "fp32") -> str:
    """What becomes of an expression of so many blocks x0, x1, …"""
    from triton.backends.compiler import GPUTarget

    names = [f"x{k}" for k in range(count)]
    lines = [
        f"def k({''.join(f'p_{n}, ' for n in (*names, 'o'))}INDEX: tl.constexpr, P: tl.constexpr):",
        "    at = tl.arange(0, 128)",
        *(f"    {n} = tl.load(p_{n} + at)" for n in names),
        f"    tl.store(p_o + at, {expression})",
    ]
    source = PRELUDE + "\n\n@jit\n" + "\n".join(lines) + "\n"
    pointers = tuple(f"*{kind}" for _ in (*names, "o"))
    parameters = block_kernels.KernelParameters(
        pointers=pointers, dividing=(), numbers=0, warps=4, stages=1, widths=0
    )
    function = block_kernels.load(source, interpreted=False)["k"]
    form = cubins.CompiledKernel(function, parameters).form(
        torch.device("cuda"), False, [cubins.ALIGNED] * len(pointers), ()
    )
    text: str = cubins.compile_form(function, parameters, form, GPUTarget("cuda", 90, 32)).asm[
        "ptx"
    ]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["lt_sigmoid(x0)", "lt_floor_divide(x0, x1)"])
def test_quotients_are_exact(expression: str) -> None:
    """Triton's "/" of float32 is two units in the last place off; PyTorch's is none."""
    text = ptx(expression, 2)
    assert "div.rn.f32" in text
    assert "div.full.f32" not in text
    assert "div.rn.f64" in ptx(expression, 2, "fp64")


@pytest.mark.slow
def test_nothing_is_contracted() -> None:
    """A product and a sum are rounded each, as in a kernel that stores the product."""
    assert "fma" not in ptx("x0 * x1 + x0", 2)
    assert "fma.rn.f32" in ptx("lt_fma(x0, x1, x0)", 2)


def test_factors_of_a_product_keep_their_order() -> None:
    """1e30 * 1e-30 * 1e30 is 1e30, in this order."""

    def weighed(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((a[:, None, :] * b[None, :, :]) * c[:, None, :]).sum(-1)

    large, little = torch.full((20, 40), 1e30), torch.full((24, 40), 1e-30)
    for given in ((large, little, large), (little[:20], large[:20], little[:20])):
        want = weighed(*given)
        assert bool(torch.isfinite(want).all() & (want != 0).all())
        torch.testing.assert_close(lt.script(weighed)(*given), want)
