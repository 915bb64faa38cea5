"""The driver: runs a Function on real values.

In: a Function and its arguments. Out: the operands of its terminator.

    y = x * 2 + n            region 0: one kernel
    y[mask] = 0              PyTorch, through the reference interpreter
    if y.sum() > 0: ...      the driver chooses the block, and runs it
    return y.exp()           region 1

A region ends before an op that is not compiled; after that op the next region has a signature of
its own. If a region's check fails, or its shapes do not fit together, PyTorch runs the same ops
instead, and gives its own error or result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.utils.checkpoint

from lowtide.codegen.host.python_part import plain_values
from lowtide.diagnostics import stats
from lowtide.execute import eager_threshold
from lowtide.execute.backend import Tiles
from lowtide.execute.block_plan import BlockPlan, Env, Steps
from lowtide.execute.demands import Demands
from lowtide.execute.differences import attribute
from lowtide.execute.executor import Executor
from lowtide.execute.host_code import CheckFailed, HostFault
from lowtide.execute.mutation import Apart, Shared, statistics
from lowtide.execute.region import Region
from lowtide.execute.region_state import Aliasing
from lowtide.execute.specialisations import Entry
from lowtide.frontend.script.leaves import has_subclasses
from lowtide.ir.aliases import Statistics, lent, may_change, returned, written_by
from lowtide.ir.core import Function, Op, Value
from lowtide.ir.differentiated import differentiated
from lowtide.ir.interpret import run_block
from lowtide.ir.recomputed import Recomputed
from lowtide.memory import watching
from lowtide.memory.available import is_out_of_memory
from lowtide.runtime import arena
from lowtide.runtime.block_kernels import KernelFault
from lowtide.specialise.signature import CPU, Ineligible
from lowtide.torch_private import torch_state
from lowtide.torch_private.modes import function_modes_on

NO_MEMORY: Final = (
    "lowtide: `memory(…)` of the compiled function names what is alive at the peak, with nothing "
    'run; `budget="8GB"` where it is compiled keeps a call to that, or refuses it before it runs'
)


class KernelExecutor(Executor):
    """Runs regions by kernels, and the ops between them by PyTorch or Python."""

    def region(self, plan: BlockPlan, pos: int, env: Env) -> int | list[Any]:
        region = plan.region(pos)
        if region is None:
            steps, stop = plan.until_region(pos)
            _run_steps(steps, env)
            return ~stop if steps else pos
        values = [env[v] for v in region.ops.live_ins]
        known = region.eager_entry(values)
        if known is not None:
            del values
            return self._small(plan, pos, known, env)
        try:
            if function_modes_on():
                with watching.aside():
                    entry, results = _launch(region, values)
                watching.register_results(results)
            else:
                entry, results = _launch(region, values)
        except Ineligible:
            return ~self.eager(plan, pos, region.ops.end, env)
        spec = entry.spec
        del values
        if entry.eager == eager_threshold.WHY:
            return self._small(plan, pos, entry, env)
        if entry.run is None:
            return ~self.eager(plan, pos, region.ops.end, env) if entry.eager else pos
        if results is None:
            return ~self.eager(plan, pos, min(spec.stop, plan.last), env)
        if spec.finished:
            return list(results)
        for v in spec.dead:
            del env[v]
        env.update(zip(spec.results, results, strict=True))
        return spec.stop if spec.reason else ~spec.stop

    def _small(self, plan: BlockPlan, pos: int, entry: Entry, env: Env) -> int:
        """Run the ops of a region that PyTorch runs faster; return what `region` does."""
        stop = self.ops(plan, pos, min(entry.spec.stop, plan.last), env)
        return stop if entry.spec.reason else ~stop

    def eager(self, plan: BlockPlan, start: int, stop: int, env: Env) -> int:
        """Run ops [start, stop) of a region in PyTorch; return `stop`."""
        stats.count("regions_eager")
        return self.ops(plan, start, stop, env)

    def ops(self, plan: BlockPlan, start: int, stop: int, env: Env) -> int:
        """See the base class."""
        steps = plan.straight(start, stop)
        if steps is None:
            return super().ops(plan, start, stop, env)
        _run_steps(steps, env)
        return stop

    def advance(self, plan: BlockPlan, pos: int, stop: int, env: Env) -> int:
        """See the base class; consecutive ops that form one Python function run at once."""
        try:
            found = plan.python[pos]
        except KeyError:
            found = plan.python_part(pos)
        if found is None or found[1] > stop:
            self.op(plan, pos, env)
            return pos + 1
        part, end, dead = found
        part.run(env)
        for v in dead:
            env.pop(v, None)
        return end

    def plain(self, plan: BlockPlan, pos: int, env: Env) -> None:
        step, dead = plan.step(pos)
        step(env)
        for v in dead:
            env.pop(v, None)

    def section(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        with watching.aside():
            results = super().section(plan, op, env, alive)
        watching.register_results(results)
        return results

    def context(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class; `with` of a checkpoint is a section, or PyTorch's own."""
        manager = env[op.operands[0]]
        if not (isinstance(manager, Recomputed) and manager.records()):
            return super().context(plan, op, env, alive)
        section = plan.checkpoint_section(op, env)
        if section is not None:
            return self.section(plan, section, env, alive)
        return self.checkpointed(plan, op, env, alive, early_stop=manager.early_stop)

    def within(self, plan: BlockPlan, env: Env, values: list[Any]) -> list[Any]:
        if torch_state.reason():  # the manager may be a mode of PyTorch's
            return run_block(plan.block, {**env, **dict(zip(plan.block.args, values, strict=True))})
        return self.run(plan, env, values)

    def checkpointed(
        self, plan: BlockPlan, op: Op, env: Env, alive: set[Value], *, early_stop: bool
    ) -> list[Any]:
        """Run a block that writes outside tensors, or returns lists, by PyTorch's checkpoint. As
        there, its effects happen twice: in the backward pass it runs again, with `early_stop` up to
        the last saved tensor."""
        read = [env.get(v) for v in plan.inner(op.blocks[0]).live_at[0]]
        devices = {x.device for x in read if isinstance(x, torch.Tensor)} - {CPU}
        del read
        (run,) = self.enter(plan, env, alive, self.run_repeatable, op.blocks)

        # PyTorch saves the random states of its arguments' devices, and the arguments. Empty
        # tensors stand for the block's operands, since the block may write these.
        stand_ins = [torch.empty(0, device=device) for device in devices]
        return torch.utils.checkpoint.checkpoint(  # pyright: ignore[reportUnknownVariableType]
            lambda *_: run([None]), *stand_ins, use_reentrant=False, early_stop=early_stop
        )


