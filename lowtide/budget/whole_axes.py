"""Follows one axis of the arguments through a whole program.

In: an `Outer`, a parameter and a dim. Out: an `Axis`: what is cut, combined, done afterwards.

    d = cdist(a, b)        a cut along 0: d is cut along 0
    m = d.min(1).values    cut along 0
    n = d.min(0).values    combined: the smaller one of the parts
    return m.mean() + n.mean()      m.mean() is combined; n.mean() and the sum are done afterwards

Ops are decided by `independence`, reductions over the axis by `reduced_axes`. As in `find`, each op
also runs on the meta device with a part, whose sizes must be those of a part. An op that neither
can be cut nor combined, and all that read it, are done once, with whole values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from lowtide.budget.find import Finder, Run, differs
from lowtide.budget.independence import Dependent, Needs
from lowtide.budget.outer import Outer, is_torch
from lowtide.budget.reduced_axes import Reduced, reduced_axis, weights_of
from lowtide.budget.torch_rules import rule_of
from lowtide.errors import Loc
from lowtide.execute.cut import ADDED
from lowtide.ir import effects, opdefs
from lowtide.ir.core import Op, Value
from lowtide.memory.ledger import Ledger
from lowtide.passes.ir_queries import makers_of
from lowtide.torch_private.pytree import tensors_in

Tensor = torch.Tensor
_STRUCTURE: Final = ("const", "cast", "tuple", "unpack", "py", "math")
_CHANGING: Final = (
    effects.Effects.DRAWS | effects.Effects.WRITES | effects.Effects.MUTATES | effects.Effects.ACTS
)
_MOST_SEEDS: Final = 16
_SCALED: Final = -2  # in the place of a dim: cut along the last, up to a factor of each part
_WEIGHTED: Final = Reduced(kind="weighted", dim=-1)


@dataclass(slots=True, kw_only=True)
class Axis:
    """`seeds`: parameters that are cut, and the dim of each. `extent`: points of the axis. `cut`:
    the dim along which each tensor is cut, by id. `combined`: ops that reduce the axis. `weights`:
    ops of softmax whose parts are scaled afterwards. `after`: ops that are done once, and why."""

    seeds: Mapping[Value, int]
    extent: int
    cut: dict[int, int] = field(default_factory=dict[int, int])
    combined: dict[Op, Reduced] = field(default_factory=dict[Op, Reduced])
    weights: set[Op] = field(default_factory=set[Op])
    after: dict[Op, str] = field(default_factory=dict[Op, str])

    def first_reason(self) -> tuple[Loc, str] | None:
        """Return where and why the axis ends."""
        return next(((op.loc, why) for op, why in self.after.items() if why), None)


def find_axis(outer: Outer, param: Value, dim: int) -> Axis:
    """Return what becomes of this axis; see the module's text."""
    extent = outer.known[param].shape[dim]
    seeds: dict[Value, int] = {param: dim}
    refused = set[Op]()
    with Ledger(), torch.no_grad():
        for _ in range(_MOST_SEEDS):
            try:
                found = _Follower(outer, seeds, extent, refused).axis()
            except _More as more:
                seeds = {**seeds, **more.seeds}
                continue
            wrong = _read_weights(outer, found)
            if not wrong:
                return found
            refused |= wrong
    raise Dependent("needs many arguments to be cut")


def no_axis(outer: Outer) -> Axis:
    """Return an axis of which nothing is cut: `after` are ops that are done once in any case."""
    with Ledger(), torch.no_grad():
        return _Follower(outer, {}, 1, set()).axis()


class _More(Exception):
    """Another parameter must be cut, too."""

    def __init__(self, seeds: Mapping[Value, int]) -> None:
        super().__init__()
        self.seeds = seeds


