"""Runs passes over a Function, and verifies it after each.

In: a Function and a list of passes. Out: the Function that the last one made. Passes do not change
the Function that they are given.

    run(fn, [fold_constants, eliminate_common_subexpressions, eliminate_dead_code])

Invariant: each new Function is verified; a VerifyError names the pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from lowtide.ir.core import Function
from lowtide.ir.verify import verify

Pass = Callable[[Function], Function]


def run(fn: Function, passes: Sequence[Pass]) -> Function:
    """Return the function after all passes; raises VerifyError, which names the pass at fault."""
    verified: Function | None = None
    for step in passes:
        fn = step(fn)
        if fn is not verified:
            verify(fn, after=getattr(step, "__name__", str(step)))
            verified = fn
    return fn


def only_with(name: str) -> Callable[[Pass], Pass]:
    """Decorator: the pass returns a Function without an op of this name unchanged."""

    def decorate(step: Pass) -> Pass:
        @functools.wraps(step)
        def where_it_applies(fn: Function) -> Function:
            return step(fn) if any(op.name == name for op in fn.walk()) else fn

        return where_it_applies

    return decorate
