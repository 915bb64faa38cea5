"""Values and gradients of kernels for GPUs, against eager PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from tests.blocks.programs import CASES, Case

CPU = torch.device("cpu")
# Other dtypes of what is here in one; `test_scatters` has them where it matters. A loop, as `lstm`.
LONG = {"scaled-f16", "looked-up-f16", "looked-up-f64", "rnn"}


pytestmark = pytest.mark.filterwarnings("error:.*is refused")


def leaves(case: Case, device: torch.device = CPU) -> list[Any]:
    return [
        x.to(device).requires_grad_(case.grad and x.is_floating_point())
        if isinstance(x, Tensor)
        else x
        for x in case.arguments()
    ]


def results(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def backward(found: Sequence[Tensor]) -> None:
    torch.autograd.backward([x.double().sum() for x in found if x.requires_grad])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in CASES]
)
def test_values(name: str, made: list[BlockKernels], device: torch.device) -> None:
    case = CASES[name]
    compiled = lt.script(case.fn)
    given, same = leaves(case, device), leaves(case, device)
    got, want = results(compiled(*given)), results(case.fn(*same))
    assert made, "no kernel ran"
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)
    if not case.grad:
        return
    before = len(made)
    backward(got)
    backward(want)
    assert len(made) > before, "no kernel of a backward pass ran"
    for g, w in zip(given, same, strict=True):
        if isinstance(w, Tensor) and w.grad is not None:
            near = {"rtol": 10 * case.tolerance, "atol": 10 * case.tolerance}
            torch.testing.assert_close(g.grad, w.grad, **near)


def test_other_sizes_compile_nothing(made: list[BlockKernels]) -> None:
    compiled = lt.script(CASES["kernel-sum"].fn)
    for n, m, c in ((70, 90, 40), (33, 200, 65), (129, 64, 36)):
        x, y, b = torch.randn(n, 3), torch.randn(m, 3), torch.randn(m, c)
        want = CASES["kernel-sum"].fn(x, y, b)
        torch.testing.assert_close(compiled(x, y, b), want, rtol=2e-4, atol=2e-4)
    assert len(set(map(id, made))) == 1


@pytest.mark.parametrize("n", [0, 1, 2, 16, 33])
def test_small_sizes(n: int, device: torch.device) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(x[:, None] - y[None]).sum(1), x * 2

    x, y = torch.randn(n, device=device), torch.randn(40, device=device)
    for g, w in zip(lt.script(f)(x, y), f(x, y), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)
    for g, w in zip(lt.script(f)(y, x), f(y, x), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


def test_nan_and_infinity(device: torch.device) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.max(), x.sum(0), x.clamp(min=0)

    x = torch.randn(40, 50, device=device)
    x[3, 7], x[3, 9], x[5, 5], x[6, :] = float("nan"), float("nan"), float("inf"), float("-inf")
    for g, w in zip(lt.script(f)(x), f(x), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("by", [0.0, -0.0, float("nan"), float("-inf")])
def test_numbers(by: float, device: torch.device) -> None:
    def f(x: Tensor, by: float) -> tuple[Tensor, ...]:
        return x * by, x / by, torch.maximum(x, x * 0 + by)

    x = torch.randn(40, 36, device=device)
    for g, w in zip(lt.script(f)(x, by), f(x, by), strict=True):
        torch.testing.assert_close(1 / g, 1 / w, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_of_zeros(dtype: torch.dtype, device: torch.device) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = -x, -(x - y), x * -0.0, torch.where(x > 1, -0.0, x), x + -0.0, x.ceil(), x.fmod(2)
        return tuple(torch.copysign(torch.ones_like(z), z) for z in found)

    x = torch.tensor([0.0, -0.0, 0.3, -0.3, 4.0, -4.0] * 6, device=device).to(dtype)
    for g, w in zip(lt.script(f)(x, x.flip(0)), f(x, x.flip(0)), strict=True):
        torch.testing.assert_close(g, w)


def test_a_first_maximum_of_equals(device: torch.device) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.argmax(), x.argmin(0)

    x = torch.zeros(9000, 2, device=device)
    x[[777, 5000]] = 1.0
    x[[4000, 8000]] = -1.0
    for g, w in zip(lt.script(f)(x), f(x), strict=True):
        assert torch.equal(g, w)


SETTINGS = """
import torch
from lowtide.runtime.block_kernels import precision
print(precision())
torch.backends.cuda.matmul.allow_tf32 = True; print(precision())
torch.set_float32_matmul_precision("highest"); print(precision())
torch.backends.cuda.matmul.fp32_precision = "tf32"; print(precision())
torch.backends.cuda.matmul.fp32_precision = "ieee"; print(precision())
"""


def test_the_precision_of_products() -> None:
    """In a process of its own: PyTorch remembers by which of its ways a setting was made."""
    command = [sys.executable, "-W", "ignore", "-c", SETTINGS]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["ieee", "tf32", "ieee", "tf32", "ieee"]


def test_an_index_out_of_bounds() -> None:
    def f(t: Tensor, i: Tensor) -> Tensor:
        return t[i] * 2

    compiled = lt.script(f)
    assert torch.equal(compiled(torch.arange(40.0), torch.arange(36)), 2.0 * torch.arange(36))
    with pytest.raises(IndexError):
        compiled(torch.arange(40.0), torch.arange(10, 46))
