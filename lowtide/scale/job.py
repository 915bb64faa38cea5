"""The tasks of one call: the parts that each reads, and what becomes of its results.

In: a `ChunkPlan`, the sources of the arguments, and places for the results. Out: the parts of each
task; after `collect` of all tasks, the result of the call.

    for index in job.todo():
        job.collect(index, driver(job.parts(index)))
    job.finish()
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch

from lowtide.budget.drivers import make_driver
from lowtide.errors import LowtideError
from lowtide.execute.options import Options
from lowtide.ir.core import print_function
from lowtide.scale.arrays import Sink, Slices, Source, checksum, flush_store, is_array
from lowtide.scale.chunk_plan import ChunkPlan, Index
from lowtide.scale.combine import Parts, Tree, finished, merge, wider
from lowtide.scale.cutting import Join
from lowtide.scale.record import Record

Tensor = torch.Tensor
PartKey: TypeAlias = tuple[int, Index]  # a parameter, and its position along the axes that cut it
Place: TypeAlias = tuple[int, int]  # a join, and one of its values


class Job:
    """See the module's text. `out`: the caller's places for results, None for those in memory."""

    def __init__(
        self,
        plan: ChunkPlan,
        sources: Mapping[int, Source],
        values: Sequence[Any],
        out: Sequence[Any] | None,
    ) -> None:
        self.plan, self.split = plan, plan.cutting
        self.sources, self.values = sources, values
        self.out = out
        self.sinks: dict[Place, Sink] = {}
        self.buffers: dict[Place, Tensor] = {}
        self.trees: dict[tuple[int, Index], Tree] = {}
        self._open(out or ())
        self.record = self._record()

    def _open(self, out: Sequence[Any]) -> None:
        """Open the caller's places for results."""
        rows = zip(self.split.direct, self.split.returned, out, strict=bool(out))
        for place, form, array in rows:
            if array is None:
                continue
            if not isinstance(form, Tensor):
                raise LowtideError("out: the function returns something else than tensors")
            sink = Sink(array, form)
            if place is not None:  # else it is written by `finish`
                self.sinks[place] = sink

    # -- what is already there --

    def _record(self) -> Record | None:
        """Return the record beside `out`, if all results of tasks go there."""
        places = {(j, i) for j, join in enumerate(self.split.joins) for i in range(len(join.forms))}
        if not self.sinks or places != set(self.sinks) or not self._is_aligned():
            return None
        return Record.beside([s.array for s in self.sinks.values()], self._digest())

    def _is_aligned(self) -> bool:
        """Return whether no two parts lie in one chunk of a store, which is written as a whole."""
        sizes, extents = self.plan.sizes, tuple(self.plan.axes.values())
        return all(
            sizes[k] == extents[k]
            or (sizes[k] * (join.forms[i].shape[dim] // extents[k])) % sink.chunks[dim] == 0
            for (j, i), sink in self.sinks.items()
            for join in [self.split.joins[j]]
            for k, dim in join.cuts.items()
        )

    def _digest(self) -> str:
        """Return a digest of all that decides the results, other than the arrays' contents."""
        text = print_function(self.split.task, locs=False)
        forms = [(p, tuple(s.like.shape), str(s.like.dtype)) for p, s in self.sources.items()]
        others = [repr(v) for k, v in enumerate(self.values) if k not in self.sources]
        facts = (text, forms, others, tuple(self.plan.axes.values()), self.plan.sizes)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def todo(self) -> list[Index]:
        """Return the tasks whose results are not in `out` yet."""
        indices = list(self.plan.indices()) if self.split.joins else []
        if self.record is None:
            return indices
        done = [index for index in indices if self._is_done(index)]
        for key in {key for index in done for key in self.keys(index)}:
            if not self.record.has_part(_text(key), checksum(self.part(key))):
                self.record.clear()  # an argument is another one
                return indices
        return [index for index in indices if not self._is_done(index)]

    def _is_done(self, index: Index) -> bool:
        assert self.record is not None
        keys = (self.key_of(j, join, index) for j, join in enumerate(self.split.joins))
        return all(key is None or self.record.has(_text(key)) for key in keys)

    # -- arguments --

    def keys(self, index: Index) -> list[PartKey]:
        """Return the parts of arrays that a task reads."""
        return [
            (p, tuple(index[k] for k in self.split.cuts[p]))
            for p in self.split.inputs
            if p in self.sources
        ]

    def part(self, key: PartKey) -> Tensor:
        """Return a part of an array."""
        part = self.sources[key[0]].part(self.slices(key))
        if self.record is not None:
            self.record.note_part(_text(key), checksum(part))
        return part

    def slices(self, key: PartKey) -> Slices:
        """Return where a part is in its array."""
        p, position = key
        where = [slice(None)] * self.sources[p].like.dim()
        for (k, dim), at in zip(self.split.cuts[p].items(), position, strict=True):
            where[dim] = self.plan.span(k, at)
        return tuple(where)

    def arguments(self, parts: Mapping[PartKey, Any], index: Index) -> list[Any]:
        """Return the arguments of a task, given its parts."""
        by_param = {key[0]: parts[key] for key in self.keys(index)}
        return [by_param.get(p, self.values[p]) for p in self.split.inputs]

    # -- results --

    def key_of(self, j: int, join: Join, index: Index) -> tuple[int, Index] | None:
        """Return which part of a join's values the task computes; None if another task gives the
        same."""
        others = (at for k, at in enumerate(index) if k not in join.cuts and k not in join.reduced)
        return None if any(others) else (j, tuple(index[k] for k in join.cuts))

    def collect(self, index: Index, results: Sequence[Tensor]) -> None:
        """Take the results of a task."""
        for j, join in enumerate(self.split.joins):
            key = self.key_of(j, join, index)
            if key is None:
                continue
            parts: Parts = tuple(results[k] for k in join.outputs)
            if join.reduced:
                found = self._combined(key, join, index, parts)
                if found is None:
                    continue
                parts = found
            else:
                parts = tuple(parts[k] for k in join.taken)
            for i, part in enumerate(parts):
                self._place((j, i), join, key[1], part)
            if self.record is not None:
                self.record.note(_text(key))

    def _combined(
        self, key: tuple[int, Index], join: Join, index: Index, parts: Parts
    ) -> Parts | None:
        """Return the combined values, once all parts are there."""
        grid, position = self.plan.grid, 0
        for k in join.reduced:
            position = position * grid[k] + index[k]
        tree = self.trees.get(key)
        if tree is None:
            count = 1
            for k in join.reduced:
                count *= grid[k]
            tree = self.trees[key] = Tree(count, lambda a, b: merge(join.rule, a, b))
        axis = join.reduced[0]
        tree.add(position, wider(join.rule, parts, self.plan.span(axis, index[axis]).start))
        if tree.result is None:
            return None
        del self.trees[key]
        return finished(join.rule, tree.result, join.taken, join.forms, join.divide)

    def _place(self, place: Place, join: Join, position: Index, part: Tensor) -> None:
        form = join.forms[place[1]]
        where = self.result_slices(join, form, position)
        if place in self.sinks:
            self.sinks[place].write(where, part)
        elif not join.cuts:
            self.buffers[place] = part
        else:
            if place not in self.buffers:
                self.buffers[place] = torch.empty(form.shape, dtype=form.dtype)
            self.buffers[place][where].copy_(part)

    def result_slices(self, join: Join, form: Tensor, position: Index) -> Slices:
        """Return where a part of a result is: one point of an axis may be several rows."""
        where = [slice(None)] * form.dim()
        for (k, dim), at in zip(join.cuts.items(), position, strict=True):
            span, extent = self.plan.span(k, at), tuple(self.plan.axes.values())[k]
            times = form.shape[dim] // extent
            where[dim] = slice(span.start * times, span.stop * times)
        return tuple(where)

    # -- the end --

    def finish(self) -> Any:
        """Return the result of the call: what the function returns, or `out`. Raises OSError if a
        store cannot be written."""
        result = self._finished()
        for array in self.out or ():
            flush_store(array)
        if self.record is not None:
            self.record.remove()
        return result

    def _finished(self) -> Any:
        if self.out is not None and all(place is not None for place in self.split.direct):
            found = [
                self.buffers[cast("Place", place)] if array is None else array
                for place, array in zip(self.split.direct, self.out, strict=True)
            ]
            return found[0] if self.split.is_single else tuple(found)
        given: list[Any] = [
            self.buffers[place]
            if place in self.buffers
            else self.sinks[place].read((slice(None),) * self._dim(place))
            for place in self.split.read
        ]
        for p in self.split.whole:
            source = self.sources.get(p)
            given.append(
                self.values[p]
                if source is None
                else source.part((slice(None),) * source.like.dim())
            )
        result = make_driver(self.split.finish, Options())(given)
        return result if self.out is None else self._written(result)

    def _dim(self, place: Place) -> int:
        return self.split.joins[place[0]].forms[place[1]].dim()

    def _written(self, result: Any) -> Any:
        """Write what is computed at the end, and return `out`."""
        assert self.out is not None
        leaves = [result] if self.split.is_single else list(result)
        rows = zip(self.split.direct, self.out, leaves, strict=True)
        found = list[Any]()
        for place, array, leaf in rows:
            if array is not None and place is None:
                Sink(array, leaf).write((slice(None),) * leaf.dim(), leaf)
            found.append(leaf if array is None else array)
        return found[0] if self.split.is_single else tuple(found)


def _text(key: tuple[int, Index]) -> str:
    return f"{key[0]}:{','.join(map(str, key[1]))}"


def places_of(out: Any, count: int, is_single: bool) -> list[Any] | None:
    """Return the caller's places for results, one for each. Raises LowtideError."""
    if out is None:
        return None
    if is_single:
        if not is_array(out):
            raise LowtideError(
                f"out: a {type(out).__name__} is not an array; write instead: one tensor or array, "
                "as the function returns one"
            )
        return [out]
    if not isinstance(out, tuple | list) or len(cast("Sequence[Any]", out)) != count:
        raise LowtideError(f"out: the function returns {count} results; give a tuple of as many")
    return list(cast("Sequence[Any]", out))
