"""Runs passes over a Function, and verifies it after each.

In: a Function and a list of passes. Out: the Function that the last one made; the one given is not
changed.

    run(fn, [fold_constants, eliminate_common_subexpressions, eliminate_dead_code])

Always holds: what a pass gives is verified; a VerifyError names the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowtide.ir.core import Function
from lowtide.ir.verify import verify

Pass = Callable[[Function], Function]


def run(fn: Function, passes: Sequence[Pass]) -> Function:
    """The function after all passes; raises VerifyError, which names the pass at fault."""
    for step in passes:
        fn = step(fn)
        verify(fn, after=getattr(step, "__name__", str(step)))
    return fn
