"""Refuses a backward pass in which the gradient of a result would be seen and be wrong.

In: a region's Program, what a call returned. Out: None, or a RuntimeError.

    y, z = x * x, (x * x).sin()      eager mode: z -> y -> x         one region: y -> x, z -> x

In eager mode a hook of `y` and `y.retain_grad()` see the gradient that flows from `z` into `y`,
too. A region computes the gradient of `x` at once, and has no gradient of `y`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from lowtide.texpr.expr import Program, loads

_REFUSED = (
    "{}: a hook, or retain_grad(), of a result that another result is computed from. Within a "
    "compiled function the gradient that comes from the other one is not seen. Compile the two "
    "parts as two functions, or run this one with LOWTIDE_DISABLE=1"
)
Seen = Sequence[tuple[int, weakref.ref[Any]]]  # positions among the results, and these


def depended_upon(program: Program, carrying: Sequence[bool]) -> tuple[int, ...]:
    """Return the positions of the results that others are computed from, among those that carry a
    gradient."""
    results = [name for name, carries in zip(program.results, carrying, strict=True) if carries]
    if len(results) < 2:
        return ()
    above: dict[str, set[str]] = {}  # of each definition, what it is computed from
    for name, d in program.defs.items():
        read = {load.source for load in loads(d.expr)}
        above[name] = read.union(*(above.get(n, ()) for n in read))
    found = {n for name in results for n in above.get(name, ())}.intersection(results, above)
    return tuple(k for k, name in enumerate(program.results) if name in found)


def check_unseen(results: Seen, program: Program) -> None:
    """Raise RuntimeError if one of these results has a hook, or keeps its gradient."""
    for k, result in results:
        y = result()
        hooks: dict[int, Any] = (y is not None and y._backward_hooks) or {}
        if y is not None and (y.retains_grad or any(map(_reads, hooks.values()))):
            raise RuntimeError(_REFUSED.format(program.defs[program.results[k]].loc))


def _reads(hook: Any) -> bool:
    """Return whether a hook may read or change a gradient; FSDP's only wait for the moment."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return not str(getattr(hook, "__module__", "")).startswith("torch.distributed.")
