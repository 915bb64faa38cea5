"""The passes every front end's program goes through, in order.

tidy(fn)     constants folded, carried tuples, rows and lists in a form that loops can be lifted
             from, common subexpressions shared, dead code gone
tidy_unrolled(fn)   the same, of what was captured or traced
"""

from __future__ import annotations

from lowtide.ir.core import Function
from lowtide.passes.asked_again import ask_again
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.counted_loops import count_loops
from lowtide.passes.counters import count_by_steps
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.early_ends import end_early
from lowtide.passes.first_steps import peel_first_steps
from lowtide.passes.grown_lists import grow_in_place
from lowtide.passes.inline_no_grad import inline_no_grad
from lowtide.passes.last_items import carry_last_items
from lowtide.passes.last_steps import peel_last_steps
from lowtide.passes.private_writes import make_private_writes_plain
from lowtide.passes.reroll import reroll
from lowtide.passes.rows import read_rows
from lowtide.passes.run import Pass, about, run
from lowtide.passes.split_tuples import split_tuples
from lowtide.passes.truths import simplify_truths

TIDY: tuple[Pass, ...] = (
    make_private_writes_plain,
    inline_no_grad,
    peel_first_steps,
    fold_constants,  # so that a state which was None, or a tuple, is always one
    split_tuples,
    fold_constants,
    eliminate_dead_code,  # and what loops carry unchanged
    end_early,
    read_rows,
    about("loop")(eliminate_common_subexpressions),  # what is compared is one value
    simplify_truths,
    count_loops,
    count_by_steps,
    grow_in_place,
    carry_last_items,
    eliminate_common_subexpressions,
    peel_last_steps,  # `n - 1` is one value now
    eliminate_dead_code,
    ask_again,  # in the end: what is asked twice is a common subexpression
)


def tidy(fn: Function) -> Function:
    """The same program with nothing left that is known, double or unused."""
    return run(fn, TIDY)


def tidy_unrolled(fn: Function) -> Function:
    """The same, of a program in which Python's loops have been run: first they are loops again."""
    return run(fn, (make_private_writes_plain, reroll, *TIDY))
