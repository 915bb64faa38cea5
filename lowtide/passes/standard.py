"""The passes every front end's program goes through, in order.

tidy(fn)     constants folded, common subexpressions shared, dead code gone
"""

from __future__ import annotations

from lowtide.ir.core import Function
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.run import Pass, run

TIDY: tuple[Pass, ...] = (fold_constants, eliminate_common_subexpressions, eliminate_dead_code)


def tidy(fn: Function) -> Function:
    """The same program with nothing left that is known, double or unused."""
    return run(fn, TIDY)
