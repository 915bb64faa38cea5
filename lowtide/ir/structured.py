"""Runs `if`, `loop` and `with`; the caller runs their blocks.

In: an op, the values of its operands, and `enter`, which turns the op's blocks into functions. Out:
the op's results.

    taken(op, env)                interpreter     blocks share one environment
    loop(op, env, enter)          executor        a block has a plan, and an environment of its own,
    context(op, env, enter)                       from which a value goes after its last use

`enter` is called once, after the op has read its operands and before a block runs: a caller can
forget there what only this op needed. The functions that it gives take the values of the block's
arguments, a list that they may clear, and return the operands of the terminator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lowtide.ir.core import Block, Op, Value

Env: TypeAlias = Mapping[Value, Any]
RunBlock: TypeAlias = Callable[[list[Any]], list[Any]]
Enter: TypeAlias = Callable[[Sequence[Block]], Sequence[RunBlock]]


def taken(op: Op, env: Env) -> Block:
    """Return the block of an `if` that runs."""
    return op.blocks[0 if env[op.operands[0]] else 1]


def loop(
    op: Op,
    env: Env,
    enter: Enter,
    goes_on: Callable[[int, Any, list[Any]], bool] | None = None,
) -> list[Any]:
    """Run a `loop`. `goes_on`: whether there is one more step, from the steps done, the number of
    steps, and [going, *carried]; None: as the program says."""
    trips, *state = [env[v] for v in op.operands]
    (run,) = enter(op.blocks)
    i = 0
    while (i < trips and state[0]) if goes_on is None else goes_on(i, trips, state):
        state[0] = i
        state = run(state)
        i += 1
    return state[1:]


def context(op: Op, env: Env, enter: Enter) -> list[Any]:
    """Run a `with`. A second block is the `__exit__` of the user's own manager."""
    manager = env[op.operands[0]]
    run, *leave = enter(op.blocks)
    with _Entered(manager, leave[0]) if leave else manager as entered:
        return run([entered])
    raise RuntimeError(f"the context manager at {op.loc} suppressed an exception")  # no results


class _Entered:
    """A context manager whose `__enter__` has run, with a block for `__exit__`."""

    def __init__(self, entered: object, leave: RunBlock) -> None:
        self._entered, self._leave = entered, leave

    def __enter__(self) -> object:
        return self._entered

    def __exit__(self, *error: object) -> bool:
        return bool(self._leave([*error])[0])
