"""Compiled gradients against eager ones.

same(f, x, y)        outputs and the gradients of all float inputs, compiled = eager in float64
gradients(f, x, y)   results and gradients for seeded cotangents
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults, stats

Program = Callable[..., Any]


def flat(out: Any) -> list[Tensor]:
    """All tensors of a result, in order."""
    if isinstance(out, Tensor):
        return [out]
    return [t for part in out for t in flat(part)] if isinstance(out, list | tuple) else []


def leaves(args: Sequence[Any], wanted: Sequence[bool] | None = None) -> list[Any]:
    """The arguments with float tensors as leaves that want gradients; strides are kept."""
    made: list[Any] = []
    for k, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point():
            wants = wanted is None or wanted[k]
            made.append(a.detach().requires_grad_(wants))
        else:
            made.append(a)
    return made


def gradients(
    f: Program, args: Sequence[Any], wanted: Sequence[bool] | None = None
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs, and gradients of all tensors that want one."""
    given = leaves(args, wanted)
    out = flat(f(*given))
    generator = torch.Generator().manual_seed(7)
    pairs = [
        (o, torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype))
        for o in out
        if o.requires_grad
    ]
    inputs = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    if not pairs:
        return out, [None for _ in inputs]
    found = torch.autograd.grad(
        [o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True
    )
    return out, list(found)


def same(
    f: Program,
    *args: Any,
    wanted: Sequence[bool] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    compiled_whole: bool = True,
) -> Any:
    """Compiled = eager, outputs and gradients; gives the compiled function."""
    compiled = lt.script(f)
    with faults.strict():
        before = stats.cache_stats()
        out, got = gradients(compiled, args, wanted)
        since = stats.cache_stats() - before
    if compiled_whole:
        assert not since.calls_eager
        assert not since.regions_eager
    want_out, want = gradients(f, args, wanted)
    for o, w in zip(out, want_out, strict=True):
        assert o.requires_grad == w.requires_grad
        close(o, w, rtol, atol)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None and w is not None:
            close(g, w, rtol, atol)
    return compiled


def close(got: Tensor, want: Tensor, rtol: float | None = None, atol: float | None = None) -> None:
    """Equal up to rounding, NaN where there is NaN; dtype and shape too."""
    if rtol is None and want.dtype is torch.float32:
        rtol, atol = 2e-4, 2e-4 * max(1.0, _largest(want))
    if want.dtype is torch.float64 and rtol is None:
        rtol, atol = 1e-7, 1e-9 * max(1.0, _largest(want))
    torch.testing.assert_close(
        got.detach(), want.detach(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
    )


def _largest(x: Tensor) -> float:
    finite = x.detach()[x.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 1.0


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Normal numbers from a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
