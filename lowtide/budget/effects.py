"""Decides which ops of the outer block may be recomputed, and what that would write.

In: an `Outer`. Out: `Effect`s, one for each op, and the tensors that have a graph behind them.

    y = dropout(conv(x, w))            may be recomputed, with the same random numbers
    y = batch_norm(x, mean, var)       may be recomputed, but writes mean and var
    y = torch.ops.mine.op(x)           unknown

Each op runs once on the meta device, with gradients, under a mode that sees the schemas of all
that it calls. The schemas tell what is written, except for running statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.budget.outer import Outer
from lowtide.execute.candidate import Candidate
from lowtide.ir.core import Op, Value, free_values
from lowtide.ir.interpret import run_op
from lowtide.memory.ledger import Ledger
from lowtide.torch_private.dispatch import schema_of
from lowtide.torch_private.modes import OwnMode
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import base, is_view, storage_of

Tensor = torch.Tensor
_GAINING: Final = ("mutate", "py.call", "py.call_method")  # the tensor written may get a graph
_KNOWN: Final = ("aten", "prims")
# A normalisation writes these arguments, though its schema does not say so …
_RUNNING: Final = ("running_mean", "running_var")
# … unless it uses them in place of the batch's statistics: one of these arguments is False.
_OF_THE_BATCH: Final = ("training", "train", "use_input_stats")


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one op. `writes`: the storages that it changes, by `storage_of`. `repeats`:
    whether the op gives the same results if it is run again."""

    writes: frozenset[int] = frozenset()
    repeats: bool = True


class ObservedEffects:
    """See the module's text."""

    def __init__(self, outer: Outer) -> None:
        self.outer = outer
        self._without_graph = {  # by id; a tensor of unknown origin may have a graph
            id(known) for known, x in outer.pairs if not x.requires_grad
        }
        with Ledger(), torch.enable_grad():
            self.rows = [self._effect(op) for op in outer.ops[: outer.last]]

    def sources(self, run: Candidate) -> tuple[tuple[int, ...], ...]:
        """Return, for each result of a section, the operands that its graph may lead to."""
        found: dict[int, set[int]] = {}
        for k, v in enumerate(run.inputs):
            self._note_sources(v, {k}, found)
        everything = {k for known in found.values() for k in known}
        for op in self.outer.ops[run.start : run.stop]:
            used = (x for v in free_values([op]) for x in self.outer.tensors(v))
            joined = {k for x in used for k in found.get(id(x), ())}
            for v in op.results:
                self._note_sources(v, joined, found)
            if op.name == "mutate":
                written = self._alike(self.outer.tensors(op.operands[0]))
                found |= {name: found.get(name, set()) | joined for name in written}
        for v in run.outputs:
            self._note_sources(v, everything, found)  # results of a loop
        rows = ({k for x in self.outer.tensors(v) for k in found[id(x)]} for v in run.outputs)
        return tuple(map(tuple, rows))

    def _note_sources(self, v: Value, sources: set[int], found: dict[int, set[int]]) -> None:
        for x in self.outer.tensors(v):
            found.setdefault(id(x), sources if self.carries(x) else set())

    def carries(self, value: Any) -> bool:
        """Return whether any tensor in the value may have a graph."""
        return any(id(x) not in self._without_graph for x in tensors_in(value))

    def _effect(self, op: Op) -> Effect:
        """Return the effect of one op; notes which of its results have no graph."""
        known = self.outer.known
        gains = self._gaining(op)
        self._without_graph -= gains
        if not self.outer.may_be_in(op):
            return Effect(repeats=False)
        copies: dict[int, Tensor] = {}
        values = [self._copied(known[v], copies) for v in op.operands]
        origin = {storage_of(copy): storage_of(x) for x, copy in self._pairs(op, copies)}
        env = dict(zip(op.operands, values, strict=True))
        with _Calls() as calls:
            try:
                run_op(op, env)
            except Exception:  # whatever PyTorch raises on the meta device
                return Effect(repeats=False)
        writes = frozenset(origin[s] for s in calls.writes if s in origin)
        if op.name == "mutate":
            return Effect(writes, calls.repeats and not gains)
        results = tensors_in([known[v] for v in op.results])
        made = tensors_in([env[v] for v in op.results])
        if len(results) != len(made):  # a list that changes later
            return Effect(repeats=False)
        pairs = zip(results, made, strict=True)
        self._without_graph |= {id(x) for x, rerun in pairs if not rerun.requires_grad}
        return Effect(writes, calls.repeats)

    def _gaining(self, op: Op) -> set[int]:
        """Return the ids of tensors that get a graph by the op."""
        used = tensors_in([self.outer.known.get(v) for v in free_values([op])])
        if not (op.blocks or op.name in _GAINING) or not self.carries(used):
            return set()
        written = self.outer.written([op])
        return self._alike(x for x in used if storage_of(x) in written) & self._without_graph

    def _alike(self, written: Iterable[Tensor]) -> set[int]:
        """Return the ids of these tensors, of their bases, and of other views of these."""
        roots = {id(_viewed(x)) for x in written}
        found = tensors_in(list(self.outer.known.values()))
        return {id(x) for x in found if id(_viewed(x)) in roots}

    def _copied(self, value: Any, copies: dict[int, Tensor]) -> Any:
        """Return the value with copies of its tensors, which have a graph if the originals do."""
        if isinstance(value, tuple | list):
            elems = [self._copied(v, copies) for v in value]  # pyright: ignore[reportUnknownVariableType]
            return tuple(elems) if isinstance(value, tuple) else elems
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:
            copy = value.detach().clone()
            may = copy.is_floating_point() or copy.is_complex()
            copies[id(value)] = (
                copy.requires_grad_().clone() if may and self.carries(value) else copy
            )
        return copies[id(value)]

    def _pairs(self, op: Op, copies: Mapping[int, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for v in op.operands:
            yield from ((x, copies[id(x)]) for x in self.outer.tensors(v))


def _viewed(x: Tensor) -> Tensor:
    """Return the base of a view, else the tensor itself. `detach` makes no view here."""
    return cast("Tensor", base(x)) if is_view(x) else x


class _Calls(OwnMode):
    """A mode that notes what an op's PyTorch calls write, and whether they can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[int] = set()
        self.repeats = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = dict(zip((a.name for a in schema_of(func).arguments), args, strict=False))
        given |= kwargs or {}
        is_of_batch = all(given.get(name) is not False for name in _OF_THE_BATCH)
        for a in schema_of(func).arguments:
            is_written = a.alias_info is not None and a.alias_info.is_write
            if is_written or (is_of_batch and a.name in _RUNNING):
                self.writes |= {storage_of(x) for x in tensors_in(given.get(a.name))}
        is_own = given.get("generator") is not None  # a recomputation does not restore it
        self.repeats &= func.namespace in _KNOWN and not is_own
        return func(*args, **(kwargs or {}))
