"""Runs blocks. Control flow is here; subclasses define what ops and regions do.

In: a `BlockPlan`, and an environment with the live-ins of its block, which is consumed. Out: the
operands of the terminator.

    KernelExecutor (`driver`)     kernels run regions, PyTorch the other ops
    DryRun (`budget/dry_run`)     memory plans stand for kernels, ops run on the meta device

A value is released after its last use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from lowtide.execute.block_plan import BlockPlan, Env
from lowtide.execute.chunks import RunBlock
from lowtide.execute.saved_products import RECALLED, run_recalled
from lowtide.execute.section import SECTION, run_section
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.interpret import Entered, suppressed


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
        run = _STRUCTURED.get(op.name) if op.blocks else None
        if run is None:
            self.plain(plan, pos, env)
            return
        alive = plan.live_at[pos + 1]
        results = run(self, plan, op, env, alive)
        env.update(zip(op.results, results, strict=True))
        drop(env, alive, op.results)

    # -- ops with blocks. `alive`: what is used after the op --

    def branch(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run an `if`."""
        inner = self.inner(plan, op.blocks[0 if env[op.operands[0]] else 1], env)
        drop(env, alive, tuple(env))
        return self.block(*inner)

    def loop(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `loop`."""
        trips, going, *carried = (env[v] for v in op.operands)
        (block,) = op.blocks
        inner, outer = self.inner(plan, block, env)
        drop(env, alive, tuple(env))
        i = 0
        while i < trips and going:
            given = {**outer, **dict(zip(block.args, (i, *carried), strict=True))}
            carried.clear()
            going, *carried = self.block(inner, given)
            i += 1
        return carried

    def section(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `section`: chunks of a budget, or a checkpoint."""
        runs = [self.runner(plan, block) for block in op.blocks]
        values = [env[v] for v in op.operands]
        drop(env, alive, op.operands)
        return run_section(op, values, runs, self.shown_chunks)

    def recalled(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Return a product that the forward pass has saved."""
        return run_recalled(op, env)

    def context(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a `with`."""
        block, *leaving = op.blocks
        manager = env[op.operands[0]]
        if leaving:
            manager = Entered(manager, self.leaving(plan, leaving[0], env))
        inner, given = self.inner(plan, block, env)
        drop(env, alive, tuple(env))
        with manager as entered:
            given[block.args[0]] = entered
            return self.within(inner, given)
        raise suppressed(op)

    def within(self, plan: BlockPlan, env: Env) -> list[Any]:
        """Run the block of a `with`, inside its manager."""
        return self.block(plan, env)

    # -- their blocks --

    def inner(self, plan: BlockPlan, block: Block, env: Env) -> tuple[BlockPlan, Env]:
        """Return the plan of a nested block, and the values that it reads."""
        inner = plan.inner(block)
        return inner, {v: env[v] for v in inner.live_at[0] if v in env}

    def runner(self, plan: BlockPlan, block: Block) -> RunBlock:
        """Return a function that runs a block on the values of its arguments."""
        inner = plan.inner(block)
        inner.is_again = True
        return lambda given: self.block(inner, dict(zip(block.args, given, strict=True)))

    def leaving(self, plan: BlockPlan, block: Block, env: Env) -> Callable[..., object]:
        """Return a function that runs the `__exit__` of the user's context manager."""
        inner, outer = self.inner(plan, block, env)

        def leave(*error: object) -> object:
            return self.block(inner, {**outer, **dict(zip(block.args, error, strict=True))})[0]

        return leave


_STRUCTURED: Final[dict[str, Callable[..., list[Any]]]] = {
    "if": lambda self, *given: self.branch(*given),
    "loop": lambda self, *given: self.loop(*given),
    "with": lambda self, *given: self.context(*given),
    SECTION: lambda self, *given: self.section(*given),
    RECALLED: lambda self, *given: self.recalled(*given),
}


def drop(env: Env, alive: set[Value], candidates: Sequence[Value]) -> None:
    """Remove these values from the environment, except those that are alive."""
    for v in candidates:
        if v not in alive:
            env.pop(v, None)
