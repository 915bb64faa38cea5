"""Decides whether the result of a compiled call is right.

In: what eager PyTorch gave (`eager`), the same program in float64 (`truth`) and, drawn only where
something differs, eager runs with other roundings (`noisy`, see `rounding`). Out: "" or what is
wrong.

*Floats.* An element whose truth is t is wrong if its distance from t is more than

    4 * max |eager - truth| over the comparable elements  +  4 steps of its dtype at |t|

Comparable elements have |truth| <= 1024 |t|; where t is 0, all finite elements are comparable. One
element alone would say too little about eager's error, which may be 0 by chance. All elements would
say too much: the error of a large element would excuse any error of a small one. The factor is 1024
since a row's error by cancellation has the size of its terms, and a random row rarely cancels to
less than a thousandth of them.

An element beyond this limit is judged again by itself: it may be as far off as 4 times the furthest
of eager and 16 noisy runs. So an element that cancels, or that jumps with a rounding (`round`, or
`argmin` then gather), is right only if rounding alone moves it as far.

A NaN or an infinity must be eager's, with the same sign, or the truth's. A number where eager has a
NaN or an infinity must be close to the truth. Where the truth is close to the dtype's largest
number, both infinity and a number are right. Where eager has an infinity or a NaN and the truth has
none, any infinity or NaN is right: something overflowed on the way, and the outcome depends on the
order of a sum. Where the truth is a NaN and eager's a number, both are right: the program drew
other numbers in float64, or rounding hides what is undefined.

*Everything else* (integers, bools, shapes, dtypes, strides, `requires_grad`, which tensors share
memory, whether a gradient is None) must be eager's. A different integer or bool is right only where
noisy runs differ from eager, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

FACTOR, STEPS, COMPARABLE = 4.0, 4.0, 1024.0
Maybe = torch.Tensor | None
Noisy = Callable[[], Sequence[Maybe]]


def difference(got: torch.Tensor, eager: torch.Tensor, truth: Maybe, noisy: Noisy) -> str:
    """What is wrong with one tensor's values, dtype, shape, strides; "" if nothing."""
    if got.dtype is not eager.dtype or got.shape != eager.shape:
        jumps = got.dtype is eager.dtype and _shape_jumps(eager, truth, noisy())
        return "" if jumps else f"is {_kind(got)}, eager {_kind(eager)}"
    wrong = strides(got, eager)
    if wrong:
        return wrong
    if got.requires_grad != eager.requires_grad:
        return f"requires_grad is {got.requires_grad}, eager {eager.requires_grad}"
    got, eager = got.detach(), eager.detach()
    if not eager.is_floating_point():
        return _whole(got, eager, noisy)
    return _floats(got, eager, truth, noisy)


def strides(got: torch.Tensor, eager: torch.Tensor) -> str:
    """Strides of dims that have more than one element. A small part of a large temporary may have
    no gaps (docs/correctness.md, "Layout")."""
    if not got.numel():
        return ""
    whole = eager.untyped_storage().nbytes() // eager.element_size()
    if got.is_contiguous() and 4 * eager.numel() < whole:
        return ""
    ours, theirs = (
        [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] for x in (got, eager)
    )
    return "" if ours == theirs else f"strides are {got.stride()}, eager {eager.stride()}"


def _kind(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _shape_jumps(eager: torch.Tensor, truth: Maybe, noisy: Sequence[Maybe]) -> bool:
    return any(x is not None and x.shape != eager.shape for x in (truth, *noisy))


def _whole(got: torch.Tensor, eager: torch.Tensor, noisy: Noisy) -> str:
    wrong = got != eager
    if not bool(wrong.any()):
        return ""
    for other in noisy():
        if other is not None and other.shape == eager.shape:
            wrong &= other.detach() == eager
    return _told(wrong, got, eager, eager, None)


def _floats(got: torch.Tensor, eager: torch.Tensor, truth: Maybe, noisy: Noisy) -> str:
    exact = eager if truth is None or truth.shape != eager.shape else truth.detach()
    g, e, t = got.double(), eager.double(), exact.double()
    undefined, t = t.isnan(), torch.where(t.isnan(), e, t)
    info = torch.finfo(eager.dtype)
    steps = STEPS * (info.eps * t.abs()).clamp(min=info.smallest_normal * info.eps)
    away = (e - t).abs()
    comparable = _over_comparable(t, away)
    limit = FACTOR * comparable + steps
    wrong = ~_fine(g, e, t, limit, info) & ~(g.isnan() & undefined)
    if not bool(wrong.any()):
        return ""
    others = [x.detach().double() for x in noisy() if x is not None and x.shape == t.shape]
    for other in others:
        away = torch.maximum(away, (other - t).abs())
        wrong &= ~_same_end(g, other)
    limit = torch.maximum(
        limit, (FACTOR * away.nan_to_num(torch.inf) + steps).nan_to_num(torch.inf)
    )
    if others:
        wrong &= ~_fine(g, e, t, limit, info)
    return _told(wrong, got, eager, t, limit)


def _fine(
    g: torch.Tensor, e: torch.Tensor, t: torch.Tensor, limit: torch.Tensor, info: torch.finfo
) -> torch.Tensor:
    fine = (((g - t).abs() <= limit) & g.isfinite()) | (g == e)
    beyond = g.isinf() & (t.abs() + limit >= info.max) & (g.sign() == t.sign())
    both = ~g.isfinite() & ~e.isfinite() & t.isfinite()
    return fine | _same_end(g, e) | _same_end(g, t) | beyond | both


def _same_end(g: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    return (g.isnan() & e.isnan()) | (g.isinf() & (g == e))


def _over_comparable(t: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    """For each element the largest finite error among those of at most `COMPARABLE` times its
    value."""
    sizes = t.abs().flatten()
    errors = away.flatten().clone()
    errors[~(errors.isfinite() & sizes.isfinite())] = 0
    sizes = sizes.nan_to_num(torch.inf)
    order = sizes.argsort()
    if not order.numel():
        return away
    largest = errors[order].cummax(0).values
    reach = torch.where(sizes == 0, torch.inf, sizes * COMPARABLE)
    at = torch.searchsorted(sizes[order], reach, right=True) - 1
    return largest[at.clamp(min=0)].reshape(t.shape)


def _told(
    wrong: torch.Tensor, got: torch.Tensor, eager: torch.Tensor, t: torch.Tensor, limit: Maybe
) -> str:
    if not bool(wrong.any()):
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {list(at)}: {got[at].item()!r}"
    text += f", eager {eager[at].item()!r}"
    if limit is None:
        return text
    return f"{text}, float64 {t[at].item()!r}, may be off by {limit[at].item():.3g}"


# ---- which tensors share memory -----------------------------------------------------------------


def sharing(named: dict[str, torch.Tensor]) -> dict[str, str]:
    """For each tensor the first one whose memory it shares, and where in it it begins."""
    first: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, x in named.items():
        at = x.untyped_storage().data_ptr()
        if not x.numel() or not at:
            continue
        owner = first.setdefault(at, name)
        if owner != name:
            begin = x.storage_offset() - named[owner].storage_offset()
            shared[name] = f"{owner} from {begin}"
    return shared
