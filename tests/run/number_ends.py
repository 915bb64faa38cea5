"""Compares programs with eager mode where numbers end: near overflow, underflow, 0, NaN, infinity.

In: a function, its tensors. Raises AssertionError where a compiled form (script, trace) is wrong:
further from float64 than 4 times eager mode and 4 units in the last place; not finite where eager
mode is, or the other way; ints and bools other than eager mode's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import lowtide as lt


def check_ends(fn: Callable[..., Any], *args: Tensor, gradients: bool = False) -> None:
    """See the module's text; with `gradients`, those of the float arguments, too."""
    wide = [a.double() if a.is_floating_point() else a for a in args]
    exact, eager = _results(fn, wide, gradients), _results(fn, args, gradients)
    for compiled in (lt.script(fn), lt.trace(fn, tuple(a.clone() for a in args))):
        found = _results(compiled, args, gradients)
        assert len(found) == len(eager)
        for got, plain, real in zip(found, eager, exact, strict=True):
            assert_as_good(got, plain, real)


def assert_as_good(got: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Is a result as near to the exact one as eager mode's is?"""
    assert got.dtype is eager.dtype
    assert got.shape == eager.shape
    if not got.is_floating_point():
        assert torch.equal(got, eager)
        return
    finite = torch.isfinite(eager)
    assert torch.equal(torch.isfinite(got), finite), f"{got}\n{eager}"
    assert torch.equal(got.isnan(), eager.isnan()), f"{got}\n{eager}"
    assert torch.equal(got[got.isinf()], eager[eager.isinf()])
    got, eager, exact = got[finite].double(), eager[finite], exact[finite]
    info = torch.finfo(eager.dtype)
    unit = torch.maximum(exact.abs() * info.eps, torch.tensor(info.smallest_normal * info.eps))
    theirs = (eager.double() - exact).abs().amax() if exact.numel() else exact
    allowed = 4 * theirs + 4 * unit
    assert bool(((got - exact).abs() <= allowed).all()), f"{got}\n{eager}\n{exact}"


def _results(fn: Callable[..., Any], args: Sequence[Tensor], gradients: bool) -> list[Tensor]:
    given = [a.clone().requires_grad_(gradients and a.is_floating_point()) for a in args]
    out = fn(*given)
    results = [out] if isinstance(out, Tensor) else [*out]
    wanted = [a for a in given if a.requires_grad]
    roots = [r for r in results if r.requires_grad]
    found = torch.autograd.grad([r.sum() for r in roots], wanted) if roots else ()
    return [r.detach() for r in (*results, *found)]
