"""Runs blocks with plans; subclasses define what ops and regions do. Control flow: `structured`.

In: a `BlockPlan`, and an environment with the live-ins of its block, which is consumed. Out: the
operands of the terminator.

    KernelExecutor (`driver`)     kernels run regions, PyTorch the other ops
    DryRun (`budget/dry_run`)     memory plans stand for kernels, ops run on the meta device

A value is released after its last use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from lowtide.execute.block_plan import BlockPlan, Env
from lowtide.execute.saved_products import SAVED_PRODUCT, run_saved_product
from lowtide.execute.section import SECTION, run_section
from lowtide.ir import structured
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.structured import RunBlock


class Executor(ABC):
    """See the module's text."""

    shown_chunks: int | None = None  # of a section: how many run, None for all

    @abstractmethod
    def region(self, plan: BlockPlan, pos: int, env: Env) -> int | list[Any]:
        """Run the region at `pos`. Return the block's results if the region ends the block, else
        the position of the next op outside of a region, or `~position` of the next region."""

    @abstractmethod
    def plain(self, plan: BlockPlan, pos: int, env: Env) -> None:
        """Run an op outside of any region that is not control flow; drop dead values."""

    def block(self, plan: BlockPlan, env: Env) -> list[Any]:
        """Run a block; return the operands of its terminator."""
        pos = 0
        while pos < plan.last:
            stop = self.region(plan, pos, env)
            if isinstance(stop, list):
                return stop
            if stop < 0:  # no op is left to PyTorch there
                pos = ~stop
            else:
                pos = self.advance(plan, stop, plan.last, env) if stop < plan.last else stop
        return [env[v] for v in plan.block.terminator.operands]

    def ops(self, plan: BlockPlan, start: int, stop: int, env: Env) -> int:
        """Run ops [start, stop) outside of any region; return `stop`."""
        pos = start
        while pos < stop:
            pos = self.advance(plan, pos, stop, env)
        return stop

    def advance(self, plan: BlockPlan, pos: int, stop: int, env: Env) -> int:
        """Run the op at `pos` outside of any region; return the position of the next op, at most
        `stop`."""
        self.op(plan, pos, env)
        return pos + 1

    def op(self, plan: BlockPlan, pos: int, env: Env) -> None:
        """Run one op outside of any region; drop dead values."""
        op = plan.ops[pos]
        method = _STRUCTURED.get(op.name) if op.blocks else None
        if method is None:
            self.plain(plan, pos, env)
            return
        alive = plan.live_at[pos + 1]
        results = getattr(self, method)(plan, op, env, alive)
        env.update(zip(op.results, results, strict=True))
        drop(env, alive, op.results)

    # -- ops with blocks. `alive`: what is used after the op --

    def branch(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run an `if`."""
        inner, outer = self.inner(plan, structured.taken(op, env), env)
        drop(env, alive, tuple(env))
        return self.block(inner, outer)

    def loop(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `loop`."""
        return structured.loop(op, env, partial(self.enter, plan, env, alive, self.run_repeatable))

    def context(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `with`."""
        return structured.context(op, env, partial(self.enter, plan, env, alive, self.within))

    def section(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `section`: chunks of a budget, or a checkpoint."""
        runs = [self.runner(plan, block) for block in op.blocks]
        values = [env[v] for v in op.operands]
        drop(env, alive, op.operands)
        return run_section(op, values, runs, self.shown_chunks)

    def saved_product(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Return a product that the forward pass has saved."""
        return run_saved_product(op, env)

    # -- their blocks --

    def inner(self, plan: BlockPlan, block: Block, env: Env) -> tuple[BlockPlan, Env]:
        """Return the plan of a nested block, and the values that it reads."""
        inner = plan.inner(block)
        return inner, {v: env[v] for v in inner.live_at[0] if v in env}

    def enter(
        self,
        plan: BlockPlan,
        env: Env,
        alive: set[Value],
        run: Callable[[BlockPlan, Env, list[Any]], list[Any]],
        blocks: Sequence[Block],
    ) -> list[RunBlock]:
        """Return functions that run nested blocks by `run`; drop dead values."""
        found = [partial(run, *self.inner(plan, block, env)) for block in blocks]
        drop(env, alive, tuple(env))
        return found

    def run(self, plan: BlockPlan, env: Env, values: list[Any]) -> list[Any]:
        """Run a nested block once. `values`: of its arguments; consumed, as `env` is."""
        if values:
            env.update(zip(plan.block.args, values, strict=True))
            values.clear()
        return self.block(plan, env)

    def run_repeatable(self, plan: BlockPlan, outer: Env, values: list[Any]) -> list[Any]:
        """Run a nested block that may run again with the same outer values."""
        return self.run(plan, outer.copy(), values)

    def within(self, plan: BlockPlan, env: Env, values: list[Any]) -> list[Any]:
        """Run a block of a `with`."""
        return self.run(plan, env, values)

    def runner(self, plan: BlockPlan, block: Block) -> RunBlock:
        """Return a function that runs a block of a section, which reads nothing outside."""
        inner = plan.inner(block)
        inner.may_recompute = True
        return partial(self.run_repeatable, inner, {})


_STRUCTURED: Final = {  # an op, and the method that runs it
    "if": Executor.branch.__name__,
    "loop": Executor.loop.__name__,
    "with": Executor.context.__name__,
    SECTION: Executor.section.__name__,
    SAVED_PRODUCT: Executor.saved_product.__name__,
}


def drop(env: Env, alive: set[Value], candidates: Sequence[Value]) -> None:
    """Remove these values from the environment, except those that are alive."""
    for v in candidates:
        if v not in alive:
            env.pop(v, None)
