"""The driver: runs a Function's blocks on real values.

In: a Function and its arguments. Out: the operands of its terminator.

    y = x * 2 + n            Region 0: one kernel
    y[mask] = 0              PyTorch, through the reference interpreter
    if y.sum() > 0: ...      the driver chooses the block, and runs it
    return y.exp()           Region 3

A region ends before an op that is not compiled; after that op the next region has a signature of
its own. A value is released after its last use. If a region's check fails, or its shapes do not fit
together, PyTorch runs the same ops instead, and gives its own error or result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

import torch
import torch.utils.checkpoint

from lowtide.codegen.host.python_part import PythonPart, is_printable, plain_values
from lowtide.diagnostics import stats
from lowtide.execute import eager_threshold
from lowtide.execute.backend import Tiles
from lowtide.execute.checkpoint import as_section
from lowtide.execute.chunks import RunBlock
from lowtide.execute.demands import Demands
from lowtide.execute.differences import attribute
from lowtide.execute.host_code import CheckFailed, HostFault
from lowtide.execute.mutation import Shared, statistics
from lowtide.execute.region import Region
from lowtide.execute.reuse import owned
from lowtide.execute.saved_products import RECALLED, run_recalled
from lowtide.execute.section import run_section
from lowtide.execute.specialisations import Entry
from lowtide.frontend.script.leaves import has_subclasses
from lowtide.ir import types as t
from lowtide.ir.aliases import is_apart, lent, may_change, returned, written_by
from lowtide.ir.core import Block, Function, Op, Value, free_values, walk
from lowtide.ir.differentiated import differentiated, makes_within
from lowtide.ir.interpret import Entered, run_block, suppressed
from lowtide.ir.prepared import Step, prepared
from lowtide.ir.recomputed import Recomputed
from lowtide.memory import watching
from lowtide.memory.available import is_out_of_memory
from lowtide.runtime import arena
from lowtide.runtime.blocks import KernelFault
from lowtide.specialise.region_boundaries import ends_region, static_reason
from lowtide.specialise.signature import CPU, Ineligible
from lowtide.torch_private import torch_state
from lowtide.torch_private.modes import function_modes_on

Env = dict[Value, Any]
_GROW: Final = ("list.append", "list.extend")
_ARITHMETIC: Final = ("py.add", "py.sub", "py.mul", "py.floordiv", "py.mod", "py.neg")
_WORTH_A_CALL: Final = 4  # ops in a row
_PLACES: Final = ("torch.getitem", "list.get", "mutate")
NO_MEMORY: Final = (
    "lowtide: `memory(…)` of the compiled function names what is alive at the peak, with nothing "
    'run; `budget="8GB"` where it is compiled keeps a call to that, or refuses it before it runs'
)


class BlockPlan:
    """What the driver knows of one block: its regions by position, and which values live where."""

    def __init__(
        self,
        block: Block,
        name: str,
        mutates: bool,
        live_ins: Sequence[Value],
        changed: frozenset[Value],
        statistics: frozenset[Value],
        lent: frozenset[Value],
        returned: frozenset[Value],
        differentiated: frozenset[Value],
        numbers: frozenset[Value],
    ) -> None:
        self.block = block
        self.numbers = numbers
        self.ops = block.ops
        self.name = name
        self.mutates = mutates
        self.changed = changed
        self.statistics = statistics
        self.lent = lent
        self.returned = returned
        self.differentiated = differentiated
        self.shown: dict[Value, str] = {}  # what the user calls captured values
        self.last = len(block.ops) - 1
        self.live_at = _liveness(block)
        self._first_live_ins = list(live_ins)
        self.constants = {op.result: op.attrs["value"] for op in block.ops if op.name == "const"}
        self.is_repeated = False
        self.tiles: Tiles = "usual"
        self.growing = {v for v in block.args if _is_tensors(v)}
        self.growing |= {op.operands[0] for op in walk(block) if op.name in _GROW}
        self.growing -= {r for op in walk(block) for r in op.results}
        self.grown = {  # in a loop or branch, to a length that the run decides
            op.operands[0]
            for outer in block.ops
            for inner in outer.blocks
            for op in walk(inner)
            if op.name in _GROW
        }
        self._regions: dict[int, Region | None] = {}
        self._python: dict[int, tuple[PythonPart, int, tuple[Value, ...]] | None] = {}
        self._steps: dict[int, tuple[Step, tuple[Value, ...]]] = {}  # and what is dead after it
        self._inner: dict[int, BlockPlan] = {}
        self.sections: dict[Op, Block] = {}  # those made of ops when they are run
        self._apart: dict[Op, bool] = {}
        self._lock = threading.Lock()

    def region(self, pos: int) -> Region | None:
        """The region that begins at `pos`, None where there is nothing to compile."""
        try:
            return self._regions[pos]
        except KeyError:
            with self._lock:
                return self._regions.setdefault(pos, self._region(pos))

    def _region(self, pos: int) -> Region | None:
        if self.ops[pos].name == "mutate" or self._is_drivers(self.ops[pos], pos):
            return None  # of a tensor from outside
        if self.differentiated and self._makes_within(pos):
            return None
        end = pos
        while end < self.last and not self._ends(end, pos) and not self._parts(end, pos):
            end += 1
        if not any(_is_work(op, self.numbers) for op in self.ops[pos:end]):
            return None
        stop = end + 1 if end == self.last else end
        used = free_values(self.ops[pos:stop])
        live_ins = self._first_live_ins if pos == 0 and self._first_live_ins else used
        return Region(
            block=self.block,
            start=pos,
            end=end,
            is_parted=self._parts(end, pos),
            live_ins=live_ins,
            live_at=self.live_at,
            mutates=self.mutates,
            changed=self.changed,
            statistics=self.statistics,
            lent=self.lent,
            returned=frozenset() if self.is_repeated else self.returned,
            name=f"{self.name}:{self.ops[pos].loc.line or pos}",
            shown=self.shown,
            owned=owned(self.ops, pos),
            tiles=self.tiles,
            is_repeated=self.is_repeated,
        )

    def _ends(self, pos: int, start: int) -> bool:
        """Whether every region from `start` on ends here; to a list from outside nothing is added,
        so that its growth makes no new signature."""
        op = self.ops[pos]
        if op.name in _GROW:
            made = {v for earlier in self.ops[start:pos] for v in earlier.results}
            return op.operands[0] not in made
        return bool(ends_region(op)) or self._is_drivers(op, start)

    def _parts(self, pos: int, start: int) -> bool:
        """Whether a region from `start` on ends here, for the graph of PyTorch's sake."""
        if pos == start or not self.differentiated:
            return False
        made = self.ops[pos - 1].results
        return not self.differentiated.isdisjoint(made) or self._makes_within(pos)

    def _makes_within(self, pos: int) -> bool:
        return makes_within(self.ops[pos], self.differentiated)

    def _is_drivers(self, op: Op, start: int) -> bool:
        """x[i], xs[i] and y[i] = … in a loop over i, and a list that grows or, before `start`, has
        grown: the driver runs these, so that neither i nor a length is in a signature, of which
        each step, or call, would have its own."""
        if not op.blocks and not self.grown.isdisjoint(op.operands):
            made = {v for later in self.ops[start:] for v in later.results}
            if not self.grown.isdisjoint(v for v in op.operands if v not in made):
                return True
        if not self.is_repeated:
            return False
        if self._counts_places(op) or (op.name == "if" and self._chooses_places(op)):
            return True
        if (op.blocks or op.name.startswith(("list.", "py."))) and not self.growing.isdisjoint(
            free_values([op])
        ):
            return True
        reads = op.name in ("torch.getitem", "list.get")
        if op.name == "mutate":  # of what was made before
            reads = all(op.operands[0] not in earlier.results for earlier in self.ops[start:])
        return reads and any(_is_counted(v, self.constants) for v in op.operands[1:])

    def _chooses_places(self, op: Op) -> bool:
        """Is in its branches, and in no loop there, what the driver runs because of a place?"""
        inner = [o for block in op.blocks for o in walk(block)]
        known = {*self.constants, *(o.result for o in inner if o.name == "const")}
        return all(o.name != "loop" for o in inner) and any(
            o.name == "torch.getitem" and any(_is_counted(v, known) for v in o.operands[1:])
            for o in inner
        )

    def _counts_places(self, op: Op) -> bool:
        """`2 * i + 1` of which only the driver's ops know, or the next step: an int that a region
        takes is part of the key by which its sizes are looked up."""
        if op.name not in _ARITHMETIC or op.result.type != t.INT:
            return False
        users = [user for user in self.ops if op.result in user.operands]
        return all(
            user.name in _PLACES or user is self.block.terminator or self._counts_places(user)
            for user in users
        )

    def share(self, inner: dict[int, BlockPlan]) -> None:
        """From now on plans of nested blocks are taken from there, and added there."""
        self._inner = inner

    def inner(self, block: Block) -> BlockPlan:
        """The plan of a nested block."""
        found = self._inner.get(id(block))
        if found is None:
            with self._lock:
                known = self.changed, self.statistics, self.lent, self.returned
                known = *known, self.differentiated, self.numbers
                made = BlockPlan(block, self.name, self.mutates, (), *known)
                made.shown = self.shown
                made.is_repeated = self.is_repeated or bool(block.args)
                made.tiles = self.tiles
                made.constants |= self.constants
                made.growing |= self.growing
                found = self._inner.setdefault(id(block), made)
        return found

    def again(self, op: Op, env: Env) -> Op | None:
        """A checkpoint's block as a section, if what it gives are tensors for themselves."""
        if op not in self._apart:
            self._apart[op] = is_apart(op, self.changed)
        return as_section(op, env, self.sections) if self._apart[op] else None

    def run(self, env: Env) -> list[Any]:
        """Runs the block; `env` has its live-ins, and is used up."""
        pos = 0
        while pos < self.last:
            region = self.region(pos)
            if region is not None:
                stop = self._run_region(region, pos, env)
                if isinstance(stop, list):
                    return stop
                if stop < 0:  # no op is left to PyTorch there
                    pos = ~stop
                    continue
                pos = stop
            pos = self._advance(pos, self.last, env)
        return [env[v] for v in self.block.terminator.operands]

    def _run_region(self, region: Region, pos: int, env: Env) -> int | list[Any]:
        """Runs what is compiled from `pos` on. Gives the results if that was all; else the position
        of the op that the driver has to run, or `~position` of where the next region begins."""
        values = [env[v] for v in region.live_ins]
        try:
            if function_modes_on():
                with watching.aside():
                    entry, results = _launch(region, values)
                watching.told(results)
            else:
                entry, results = _launch(region, values)
        except Ineligible:
            return ~self.run_eager(pos, region.end, env)
        spec = entry.spec
        del values
        if entry.eager == eager_threshold.WHY:
            return ~self._run_ops(pos, region.end, env)
        if entry.run is None:
            return ~self.run_eager(pos, region.end, env) if entry.eager else pos
        if results is None:
            return ~self.run_eager(pos, min(spec.stop, self.last), env)
        if spec.finished:
            return list(results)
        for v in spec.dead:
            del env[v]
        env.update(zip(spec.results, results, strict=True))
        return spec.stop if spec.reason else ~spec.stop

    def run_eager(self, start: int, stop: int, env: Env) -> int:
        """PyTorch runs ops [start, stop), which kernels cannot; gives `stop`."""
        stats.count("regions_eager")
        return self._run_ops(start, stop, env)

    def _run_ops(self, start: int, stop: int, env: Env) -> int:
        pos = start
        while pos < stop:
            pos = self._advance(pos, stop, env)
        return stop

    def _advance(self, pos: int, stop: int, env: Env) -> int:
        """Runs the op at `pos` outside of any region, and those after it that are one Python
        function with it; gives the position of the next one."""
        try:
            found = self._python[pos]
        except KeyError:
            found = self._python_part(pos)
        if found is None or found[1] > stop:
            self.run_op(pos, env)
            return pos + 1
        part, end, dead = found
        part.run(env)
        for v in dead:
            env.pop(v, None)
        return end

    def _python_part(self, pos: int) -> tuple[PythonPart, int, tuple[Value, ...]] | None:
        """Ops from `pos` on that are run as a Python function, the position after them, and what
        is dead there; None where it would not pay."""
        end = pos
        while end < self.last and (end == pos or self.region(end) is None):
            if not is_printable(self.ops[end], self.numbers):
                break
            end += 1
        ops = self.ops[pos:end]
        if any(op.blocks for op in ops) or len(ops) >= _WORTH_A_CALL:
            alive = self.live_at[end]
            results = [v for op in ops for v in op.results if v in alive]
            part = PythonPart(ops, results, self.constants)
            dead = tuple(v for v in part.inputs if v not in alive)
            found = part, end, dead
        else:
            found = None
        return self._python.setdefault(pos, found)

    def run_op(self, pos: int, env: Env) -> None:
        """Runs one op outside of any region, then drops what nobody uses any more."""
        op = self.ops[pos]
        if not op.blocks:
            self._run_plain(pos, env)
            return
        alive = self.live_at[pos + 1]
        if op.name == "if":
            results = self._if(op, env, alive)
        elif op.name == "loop":
            results = self._loop(op, env, alive)
        elif op.name == "with":
            results = self._with(op, env, alive)
        elif op.name == RECALLED:
            results = run_recalled(op, env)
        else:
            results = self._section(op, env, alive)
        env.update(zip(op.results, results, strict=True))
        _drop(env, alive, op.results)

    def _run_plain(self, pos: int, env: Env) -> None:
        known = self._steps.get(pos)
        if known is None:
            op = self.ops[pos]
            dead = {v for v in (*op.operands, *op.results) if v not in self.live_at[pos + 1]}
            known = self._steps[pos] = prepared(op), tuple(dead)
        step, dead = known
        step(env)
        for v in dead:
            env.pop(v, None)

    def _if(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        plan = self.inner(op.blocks[0 if env[op.operands[0]] else 1])
        inner = {v: env[v] for v in plan.live_at[0]}
        _drop(env, alive, tuple(env))
        return plan.run(inner)

    def _loop(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        trips, going, *carried = (env[v] for v in op.operands)
        (block,) = op.blocks
        plan = self.inner(block)
        outer = {v: env[v] for v in plan.live_at[0] if v in env}
        _drop(env, alive, tuple(env))
        i = 0
        while i < trips and going:
            inner = {**outer, **dict(zip(block.args, (i, *carried), strict=True))}
            carried.clear()
            going, *carried = plan.run(inner)
            i += 1
        return carried

    def _section(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        runs = [self._runner(block) for block in op.blocks]
        values = [env[v] for v in op.operands]
        _drop(env, alive, op.operands)
        with watching.aside():
            results = run_section(op, values, runs)
        watching.told(results)
        return results

    def _runner(self, block: Block) -> RunBlock:
        plan = self.inner(block)
        return lambda given: plan.run(dict(zip(block.args, given, strict=True)))

    def _with(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        manager = env[op.operands[0]]
        if isinstance(manager, Recomputed) and manager.records():
            section = self.again(op, env)
            if section is not None:
                return self._section(section, env, alive)
            return self._checkpointed(op, env, alive, early_stop=manager.early_stop)
        block, *leaving = op.blocks
        plan = self.inner(block)
        inner = {v: env[v] for v in plan.live_at[0] if v in env}
        if leaving:
            manager = Entered(manager, self._leaving(leaving[0], env))
        _drop(env, alive, tuple(env))
        with manager as entered:
            inner[block.args[0]] = entered
            if torch_state.reason():  # the manager is a mode of PyTorch's, say
                return run_block(block, inner)
            return plan.run(inner)
        raise suppressed(op)

    def _checkpointed(self, op: Op, env: Env, alive: set[Value], *, early_stop: bool) -> list[Any]:
        """A block that writes what is outside of it, or hands over lists, as PyTorch's checkpoint
        runs it: what it does, it does a second time in the backward pass, up to the last tensor
        that is saved with `early_stop`, as without `use_reentrant`."""
        (block,) = op.blocks
        plan = self.inner(block)
        outer = {v: env[v] for v in plan.live_at[0] if v in env}
        _drop(env, alive, tuple(env))

        def run(*_: Any) -> list[Any]:
            return plan.run({**outer, block.args[0]: None})

        # What is handed over tells whose random state is kept. It is saved, too, so that it must
        # not be what the block writes.
        devices = {x.device for x in outer.values() if isinstance(x, torch.Tensor)} - {CPU}
        told = [torch.empty(0, device=device) for device in devices]
        return torch.utils.checkpoint.checkpoint(  # pyright: ignore[reportUnknownVariableType]
            run, *told, use_reentrant=False, early_stop=early_stop
        )

    def _leaving(self, block: Block, env: Env) -> Callable[..., object]:
        plan = self.inner(block)
        outer = {v: env[v] for v in plan.live_at[0] if v in env}

        def leave(*error: object) -> object:
            return plan.run({**outer, **dict(zip(block.args, error, strict=True))})[0]

        return leave


class Driver:
    """A Function, ready to be called with positional arguments, captured ones included; `captured`
    reads these, where it is no module's method. `differences`: what the program was compiled anew
    for, if another was before it. `holds`: whether what lies outside is as the program
    assumes, None if it assumes nothing of it. `demands`: what it assumes of its operands. `leaves`:
    classes whose methods it has inlined, since none is derived from them."""

    differences: tuple[str, ...] = ()
    leaves: tuple[type[Any], ...] = ()
    captured: Callable[[], tuple[tuple[Any, ...], tuple[Any, ...]]] | None = None
    holds: Callable[[], bool] | None = None
    demands: Demands | None = None

    def __init__(
        self,
        function: Function,
        inner: dict[int, BlockPlan] | None = None,
        tiles: Tiles = "usual",
    ) -> None:
        """`inner`: plans of nested blocks that other programs have, too."""
        self.function = function
        mutates = any(written_by(op) for op in function.walk())
        self.plan = BlockPlan(
            function.block, function.name, mutates, function.params, may_change(function),
            statistics(function), lent(function), returned(function), differentiated(function),
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

    def is_outdated(self) -> bool:
        """Whether a class was derived from one whose methods the program has inlined, or something
        that lies outside is no longer what it was."""
        is_other = self.holds is not None and not self.holds()
        return is_other or (bool(self.leaves) and has_subclasses(self.leaves))

    def __call__(self, args: Sequence[Any]) -> Any:
        """Runs the function; raises Ineligible, before anything ran, if PyTorch must do it."""
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
        if torch.is_grad_enabled() and self._shared.seen(args):
            return self.run_eager(args)
        first = self._first
        if first is None or function_modes_on():
            return self._walk(args)
        entry: Entry = first.find(args)
        run: Callable[..., tuple[Any, ...]] | None = entry.run
        if run is None or not entry.spec.whole:
            return self._walk(args)
        try:
            return run(args, entry.z, entry.sizes)[0]
        except (CheckFailed, HostFault, KernelFault):
            pass  # PyTorch's own error shall not be "during handling of" ours
        return self.run_eager(args)

    def planned(self, args: Sequence[Any]) -> Driver:
        """The driver that runs a call with these arguments: itself, unless there is a budget."""
        return self

    def run_eager(self, args: Sequence[Any]) -> Any:
        """PyTorch runs every op, as it must where gradients are recorded."""
        env = dict(zip(self.function.params, args, strict=True))
        if torch_state.reason():  # then nothing inside an `if` or a loop is compiled either
            return run_block(self.function.block, env)[0]
        self.plan.run_eager(0, self.plan.last, env)
        return env[self.function.block.terminator.operands[0]]

    def _walk(self, args: Sequence[Any]) -> Any:
        env = dict(zip(self.function.params, args, strict=True))
        return self.plan.run(env)[0]


def _is_tensors(value: Value) -> bool:
    return value.type == t.ListType(t.TENSOR)


def _is_counted(value: Value, constants: Container[Value]) -> bool:
    """May it be another int in each step?"""
    return value.type == t.INT and value not in constants


def _is_work(op: Op, numbers: Container[Value]) -> bool:
    if op.blocks:
        return any(_is_work(inner, numbers) for block in op.blocks for inner in block.ops)
    if op.name == "torch.getitem" and op.operands[0] in numbers:
        return False
    return op.name.startswith("torch.") and not static_reason(op)


def _launch(region: Region, values: Sequence[Any]) -> tuple[Entry, tuple[Any, ...] | None]:
    """What the region compiled to, and its results; None where PyTorch is to run it."""
    entry = region.find(values)
    if entry.run is None:
        return entry, None
    run = entry.run if entry.dying is None else region.run_for(entry, values)
    try:
        return entry, run(values, entry.z, entry.sizes)
    except (CheckFailed, HostFault, KernelFault):
        return entry, None  # PyTorch's own error shall not be "during handling of" ours
    except RuntimeError:
        # What a transform has left in a buffer has no memory; PyTorch's ops see what it wraps.
        if not torch_state.in_transform(v for v in values if isinstance(v, torch.Tensor)):
            raise
        return entry, None


def _drop(env: Env, alive: set[Value], candidates: Sequence[Value]) -> None:
    for v in candidates:
        if v not in alive:
            env.pop(v, None)


def _liveness(block: Block) -> list[set[Value]]:
    """For each position, the values that ops from there on use; one more entry than ops, empty."""
    live: set[Value] = set()
    found = [live]
    for op in reversed(block.ops):
        live = (live - set(op.results)) | set(free_values([op]))
        found.append(live)
    return found[::-1]