class _Follower(Finder):
    def __init__(
        self, outer: Outer, seeds: Mapping[Value, int], extent: int, refused: set[Op]
    ) -> None:
        super().__init__(outer, len(outer.ops) - 1)
        by_id = {id(outer.known[v]): dim for v, dim in seeds.items()}
        self.run = Run(0, by_id, extent=extent)
        self.axis_ = Axis(seeds=seeds, extent=extent, cut=self.run.cut)
        self.refused = refused
        self.makers = makers_of(outer.function)
        self.changes = any(
            opdefs.effects_of(op, self.makers) & effects.Effects.MUTATES
            for op in outer.function.walk()
            if op.name != "call_torch"
        )
        self.params = {id(outer.known[v]): v for v in outer.args}
        self.late = set[Value]()
        for v in outer.args:
            self.run.part[v] = self.part_of(outer.known[v], self.run)

    def axis(self) -> Axis:
        """Follow the axis. Raises _More."""
        for op in self.ops[: self.last]:
            why = self._after(op)
            if why is not None:
                self.axis_.after[op] = why
                self.late.update(op.results)
        return self.axis_

    def _after(self, op: Op) -> str | None:
        """Return None if a part of the op's results follows from parts, else why not; "" if it
        only reads what is late."""
        if not self.late.isdisjoint(op.operands):
            return ""
        if not self._may_be_in(op):
            return "is done once, in its place"
        held = [x for v in op.operands for x in tensors_in(self.known[v])]
        if any(self.axis_.cut.get(id(x)) == _SCALED for x in held):
            return "" if not self._is_weighted(op) else None
        try:
            return self._followed(op, any(id(x) in self.axis_.cut for x in held))
        except Dependent as why:
            return self._combined(op, str(why))

    def _followed(self, op: Op, is_cut: bool) -> str | None:
        is_same = not any(differs(self.known[v], self.run.part[v]) for v in op.operands)
        if not is_cut and is_same:
            if (
                op.name == "call_torch"
                and rule_of(op, [self.known[v] for v in op.operands]) is None
            ):
                return "may be different each time"
            self.run.part.update((v, self.known[v]) for v in op.results)
            return None
        try:
            self.step(op, self.run)
        except Needs as need:
            self._more(need, op)
        made = [x for v in op.results for x in tensors_in(self.known[v])]
        if any(self.axis_.cut.get(id(x)) == ADDED for x in made):
            self.axis_.combined[op] = Reduced(kind="counts")
            self._forget(op)
        return None

    def _combined(self, op: Op, why: str) -> str | None:
        values = [self.known[v] for v in op.operands]
        if op in self.refused or not is_torch(op):
            return why
        try:
            weights_of(op, values, self.axis_.cut)
        except Dependent:
            pass
        else:
            self.axis_.weights.add(op)
            self.axis_.cut[id(self.known[op.result])] = _SCALED
            self.run.part[op.result] = self.run.part[op.operands[0]]
            return None
        try:
            try:
                cut, extent = self.axis_.cut, self.axis_.extent
                self.axis_.combined[op] = reduced_axis(op, values, cut, extent)
            except Needs as need:
                self._more(need, op)
        except Dependent:
            return why
        self._forget(op)
        return None

    def _is_weighted(self, op: Op) -> bool:
        """Return whether the op is `p @ v`, where p is a softmax that is cut along its dim."""
        if op.name not in ("torch.matmul", "torch.mm", "torch.bmm"):
            return False
        p, v = (self.known[x] for x in op.operands)
        if self.axis_.cut.get(id(p)) != _SCALED or p is v or p.dim() < 2 or v.dim() < 2:
            return False
        dim = self.axis_.cut.get(id(v))
        if dim is None:
            self._more(Needs(v, v.dim() - 2), op)
        if dim != v.dim() - 2:
            return False
        self.axis_.combined[op] = _WEIGHTED
        self._forget(op)
        return True

    def _forget(self, op: Op) -> None:
        """Note that readers of combined results are done once."""
        for x in (x for v in op.results for x in tensors_in(self.known[v])):
            self.axis_.cut.pop(id(x), None)
        self.late.update(op.results)

    def _more(self, need: Needs, op: Op) -> None:
        """Raise _More if the argument that needs to be cut, too, can be; else Dependent."""
        found = self.before(need.tensor, need.dim, set(self.params), 0, self.ops.index(op))
        param = None if found is None else self.params[id(found[0])]
        if found is None or param is None or param in self.axis_.seeds:
            raise Dependent("reads the whole of a value")
        tensor, dim = found
        if tensor.shape[dim] != self.axis_.extent:
            raise Dependent("reads an argument of another size")
        raise _More({param: dim})

    def _may_be_in(self, op: Op) -> bool:
        if not self.outer.may_be_in(op) or op.name == "mutate":
            return False
        family = op.name.partition(".")[0]
        if op.name == "call_torch":
            return True
        if family in ("torch", *_STRUCTURE):
            return not opdefs.effects_of(op, self.makers) & _CHANGING
        return op.name in ("list.make", "list.get") and not self.changes


def _read_weights(outer: Outer, axis: Axis) -> set[Op]:
    """Return the ops of softmax whose values are read other than by `combined`."""
    found = set[Op]()
    for op in axis.weights:
        for reader in outer.ops:
            if op.result in reader.operands and axis.combined.get(reader) is not _WEIGHTED:
                found.add(op)
    return found
