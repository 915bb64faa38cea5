"""Windows over images: like eager, no division left in their formulas, few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from tests.loops import windows
from tests.loops.windows import by_loops, by_unfold, by_views, gradient_of_input


@pytest.mark.parametrize("fn", windows.PROGRAMS, ids=lambda f: f.__name__)
def test_like_float64(fn: Callable[..., Any]) -> None:
    """One compiled program, sizes that share its signature and sizes that do not."""
    f = lt.script(fn)
    for n, height, width, p in ((1, 40, 50, 1), (2, 40, 50, 0), (1, 70, 37, 1), (2, 5, 33, 2)):
        x, w = torch.randn(n, 3, height, width), torch.randn(16, 3, 3, 3)
        if fn is by_loops and n > 1:
            continue  # its views mix images
        got, want = f(x, w, 3, 1, 1, p), fn(x.double(), w.double(), 3, 1, 1, p)
        for g, e in zip(_all(got), _all(want), strict=True):
            torch.testing.assert_close(g.double(), e, rtol=1e-4, atol=1e-4 * float(e.abs().max()))


def _all(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("fn", [by_unfold, by_loops, by_views], ids=lambda f: f.__name__)
def test_is_a_convolution(fn: Callable[..., Any]) -> None:
    x, w = torch.randn(1, 3, 80, 90), torch.randn(16, 3, 3, 3)
    got = lt.script(fn)(x, w, 3, 1, 1, 1)
    want = F.conv2d(x, w, padding=1)
    torch.testing.assert_close(got.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [by_unfold, by_loops], ids=lambda f: f.__name__)
def test_axes_that_are_only_cut_are_two(fn: Callable[..., Any]) -> None:
    x, w = torch.randn(1, 3, 80, 90), torch.randn(16, 3, 3, 3)
    _no_division(fn, x, w)


def test_also_of_square_images() -> None:
    """Their two sizes are one symbol; what the windows read is a padded copy."""
    normal = _no_division(by_unfold, torch.randn(8, 16, 64, 64), torch.randn(32, 16, 3, 3))
    assert normal.count("select(") == 1


def _no_division(fn: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> str:
    stages = dict(lt.script(fn).stages(x, w, 3, 1, 1, 1))
    normal = next(text for name, text in stages.items() if "normal form" in name)
    assert "//" not in normal
    assert "%" not in normal.replace("%x", "")
    return normal


def test_a_padded_copy_is_a_kernel_of_its_own() -> None:
    x, w = torch.randn(2, 16, 80, 90), torch.randn(16, 3, 3, 3)
    report = lt.script(gradient_of_input).explain(x, w.transpose(0, 1), 3, 1, 1, 1)
    assert str(report).startswith("gradient_of_input: 2 kernels, 0 ops left to PyTorch")