_EXECUTOR: Final = KernelExecutor()


class Driver:
    """A Function, ready to be called with positional arguments, captured ones included. `captured`:
    reads the captured values if the function is not a module's method. `differences`: why the
    program was recompiled, if there was an earlier one. `holds`: whether objects outside are as the
    program assumes; None without assumptions. `demands`: assumptions about the operands. `leaves`:
    classes whose methods are inlined because they have no subclasses. `computed`: positions of the
    operands that each call computes before it, such as a parametrized weight."""

    differences: tuple[str, ...] = ()
    leaves: tuple[type[Any], ...] = ()
    captured: Callable[[], tuple[tuple[Any, ...], tuple[Any, ...]]] | None = None
    holds: Callable[[], bool] | None = None
    demands: Demands | None = None
    computed: tuple[int, ...] = ()

    def __init__(
        self,
        function: Function,
        inner: dict[int, BlockPlan] | None = None,
        tiles: Tiles = "usual",
    ) -> None:
        """`inner`: plans of nested blocks, shared with other programs."""
        self.function = function
        counted = statistics(function)
        self._apart = Apart(function, counted)
        aliasing = Aliasing(
            mutates=any(written_by(op) for op in function.walk()),
            changed=may_change(function),
            statistics=Statistics(counted, self._apart.values),
            lent=lent(function),
            returned=returned(function),
        )
        self.plan = BlockPlan(
            function.block, function.name, function.params, aliasing, differentiated(function),
            plain_values(function.block),
        )  # fmt: skip
        rows = zip(function.params[len(function.arguments) :], function.captures, strict=True)
        self.tiles: Tiles = tiles
        self.plan.tiles = tiles
        if inner is not None:
            self.plan.share(inner)
        self.plan.shown.update((v, attribute(path)) for v, path in rows)
        self._first = self.plan.region(0)
        self._shared = Shared(function)
        self._python: Callable[[Sequence[Any]], Any] | None = None  # the whole function, if plain

    def computed_among(self, args: Sequence[Any]) -> frozenset[int]:
        """Return the ids of the operands that each call computes."""
        return frozenset(id(args[k]) for k in self.computed)

    def is_outdated(self) -> bool:
        """Return whether one of `leaves` has been subclassed, or an object outside has changed."""
        is_other = self.holds is not None and not self.holds()
        return is_other or (bool(self.leaves) and has_subclasses(self.leaves))

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run the function. Raises Ineligible, before anything has run, if PyTorch must run it."""
        if self.demands is not None and (why := self.demands.unmet(args)):
            raise Ineligible(why)
        try:
            return self._called(args)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                arena.fail()
            if isinstance(error, torch.OutOfMemoryError):  # of a GPU
                error.add_note(NO_MEMORY)
            raise

    def _called(self, args: Sequence[Any]) -> Any:
        if self._shared.needs_check and torch.is_grad_enabled() and self._shared.overlaps(args):
            return self.run_eager(args)
        if self._apart.needs_check and not self._apart.are(args):
            return self.run_eager(args)
        if self._python is not None:
            return self._python(args)
        first = self._first
        if first is None or function_modes_on():
            return self._run_blocks(args)
        entry: Entry = first.find(args)
        run: Callable[..., tuple[Any, ...]] | None = entry.run
        if run is None or not entry.spec.whole:
            return self._run_blocks(args)
        try:
            return run(args, entry.z, entry.sizes)[0]
        except (CheckFailed, HostFault, KernelFault):
            pass  # so that an error of PyTorch is not raised "during handling of" this one
        except RuntimeError:
            if not _are_of_transforms(args):
                raise
        return self.run_eager(args)

    def planned(self, args: Sequence[Any]) -> Driver:
        """Return the driver for a call with these arguments: itself, unless there is a budget."""
        return self

    def run_eager(self, args: Sequence[Any]) -> Any:
        """Run every op in PyTorch."""
        env = dict(zip(self.function.params, args, strict=True))
        if torch_state.reason():  # then nothing inside an `if` or a loop is compiled either
            return run_block(self.function.block, env)[0]
        _EXECUTOR.eager(self.plan, 0, self.plan.last, env)
        return env[self.function.block.terminator.operands[0]]

    def _run_blocks(self, args: Sequence[Any]) -> Any:
        env = dict(zip(self.function.params, args, strict=True))
        (value,) = self.function.block.terminator.operands
        steps = self.plan.steps
        if steps is None:
            return _EXECUTOR.block(self.plan, env)[0]
        _run_steps(steps, env)
        if (found := self.plan.python.get(0)) is not None and found[1] == self.plan.last:
            self._python = found[0].caller(self.function.params, value)
        return env[value]


def _run_steps(steps: Steps, env: Env) -> None:
    for step, dead in steps:
        step(env)
        for v in dead:
            env.pop(v, None)


def _launch(region: Region, values: Sequence[Any]) -> tuple[Entry, tuple[Any, ...] | None]:
    """Return the region's entry and the results; None if PyTorch must run it."""
    entry = region.find(values)
    if entry.run is None:
        return entry, None
    run = entry.run if entry.donatable is None else region.run_for(entry, values)
    try:
        return entry, run(values, entry.z, entry.sizes)
    except (CheckFailed, HostFault, KernelFault):
        return entry, None  # so that an error of PyTorch is not raised "during handling of" this
    except RuntimeError:
        if not _are_of_transforms(values):
            raise
        return entry, None


def _are_of_transforms(values: Sequence[Any]) -> bool:
    """Return whether a transform has left one of the tensors in a buffer. Such a tensor is a
    wrapper without memory, which PyTorch's ops unwrap."""
    return torch_state.in_transform(v for v in values if isinstance(v, torch.Tensor))
