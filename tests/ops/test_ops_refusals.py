"""Arguments that PyTorch refuses are refused, with PyTorch's own error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt

Call = Callable[[Tensor], Tensor]


def raises_alike(call: str, x: Tensor) -> None:
    space = {"torch": torch, "F": F}
    with pytest.raises(Exception) as wanted:
        eval(f"lambda x: {call}", space)(x)
    traced_after = lt.script(made(call))
    with pytest.raises(wanted.type) as got:
        traced_after(x)
    assert str(wanted.value).splitlines()[0] in str(got.value)


def made(call: str) -> Call:
    """A function with this text, that has a source."""
    import linecache

    text = f"def fn(x):\n    return {call}\n"
    name = f"<{call}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"torch": torch, "F": F}
    exec(compile(text, name, "exec"), space)
    return space["fn"]  # type: ignore[return-value]


BEYOND_HALF = [
    "x.masked_fill(x > 0, -1e9)",
    "x.masked_fill(x > 0, 65519.0)",
    "x.clamp(-1e9, 1e9)",
    "x.clamp_min(70000)",
    "torch.full((2,), 1e9, dtype=x.dtype)",
    "torch.full_like(x, 1e9)",
    "x.new_full((2,), 1e9)",
    "F.hardtanh(x, -1e9, 1e9)",
    "F.threshold(x, 0.5, 1e9)",
    "F.hardshrink(x, 1e9)",
    "F.pad(x, (1, 1), value=1e9)",
    "x.add(1, alpha=1e9)",
    "x ** 1e9",
    "torch.linspace(0, 1e9, 3, dtype=x.dtype)",
]


@pytest.mark.parametrize("call", BEYOND_HALF)
def test_numbers_beyond_the_dtype(call: str) -> None:
    raises_alike(call, torch.rand(5, 5).half())


def test_a_number_of_the_call_beyond_the_dtype() -> None:
    def masked(x: Tensor, low: float):
        return x.masked_fill(x > 0.5, low)

    compiled, x = lt.script(masked), torch.rand(5, 5).half()
    assert torch.equal(compiled(x, -6e4), masked(x, -6e4))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x, -1e9)


BEYOND_SINGLE = ["x.masked_fill(x > 0, 1e39)", "torch.full((2,), -1e300)", "x.clamp(max=1e39)"]


@pytest.mark.parametrize("call", BEYOND_SINGLE)
def test_numbers_beyond_single_precision(call: str) -> None:
    raises_alike(call, torch.rand(5, 5))


ARGUMENTS = [
    "F.dropout(x, 1.5, False)",
    "F.hardtanh(x, 1.0, -1.0)",
    "F.celu(x, 0.0)",
    "F.softshrink(x, -1.0)",
    "torch.isclose(x, x, rtol=-1.0)",
    "torch.isclose(x, x, atol=-1.0)",
    "torch.cdist(x, x, compute_mode='foo')",
    "x.flip(0, 0)",
    "x.flip(0, -2)",
    "x.clamp()",
    "x[0, 0].flipud()",
    "torch.arange(float('nan'))",
    "torch.arange(0.0, float('inf'))",
    "torch.arange(0.0, 1e30)",
]


@pytest.mark.parametrize("call", ARGUMENTS)
def test_arguments(call: str) -> None:
    raises_alike(call, torch.rand(5, 5))


def test_infinity_fits() -> None:
    def fn(x):
        return x.masked_fill(x > 0.5, float("-inf")).clamp(max=float("inf"))

    x = torch.rand(5, 5).half()
    assert torch.equal(lt.script(fn)(x), fn(x))
