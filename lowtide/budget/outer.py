"""The outer block of a program with its values: decides which ops may be part of a section.

In: a Driver and the arguments of a call. Out: `Outer`, the ops with their values on the meta
device. It serves both kinds of sections: whether an op may run later or be recomputed, what memory
it writes, and where a run of ops may begin and end.

    y = torch.cumsum(x * 2, 0)         may be part of a section
    print(y)                           may not: it ends a run of ops
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.budget.independence import is_pointwise_write
from lowtide.budget.meta_interpreter import MetaInterpreter
from lowtide.budget.plan_key import fixed_values
from lowtide.execute.candidate import Candidate
from lowtide.execute.cut import Form, Plain, form_of
from lowtide.execute.driver import Driver
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import CHANGING, may_change, written_by
from lowtide.ir.core import Op, Value, free_values, walk
from lowtide.specialise.signature import CPU
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
_STRUCTURE: Final = ("const", "cast", "tuple", "list", "unpack", "py", "math")
_BARRIERS: Final = (
    *(name for name in CHANGING if name != "mutate"),
    "print", "assert", "raise", "use", "with", "undef", "list.append", "list.extend",
)  # fmt: skip


class Outer:
    """See the module's text. `pairs`: tensors of the arguments, on the meta device and real.
    `given`: their memory, by `storage_of`. `single`: memory that only one argument has. `made_at`,
    `nbytes`: for other memory, the op that allocates it and its size. `made_bytes`: bytes that each
    op allocates. `records`: whether gradients are recorded."""

    def __init__(self, driver: Driver, args: Sequence[Any]) -> None:
        self.function = driver.function
        self.ops = driver.plan.ops
        self.last = driver.plan.last
        self.live_at = driver.plan.live_at
        self.changed = driver.plan.aliasing.changed
        self.args = dict(zip(driver.function.params, args, strict=True))
        self.fixed = fixed_values(driver.function, args)
        with torch.no_grad():
            interpreted = MetaInterpreter(driver, args)
        self.known = interpreted.known
        self.on_host = interpreted.device == CPU
        self.records = torch.is_grad_enabled() and any(
            x.requires_grad for given in args for x in tensors_in(given)
        )
        self.pairs = [
            (known, x)
            for v, given in self.args.items()
            for known, x in zip(self.tensors(v), tensors_in(given), strict=False)
        ]
        self._last_write = {s: pos for pos, op in enumerate(self.ops) for s in self.written([op])}
        self._write_alike()
        self._users = Counter(
            s
            for op in self.ops
            for s in {storage_of(x) for v in free_values([op]) for x in self.tensors(v)}
        )
        times = Counter(storage_of(x) for x in {id(x): x for _, x in self.pairs}.values())
        self.single = {storage_of(known) for known, x in self.pairs if times[storage_of(x)] == 1}
        self._apart = self.single - {storage_of(k) for k, x in self.pairs if x.requires_grad}
        outward = [op for op in self.ops if not self.may_be_in(op)]
        self._seen = {storage_of(x) for v in free_values(outward) for x in self.tensors(v)}
        self.given = {storage_of(x) for v in self.args for x in self.tensors(v)}
        self._others = set(self.given)  # memory to which the caller may refer
        self.made_at: dict[int, int] = {}
        self.nbytes: dict[int, int] = {}
        self.made_bytes = [0] * self.last
        for pos, op in enumerate(self.ops[: self.last]):
            self._note_made(pos, op)

    def _note_made(self, pos: int, op: Op) -> None:
        for x in (x for v in op.results for x in self.tensors(v)):
            if storage_of(x) not in self.given and storage_of(x) not in self.made_at:
                self.made_at[storage_of(x)] = pos
                self.nbytes[storage_of(x)] = x.untyped_storage().nbytes()
                self.made_bytes[pos] += self.nbytes[storage_of(x)]
                if not is_torch(op):
                    self._others.add(storage_of(x))

    def _write_alike(self) -> None:
        """Extend writes to all arguments that share memory with a written one."""
        alike: dict[int, set[int]] = {}
        for known, x in self.pairs:
            alike.setdefault(storage_of(x), set()).add(storage_of(known))
        for group in alike.values():
            last = [self._last_write[s] for s in group if s in self._last_write]
            if last:
                self._last_write.update(dict.fromkeys(group, max(last)))

    def inner_bytes(self, run: Candidate) -> int:
        """Return the bytes that these ops allocate and that nothing reads afterwards."""
        given = sum(x.nbytes for v in run.outputs for x in self.tensors(v))
        return max(sum(self.made_bytes[run.start : run.stop]) - given, 0)

    def tensors(self, v: Value) -> list[Tensor]:
        """Return the tensors of a value, on the meta device; none if it is not known."""
        return tensors_in(self.known.get(v))

    def form_of(self, v: Value) -> Form | Plain | None:
        """Return what a plan depends on of a value: sizes, dtype, layout."""
        x = self.known.get(v)
        if isinstance(x, Tensor):
            return form_of(x)
        return Plain(x) if v in self.fixed and not tensors_in(x) else None

    def written(self, ops: Sequence[Op]) -> set[int]:
        """Return the memory that these ops, or ops in their blocks, may write."""
        inner = [o for op in ops for block in op.blocks for o in walk(block)]
        changed = set(may_change(self.function, inner))
        for op in ops:
            is_norm = op.name in opdefs.STATISTICS
            changed.update(self.statistics(op) if is_norm else written_by(op))
        return {storage_of(x) for v in changed for x in self.tensors(v)}

    def statistics(self, op: Op) -> list[Value]:
        """Return the running statistics that the op writes in training."""
        places = opdefs.STATISTICS.get(op.name, ())
        if places and self.known.get(op.operands[opdefs.OF_THE_BATCH]) is False:
            return []
        return [op.operands[k] for k in places]

    def own_statistics(self, op: Op) -> list[Value]:
        """Return those of the running statistics that no other op or argument shares."""
        return [
            v
            for v in self.statistics(op)
            if self.tensors(v)  # else it is not known
            and all(
                self._users[storage_of(x)] == 1 and storage_of(x) in self._apart
                for x in self.tensors(v)
            )
        ]

    def is_written(self, storage: int, start: int) -> bool:
        """Return whether an op from `start` on may write into this memory. For memory of the
        caller, any op counts: the next call may come before the backward pass of this one."""
        start = 0 if storage in self._others else start
        return self._last_write.get(storage, -1) >= start

    def may_be_in(self, op: Op) -> bool:
        """Return whether the op may be part of a section."""
        family = op.name.partition(".")[0]
        if op.blocks or op.name in _BARRIERS or opdefs.writes(op.name):
            return False
        if op.name == "mutate" and not is_pointwise_write(op):
            return False
        if op.name not in ("call_torch", "mutate") and family not in ("torch", *_STRUCTURE):
            return False
        if self._reads_identity(op):
            return False
        return all(v in self.known for v in (*op.operands, *op.results))

    def _reads_identity(self, op: Op) -> bool:
        """Return whether the op reads a tensor's identity, or another fact that differs on a
        part."""
        if op.name in ("py.is", "py.is_not"):
            return all(v.type != t.NONE for v in op.operands)
        gives = any(self.tensors(v) for v in op.results)
        return is_torch(op) and not gives and not opdefs.has_kind(op.name, ("size",))

    def ends(self, start: int, stop: int) -> tuple[list[Value], list[Value]] | None:
        """Return the inputs and results of ops [start, stop), None if they cannot be a section's:
        no lists, and results in memory that is not written afterwards and, if the caller gets them,
        their own."""
        ops = self.ops[start:stop]
        inputs = free_values(ops)
        outputs = [v for op in ops for v in op.results if v in self.live_at[stop]]
        if not outputs or any(_holds_tensors(self.known[v]) for v in (*inputs, *outputs)):
            return None
        held = [storage_of(x) for v in outputs for x in self.tensors(v)]
        made_here = set(held)
        if any(held.count(s) > 1 for s in made_here & self._seen):
            return None  # the caller may write one result and read the other
        given = {storage_of(x) for v in inputs for x in self.tensors(v)}
        if not made_here.isdisjoint(given):
            return None  # a view of an operand
        if not made_here.isdisjoint(self.written(self.ops[stop:])):
            return None  # a joined result is a copy, and autograd forbids writes into it
        return inputs, outputs


def is_torch(op: Op) -> bool:
    """Return whether the op is a function of PyTorch."""
    return op.name == "call_torch" or op.name.startswith("torch.")


def _holds_tensors(value: Any) -> bool:
    """Return whether the value is a container of tensors."""
    return not isinstance(value, Tensor) and bool(tensors_in(value))
