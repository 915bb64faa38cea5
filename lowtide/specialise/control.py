"""Specialises `if` and `loop`.

In: an op and abstract operands. Out: its abstract results; raises Stop where the region ends.

    if of a constant                            its live branch
    if of a condition that differs per          both branches, and a select
      iteration                                 (`lifting/branches`)
    loop                                        an axis, or a recurrence (`lifting`);
                                                else unrolled, if it is short
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value
from lowtide.specialise import assertions, kernel_numbers, varying
from lowtide.specialise.abstract import Abs, Ragged, is_constant
from lowtide.specialise.lifting import branches, peel, ragged
from lowtide.specialise.lifting.match import UNROLL_TRIPS, NotLifted
from lowtide.specialise.region_boundaries import Stop, is_short
from lowtide.texpr.build import NeedConst, Val, symbols
from lowtide.texpr.index import Index

UNROLL_OPS: Final = 2000
NOT_LIFTED: Final = "is not lifted: "


def branched(run: Any, op: Op, condition: Abs, env: dict[Value, Abs]) -> list[Abs]:
    """Return the results of an `if`. Raises Stop if the region must end before it."""
    has_loop = any(o.name == "loop" for block in op.blocks for o in block.ops)
    cond = None if is_constant(condition) else varying.truth(condition)
    is_of_tensor = kernel_numbers.is_kernel_number(condition) and run.loop is None
    is_recorded = run.activity.records  # a result requires a gradient in one branch only, perhaps
    if is_of_tensor and (op in run.excluded or is_recorded or not run.pairs_alive()):
        raise Stop("branches on the value of a tensor")
    if cond is not None:
        yes, no = op.blocks
        most = kernel_numbers.most_points(run, env) if is_of_tensor else branches.MOST_POINTS
        with run.activity.branch(has_loop):
            found = branches.chosen(
                run,
                op,
                cond,
                env,
                lambda: branches.affordable(run, lambda: run.inline(yes, env), most),
                lambda: branches.affordable(run, lambda: run.inline(no, env), most),
            )
        run.numbers_by.update((x, op) for x in found if kernel_numbers.is_kernel_number(x))
        return found
    if isinstance(condition.value, Val) and run.is_asserting:
        k = assertions.raising(op)
        run.check(Abs(assertions.negated(run.b, condition.value)) if k == 0 else condition)
        return []
    if isinstance(condition.value, Val):
        raise Stop("branches on the value of a tensor")
    if not is_constant(condition):
        raise Stop("branches on what is known only at run time")
    taken = op.blocks[0 if condition.value else 1]
    with run.activity.branch(has_loop):
        return run.inline(taken, env)


def looped(run: Any, op: Op, operands: Sequence[Abs], env: dict[Value, Abs]) -> list[Abs]:
    """Return the results of a loop: lifted or unrolled. Raises Stop if the region must end before
    it."""
    trips, going, *carried = operands
    if not is_constant(going) or not isinstance(trips.value, int | Index | Ragged):
        raise Stop("loops a number of times that is known only at run time")
    most = run.activity.most_at_once
    short = is_short(op, trips.value, env, run.activity.in_loop, most)
    lifted = _lifted(run, op, trips.value, carried, env, not short)
    if not isinstance(lifted, str):
        return lifted
    if not isinstance(trips.value, int):
        raise Stop(lifted)
    if UNROLL_TRIPS < trips.value < opdefs.MAX_TRIPS:
        raise Stop(f"{lifted}, and loops {trips.value} times")
    return _unrolled(run, op, trips.value, going, carried, env)


def _lifted(
    run: Any,
    op: Op,
    count: int | Index | Ragged,
    carried: list[Abs],
    env: dict[Value, Abs],
    scans: bool,
) -> list[Abs] | str:
    """Return the results of a loop that is an axis or, with `scans`, runs step by step. Return the
    reason if it is neither."""
    if op in run.excluded:
        return run.excluded[op]
    steps = ragged.steps_of(op, count, env, run.ask)
    if steps is None:
        return "loops a number of times that is known only at run time"
    trips = steps.trips
    if trips.const is not None and not 2 <= trips.const < opdefs.MAX_TRIPS:
        return "is no loop of a fixed length"
    some = run.decide(trips - 1)
    if some is None:
        if run.divisors(symbols(trips)):
            raise NeedConst(symbols(trips))  # a loop around asks for the divisors, too
        return "loops a number of times that is known only at run time"
    if not some:
        return carried
    try:
        with run.activity.loop():
            return peel.lifted(run, op, steps, carried, env, scans)
    except NotLifted as why:
        return NOT_LIFTED + str(why).removeprefix(NOT_LIFTED)  # of a loop within it


def _unrolled(
    run: Any, op: Op, trips: int, going: Abs, carried: list[Abs], env: dict[Value, Abs]
) -> list[Abs]:
    (block,) = op.blocks
    for i in range(min(trips, UNROLL_TRIPS + 1)):
        if not going.value:
            return carried
        if i == UNROLL_TRIPS or run.ops > UNROLL_OPS:
            raise Stop("is too long to unroll")
        env.update(zip(block.args, (Abs(i), *carried), strict=True))
        going, *carried = run.inline(block, env)
        if not is_constant(going):
            raise Stop("loops until a condition that is known only at run time")
    return carried
