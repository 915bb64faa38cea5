"""Runs the outer block of a program op by op on the meta device, and stores every value.

In: a `Driver` and the arguments of a call. Out: `MetaInterpreter(driver, args).known`: by Value,
meta tensors and the values that do not depend on data.

    y = x * 2; n = y.shape[0]          %y: a meta tensor [1000, 4], %n: 1000
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.budget.dry_run import DryRun
from lowtide.execute.block_plan import BlockPlan, Env
from lowtide.ir.core import Op, Value
from lowtide.ir.interpret import run_op
from lowtide.specialise.stand_ins import UNKNOWN


class MetaInterpreter(DryRun):
    """See the module's text."""

    known: dict[Value, Any]
    _depth = 0

    def block(self, plan: BlockPlan, env: Env) -> list[Any]:
        """See the base class."""
        if not self._depth:
            self.known = dict(env)
        self._depth += 1
        try:
            return super().block(plan, env)
        finally:
            self._depth -= 1

    def region(self, plan: BlockPlan, pos: int, env: Env) -> int:
        """See the base class."""
        self._reason = "op by op"
        return pos

    def op(self, plan: BlockPlan, pos: int, env: Env) -> None:
        """See the base class."""
        super().op(plan, pos, env)
        if self._depth == 1:
            self._note(env.items())

    def _plain(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        results = super()._plain(op, env, alive)
        if self._depth == 1:
            self._note(zip(op.results, results, strict=True))
        return results

    def loop(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class."""
        results = super().loop(plan, op, env, alive)
        if self._depth == 1:
            self._note(zip(op.results, results, strict=True))  # also what nothing reads
        return results

    def _note(self, rows: Iterable[tuple[Value, Any]]) -> None:
        self.known.update((v, x) for v, x in rows if x is not UNKNOWN)


def run_on_meta(op: Op, env: dict[Value, Any]) -> list[Any] | None:
    """Return the op's results on the meta device, None if it raises. Call it under a `Ledger`."""
    try:
        run_op(op, env)
    except Exception:  # whatever PyTorch raises for operands that do not fit
        return None
    return [env[v] for v in op.results]
