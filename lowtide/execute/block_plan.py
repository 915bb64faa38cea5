"""Plans a block before it runs: its regions, its Python parts, and live ranges.

In: a block of a Function, and facts about the whole Function. Out: a `BlockPlan`, whose parts are
computed at their first use. `executor` runs it.

    y = x * 2 + n            region at 0, until the next op
    y[mask] = 0              no region: PyTorch runs it
    if y.sum() > 0: ...      plans of their own for its blocks
    return y.exp()           region at 3
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from lowtide.codegen.host.python_part import PythonPart, is_printable
from lowtide.execute.backend import Tiles
from lowtide.execute.checkpoint import as_section
from lowtide.execute.region import Region
from lowtide.execute.region_state import Aliasing, RegionContext, RegionOps
from lowtide.execute.reuse import owned
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import is_apart
from lowtide.ir.core import Block, Op, Value, free_values, walk
from lowtide.ir.differentiated import makes_within
from lowtide.ir.prepared import Step, prepared
from lowtide.specialise.late_binding import may_bind
from lowtide.specialise.layers import layer_starts
from lowtide.specialise.region_boundaries import ends_region, is_item, static_reason

Env = dict[Value, Any]
Steps = Sequence[tuple[Callable[[Env], object], tuple[Value, ...]]]  # and values dead after each
_GROW: Final = ("list.append", "list.extend")
_ARITHMETIC: Final = ("py.add", "py.sub", "py.mul", "py.floordiv", "py.mod", "py.neg")
_WORTH_A_CALL: Final = 4  # ops in a row
_PLACES: Final = ("torch.getitem", "list.get", "mutate")


class BlockPlan:
    """The regions of one block by position, and which values live where. `python`: see
    `python_part`."""

    def __init__(
        self,
        block: Block,
        name: str,
        live_ins: Sequence[Value],
        aliasing: Aliasing,
        differentiated: frozenset[Value],
        numbers: frozenset[Value],
    ) -> None:
        self.block = block
        self.numbers = numbers
        self.ops = block.ops
        self.name = name
        self.aliasing = aliasing
        self.differentiated = differentiated
        self.shown: dict[Value, str] = {}  # the user's names of captured values
        self.last = len(block.ops) - 1
        self.live_at = _liveness(block)
        self.layers = layer_starts(block, self.live_at)
        self._first_live_ins = list(live_ins)
        self.constants = {op.result: op.attrs["value"] for op in block.ops if op.name == "const"}
        self.is_repeated = False
        self.may_recompute = False  # in a section, which may be computed again to record gradients
        self.tiles: Tiles = "usual"
        self.growing = {v for v in block.args if _is_tensors(v)}
        self.growing |= {op.operands[0] for op in walk(block) if op.name in _GROW}
        self.growing -= {r for op in walk(block) for r in op.results}
        self.grown = {  # extended in a loop or branch, to a length known only at run time
            op.operands[0]
            for outer in block.ops
            for inner in outer.blocks
            for op in walk(inner)
            if op.name in _GROW
        }
        self._regions: dict[int, Region | None] = {}
        self.python: dict[int, tuple[PythonPart, int, tuple[Value, ...]] | None] = {}
        self._steps: dict[int, tuple[Step, tuple[Value, ...]]] = {}  # and values dead after it
        self._straight: dict[tuple[int, int], Steps | None] = {}
        self._until_region: dict[int, tuple[Steps, int]] = {}
        self._inner: dict[int, BlockPlan] = {}
        self.sections: dict[Op, Block] = {}  # of checkpoints, by their `with`
        self._apart: dict[Op, bool] = {}
        self._lock = threading.Lock()

    def region(self, pos: int) -> Region | None:
        """Return the region that begins at `pos`, None if nothing there is compiled."""
        try:
            return self._regions[pos]
        except KeyError:
            with self._lock:
                return self._regions.setdefault(pos, self._region(pos))

    def _region(self, pos: int) -> Region | None:
        first = self.ops[pos]
        if first.name == "mutate" or is_item(first) or self._is_drivers(first, pos):
            return None  # a write to a tensor from outside, or an op for the driver
        if self.differentiated and self._makes_within(pos):
            return None
        end = pos
        while end < self.last and not self._ends(end, pos) and not self._parts(end, pos):
            end += 1
        if not any(_is_work(op, self.numbers, self.is_repeated) for op in self.ops[pos:end]):
            return None
        stop = end + 1 if end == self.last else end
        used = free_values(self.ops[pos:stop])
        live_ins = self._first_live_ins if pos == 0 and self._first_live_ins else used
        aliasing = self.aliasing
        return Region(
            ops=RegionOps(
                block=self.block,
                start=pos,
                end=end,
                is_parted=self._parts(end, pos),
                live_ins=live_ins,
                live_at=self.live_at,
                layers=self.layers,
                owned=owned(self.ops, pos),
            ),
            aliasing=replace(aliasing, returned=frozenset()) if self.is_repeated else aliasing,
            context=RegionContext(
                name=f"{self.name}:{self.ops[pos].loc.line or pos}",
                shown=self.shown,
                tiles=self.tiles,
                is_repeated=self.is_repeated,
                may_recompute=self.may_recompute,
            ),
        )

    def _ends(self, pos: int, start: int) -> bool:
        """Return whether every region from `start` on ends before this op. A list from outside the
        program is not extended inside a region, since its length would be part of the signature."""
        op = self.ops[pos]
        if op.name in _GROW:
            made = {v for earlier in self.ops[start:pos] for v in earlier.results}
            return op.operands[0] not in made
        return bool(ends_region(op)) or self._is_drivers(op, start)

    def _parts(self, pos: int, start: int) -> bool:
        """Return whether a region ends here so that PyTorch's graph has a node for the value."""
        if pos == start or not self.differentiated:
            return False
        made = self.ops[pos - 1].results
        return not self.differentiated.isdisjoint(made) or self._makes_within(pos)

    def _makes_within(self, pos: int) -> bool:
        return makes_within(self.ops[pos], self.differentiated)

    def _is_drivers(self, op: Op, start: int) -> bool:
        """Return whether the driver runs the op rather than a region: `x[i]`, `xs[i]` and `y[i] =
        …` in a loop over i, and a list that grows or has grown before `start`. In a region, i or
        the length would be part of the signature, so that each step or call would compile anew."""
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
        if op.name == "mutate":  # of a value from before the region
            reads = all(op.operands[0] not in earlier.results for earlier in self.ops[start:])
        return reads and any(_is_counted(v, self.constants) for v in op.operands[1:])

    def _chooses_places(self, op: Op) -> bool:
        """Return whether its branches, outside of loops, contain an indexing op that only the
        driver runs."""
        inner = [o for block in op.blocks for o in walk(block)]
        known = {*self.constants, *(o.result for o in inner if o.name == "const")}
        return all(o.name != "loop" for o in inner) and any(
            o.name == "torch.getitem" and any(_is_counted(v, known) for v in o.operands[1:])
            for o in inner
        )

    def _counts_places(self, op: Op) -> bool:
        """Return whether this is an int such as `2 * i + 1` that only the driver's ops or the next
        step use. In a region it would be part of the key by which sizes are looked up."""
        if op.name not in _ARITHMETIC or op.result.type != t.INT:
            return False
        users = [user for user in self.ops if op.result in user.operands]
        return all(
            user.name in _PLACES or user is self.block.terminator or self._counts_places(user)
            for user in users
        )

    def share(self, inner: dict[int, BlockPlan]) -> None:
        """Share the plans of nested blocks with other programs through this dict."""
        self._inner = inner

    def inner(self, block: Block) -> BlockPlan:
        """Return the plan of a nested block."""
        found = self._inner.get(id(block))
        if found is None:
            with self._lock:
                known = self.aliasing, self.differentiated, self.numbers
                made = BlockPlan(block, self.name, (), *known)
                made.shown = self.shown
                made.is_repeated = self.is_repeated or bool(block.args)
                made.may_recompute = self.may_recompute
                made.tiles = self.tiles
                made.constants |= self.constants
                made.growing |= self.growing
                found = self._inner.setdefault(id(block), made)
        return found

    def checkpoint_section(self, op: Op, env: Env) -> Op | None:
        """Return a checkpoint's block as a section, if its results are tensors."""
        if op not in self._apart:
            self._apart[op] = is_apart(op, self.aliasing.changed)
        return as_section(op, env, self.sections) if self._apart[op] else None

    def python_part(self, pos: int) -> tuple[PythonPart, int, tuple[Value, ...]] | None:
        """Return the ops from `pos` on as one Python function, the position after them, and what is
        dead there; None if that would not pay."""
        if pos in self.python:
            return self.python[pos]
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
        return self.python.setdefault(pos, found)

    def step(self, pos: int) -> tuple[Step, tuple[Value, ...]]:
        """Return the function that runs the op at `pos`, which has no blocks, and what is dead
        after it."""
        known = self._steps.get(pos)
        if known is None:
            op = self.ops[pos]
            dead = {v for v in (*op.operands, *op.results) if v not in self.live_at[pos + 1]}
            known = self._steps[pos] = prepared(op), tuple(dead)
        return known

    @cached_property
    def steps(self) -> Steps | None:
        """The functions that run the block, and what is dead after each; None if it has a region or
        control flow."""
        pos = 0
        while pos < self.last:
            if self.region(pos) is not None:
                return None
            part = self.python_part(pos)
            pos = pos + 1 if part is None else part[1]
        return self.straight(0, self.last)

    def straight(self, start: int, stop: int) -> Steps | None:
        """Return the functions that run ops [start, stop) outside of any region, and what is dead
        after each; None if there is control flow."""
        key = start, stop
        if key not in self._straight:
            self._straight[key] = self._functions(start, stop)
        return self._straight[key]

    def until_region(self, pos: int) -> tuple[Steps, int]:
        """Return the functions that run the ops from `pos` on, up to the next region or control
        flow with tensors, and the position there."""
        if pos not in self._until_region:
            end = pos
            while end < self.last and self.region(end) is None:
                part = self.python_part(end)
                if part is None and self.ops[end].blocks:
                    break
                end = end + 1 if part is None else part[1]
            self._until_region[pos] = self._functions(pos, end) or (), end
        return self._until_region[pos]

    def _functions(self, pos: int, stop: int) -> Steps | None:
        found: list[tuple[Callable[[Env], object], tuple[Value, ...]]] = []
        while pos < stop:
            part = self.python_part(pos)
            if part is not None and part[1] <= stop:
                found.append((part[0].run, part[2]))
                pos = part[1]
            elif self.ops[pos].blocks:
                return None
            else:
                found.append(self.step(pos))
                pos += 1
        return found


def _is_tensors(value: Value) -> bool:
    return value.type == t.ListType(t.TENSOR)


def _is_counted(value: Value, constants: Container[Value]) -> bool:
    """Return whether the value may be another int in each step."""
    return value.type == t.INT and value not in constants


def _is_work(op: Op, numbers: Container[Value], is_repeated: bool) -> bool:
    """Return whether a kernel may compute the op. In a loop of the driver, PyTorch makes views and
    `x[indices]` sooner than a region of nothing else is found."""
    if op.blocks:
        within = is_repeated or op.name == "loop"
        return any(_is_work(o, numbers, within) for block in op.blocks for o in block.ops)
    if op.name == "torch.getitem" and op.operands[0] in numbers:
        return False
    if opdefs.has_kind(op.name, ("size", "view") if is_repeated else ("size",)):
        return False
    if op.name == "call_torch":
        return may_bind(op)
    return op.name.startswith("torch.") and not static_reason(op)


def _liveness(block: Block) -> list[set[Value]]:
    """Return for each position the values that ops from there on use; one more entry than ops."""
    live: set[Value] = set()
    found = [live]
    for op in reversed(block.ops):
        live = (live - set(op.results)) | set(free_values([op]))
        found.append(live)
    return found[::-1]
