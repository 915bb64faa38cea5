"""Plans the chunks of a call: which axes are cut, how large parts are, how results combine.

In: a function, its arguments or their forms, a budget. Out: a `ChunkPlan`; nothing is run.

    plan = lt.plan_chunks(chamfer, a, b, budget="200MB")
    plan.tasks, plan.chunk_shape          16, {"a.shape[0]": 500000, "b.shape[0]": 500000}

Each set of axes is tried with parts as large as the budget allows, by the peak that the dry run of
a part predicts. The set and the sizes that move the fewest bytes win.
"""

from __future__ import annotations

import heapq
import html
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lowtide.budget.drivers import make_driver
from lowtide.budget.dry_run import DryRun
from lowtide.budget.outer import Outer
from lowtide.budget.torch_rules import Dependent
from lowtide.budget.whole_axes import Axis, find_axis
from lowtide.errors import BudgetError
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.scale.arrays import Source
from lowtide.scale.combine import wider
from lowtide.scale.cutting import Cutting, Join, cutting

Tensor = torch.Tensor
Index = tuple[int, ...]
_MOST_DIMS: Final = 4
_MOST_AXES: Final = 6
_MOST_CUT: Final = 3
_TASK_BYTES: Final = 1 << 20  # a task costs as much as to move this
_WORK: Final = 0.25  # bytes moved that are as slow as a byte that is computed
_WITH_GRADIENT: Final = ("sum", "min.dim", "max.dim", "logsumexp")
_REWRITTEN: Final = 3  # a part of a stored chunk: it is read, and written again
_ROUND: Final = 64
_FEWER: Final = 4  # by how much fewer tasks are tried if there cannot be as many
_SHARES: Final = 8  # of the way from whole sizes to 1, on a logarithmic scale
_BISECTIONS: Final = 5
_UNKNOWN: Final = 1 << 62
_ENOUGH: Final = 1.25  # times the bytes of arguments and results: more axes are not tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkPlan:
    """The chunks of one call.

    `tasks`: their number. `axes`: sizes that are cut, by the user's expression for each.
    `chunk_shape`: the size of a part along each axis. `task_peak_bytes`: the most that one task
    allocates: parts that are loaded, temporaries and results. `combine`: for each result or
    intermediate value that is combined, its source line and how. `finish_peak_bytes`: what is
    allocated after the tasks, by what is done once. `moved_bytes`: read and written by all tasks.
    """

    name: str
    budget_bytes: int
    tasks: int
    axes: Mapping[str, int]
    chunk_shape: Mapping[str, int]
    task_peak_bytes: int
    finish_peak_bytes: int
    moved_bytes: int
    combine: Mapping[str, str]
    cutting: Cutting = field(repr=False)
    driver: Driver = field(repr=False)

    def __str__(self) -> str:
        cuts = ", ".join(
            f"{name} = {extent:,} by {self.chunk_shape[name]:,}"
            for name, extent in self.axes.items()
        )
        lines = [
            f"{self.name}(): {self.tasks:,} tasks of at most {self.task_peak_bytes:,} bytes "
            f"(budget {self.budget_bytes:,})",
            f"cut: {cuts or 'nothing, the whole call fits'}",
            *(f"combined: {where}: {how}" for where, how in self.combine.items()),
            f"moved: {self.moved_bytes:,} bytes",
        ]
        if not self.cutting.is_trivial:
            lines.append(f"afterwards: once, at most {self.finish_peak_bytes:,} bytes")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def sizes(self) -> Index:
        """The size of a part along each axis, in the order of the grid."""
        return tuple(self.chunk_shape.values())

    @property
    def grid(self) -> Index:
        """The number of parts along each axis."""
        return tuple(math.ceil(n / s) for n, s in zip(self.axes.values(), self.sizes, strict=True))

    def indices(self) -> Iterator[Index]:
        """Yield the position of each task in the grid, the last axis fastest."""
        return itertools.product(*map(range, self.grid))

    def span(self, axis: int, position: int) -> slice:
        """Return the points of a part of an axis."""
        extent, size = tuple(self.axes.values())[axis], self.sizes[axis]
        return slice(position * size, min((position + 1) * size, extent))


def _combined(split: Cutting, names: Sequence[str]) -> dict[str, str]:
    """Return for each source line how its values combine."""
    found: dict[str, str] = {}
    for join in split.joins:
        if join.reduced:
            text = f"{join.rule.kind} over {' and '.join(names[k] for k in join.reduced)}"
            before = found.get(join.loc)
            found[join.loc] = text if before is None or before == text else f"{before}; {text}"
    return found


def axis_has_gradient(axis: Axis) -> bool:
    """Return whether gradients can be computed in parts of this axis, see `gradients`."""
    return all(rule.kind in _WITH_GRADIENT for rule in axis.combined.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    split: Cutting
    driver: Driver
    sizes: Index
    peak_bytes: int
    moved_bytes: int
    tasks: int
    work: float

    @property
    def cost(self) -> float:
        return self.moved_bytes + self.tasks * _TASK_BYTES + _WORK * self.work


class Planner:
    """Looks for the plan. `sources`: of the parameters that are arrays, by position. `stored`: for
    each axis the size in which `out` is stored. `recorded`: parameters with gradients."""

    def __init__(
        self,
        name: str,
        outer: Outer,
        sources: Mapping[int, Source],
        budget_bytes: int,
        stored: Callable[[Cutting], Mapping[int, int]],
        least_tasks: int = 1,
        recorded: Sequence[int] = (),
    ) -> None:
        self.recorded = frozenset(recorded)
        self.least_tasks = least_tasks
        self.name, self.outer, self.sources = name, outer, sources
        self.budget_bytes, self.stored = budget_bytes, stored
        self.least_bytes = 0
        self.values = list(outer.args.values())
        self.axes = self._axes()

    def plan(self) -> ChunkPlan:
        """Return the plan. Raises BudgetError."""
        most = math.prod(heapq.nlargest(_MOST_CUT, (axis.extent for axis in self.axes)))
        self.least_tasks = min(self.least_tasks, most)
        best = self._cheapest()
        while best is None and self.least_tasks > 1:
            self.least_tasks //= _FEWER
            best = self._cheapest()
        if best is None:
            raise BudgetError(
                self.name, self.budget_bytes, self.least_bytes, self._reasons(self.axes)
            )
        return self.made(best)

    def _cheapest(self) -> Choice | None:
        """Return the choice that moves the fewest bytes, None if none fits."""
        axes = [axis for axis in self.axes if self._is_useful(axis)]
        best: Choice | None = None
        for count in range(min(len(axes), _MOST_CUT) + 1):
            if best is not None and (count > 2 or best.moved_bytes <= _ENOUGH * self._given()):
                break
            for chosen in itertools.combinations(axes, count):
                found = self.best(chosen)
                if found is not None and (best is None or found.cost < best.cost):
                    best = found
        return best

    def _is_useful(self, axis: Axis) -> bool:
        """Return whether tasks do most of the work if this axis is cut."""
        whole = sum(nbytes for nbytes, _ in cutting(self.outer, ()).work)
        return cutting(self.outer, (axis,)).finish_work * 2 < max(whole, 1)

    def _given(self) -> int:
        """Return the bytes of all arguments and results, which are moved in any case."""
        (result,) = self.outer.ops[-1].operands
        return sum(s.like.nbytes for s in self.sources.values()) + sum(
            x.nbytes for x in self.outer.tensors(result)
        )

    # -- axes --

    def _axes(self) -> list[Axis]:
        found = list[Axis]()
        params = self.outer.function.params
        starts = [
            (params[p], dim)
            for p, source in self.sources.items()
            for dim in range(min(source.like.dim(), _MOST_DIMS))
            if source.like.shape[dim] > 1
        ]
        starts.sort(key=lambda s: -self.outer.known[s[0]].shape[s[1]])
        for param, dim in starts:
            if any(axis.seeds.get(param) == dim for axis in found):
                continue
            try:
                axis = find_axis(self.outer, param, dim)
            except Dependent:
                continue
            if self.recorded and not axis_has_gradient(axis):
                continue
            found.append(axis)
            if len(found) == _MOST_AXES:
                break
        return found

    def _axis_name(self, axis: Axis) -> str:
        param, dim = next(iter(axis.seeds.items()))
        return f"{param.name}.shape[{dim}]"

    def _reasons(self, axes: Sequence[Axis]) -> list[str]:
        """Return for each axis why it is not cut further."""
        found = list[str]()
        for axis in axes:
            why, name = axis.first_reason(), self._axis_name(axis)
            if why is not None:
                loc, text = why
                line = f"{loc}: `{loc.text.strip()}` " if loc.text else f"{loc}: "
                found.append(f"{name} = {axis.extent:,} is cut up to {line}which {text}")
            else:
                found.append(f"{name} = {axis.extent:,} can be cut")
        return found or ["the whole call: no axis of an argument can be cut"]

    # -- sizes --

    def best(self, axes: Sequence[Axis]) -> Choice | None:
        """Return the best sizes for these axes, None if none fits."""
        best: Choice | None = None
        for order in itertools.permutations(axes):
            split = cutting(self.outer, order, bool(self.recorded))
            if not split.joins and axes:
                continue
            sizing = Sizing(self, split)
            if sizing.fixed_bytes > self.budget_bytes and self.least_bytes:
                continue
            for sizes in sizing.candidates():
                found = sizing.choice(sizes)
                if found is not None and (best is None or found.cost < best.cost):
                    best = found
            least = max(sizing.fixed_bytes, sizing.least_bytes())
            self.least_bytes = min(self.least_bytes or least, least)
        return best

    def made(self, best: Choice) -> ChunkPlan:
        split = best.split
        names = list[str]()
        for axis in split.axes:
            name, times = (
                self._axis_name(axis),
                1 + sum(n.startswith(self._axis_name(axis)) for n in names),
            )
            names.append(name if times == 1 else f"{name}, read again")
        return ChunkPlan(
            name=self.name,
            budget_bytes=self.budget_bytes,
            tasks=best.tasks,
            axes={n: axis.extent for n, axis in zip(names, split.axes, strict=True)},
            chunk_shape=dict(zip(names, best.sizes, strict=True)),
            task_peak_bytes=best.peak_bytes,
            finish_peak_bytes=Sizing(self, split).finish_peak(),
            moved_bytes=best.moved_bytes,
            combine=_combined(split, names),
            cutting=split,
            driver=best.driver,
        )


class Sizing:
    """The memory of one cutting, by the sizes of parts."""

    def __init__(self, planner: Planner, split: Cutting) -> None:
        self.planner, self.split = planner, split
        self.driver = make_driver(split.task, Options())
        self.extents = tuple(axis.extent for axis in split.axes)
        self._peaks: dict[Index, int] = {}
        self.results: dict[Index, list[Tensor]] = {}
        self.steps = self._steps()
        self.fixed_bytes = self.finish_peak()

    def _steps(self) -> Index:
        """Return the size along each axis of which parts should be a multiple."""
        found = [1] * len(self.extents)
        sources = self.planner.sources
        rows = [(p, cuts) for p, cuts in enumerate(self.split.cuts) if p in sources]
        for p, cuts in rows:
            for k, dim in cuts.items():
                found[k] = math.lcm(found[k], sources[p].chunks[dim])
        for k, n in self.planner.stored(self.split).items():
            found[k] = math.lcm(found[k], n)
        return tuple(found)

    def parts(self, sizes: Index) -> list[Any]:
        """Return the parts of a task's arguments, on the meta device."""
        found = list[Any]()
        for p in self.split.inputs:
            source = self.planner.sources.get(p)
            if source is None:
                found.append(self.planner.values[p])
                continue
            shape = list(source.like.shape)
            for k, dim in self.split.cuts[p].items():
                shape[dim] = sizes[k]
            records = p in self.planner.recorded
            found.append(
                torch.empty(shape, dtype=source.like.dtype, device="meta", requires_grad=records)
            )
        return found

    def peak(self, sizes: Index) -> int:
        """Return the most bytes that a task allocates, and what is held of results that are being
        combined."""
        if sizes not in self._peaks:
            given = self.parts(sizes)
            with torch.set_grad_enabled(bool(self.planner.recorded)):
                dry_run = DryRun(self.driver.planned(given), given)
            if dry_run.results is None or dry_run.fails:
                self._peaks[sizes] = _UNKNOWN
                return _UNKNOWN
            self.results[sizes] = list(dry_run.results[0])
            rows = zip(self.split.inputs, given, strict=True)
            sources = self.planner.sources
            held = [(sources[p], x) for p, x in rows if p in sources]
            loaded = sum(s.part_bytes(x.shape) for s, x in held)
            if any(s.is_loaded for s, _ in held):
                loaded *= 2  # those of the next task are read during this one
            self._peaks[sizes] = loaded + dry_run.ledger.peak_bytes + self._combining(sizes)
        return self._peaks[sizes]

    def _combining(self, sizes: Index) -> int:
        """Return the bytes of parts that wait to be combined."""
        total, results = 0, self.results[sizes]
        grid = [math.ceil(n / s) for n, s in zip(self.extents, sizes, strict=True)]
        for join in self.split.joins:
            count = math.prod(grid[k] for k in join.reduced)
            if count == 1:
                continue
            parts = tuple(results[k] for k in join.outputs)
            nbytes = sum(x.nbytes for x in wider(join.rule, parts, 0))
            first = min(join.reduced)  # parts along axes before it are complete one by one
            several = math.prod(grid[k] for k in join.cuts if k > first)
            total += nbytes * several * ((count - 1).bit_length() + 1)
        return total

    def finish_peak(self) -> int:
        """Return the bytes that what is done once allocates or reads, results not counted twice."""
        split = self.split
        if split.is_trivial:
            return 0
        direct = {d for d in split.direct if d is not None}
        values = [split.joins[j].forms[i] for j, i in split.read]
        held = sum(
            x.nbytes for x, place in zip(values, split.read, strict=True) if place not in direct
        )
        whole = list[Any]()
        for p in split.whole:
            source = self.planner.sources.get(p)
            whole.append(self.planner.values[p] if source is None else source.like)
            held += 0 if source is None else source.part_bytes(source.like.shape)
        given = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in values]
        driver = make_driver(split.finish, Options())
        with torch.no_grad():
            return (
                held + DryRun(driver.planned([*given, *whole]), [*given, *whole]).ledger.peak_bytes
            )

    def candidates(self) -> Iterator[Index]:
        """Yield sizes that fit, as large as possible, along several lines."""
        if not self.extents:
            if self.fits(()):
                yield ()
            return
        lines = {tuple(n if k == j else 0 for k, n in enumerate(self.extents))
                 for j in range(len(self.extents))}  # fmt: skip
        largest = max(self.extents)
        lines |= {
            tuple(min(n, largest // scale) for n, scale in zip(self.extents, scales, strict=True))
            for scales in itertools.product((1, 4), repeat=len(self.extents))
        }
        for line in sorted(lines):
            found = self._along(line)
            if found is not None:
                yield found

    def _along(self, line: Index) -> Index | None:
        """Return the largest sizes that fit on a line: 0 stands for the whole extent, other sizes
        shrink alike."""

        def at(share: float) -> Index:
            shift = share * math.log2(max(max(self.extents), 2))
            rows = zip(self.extents, line, strict=True)
            return self._rounded(
                tuple(n if not s else max(min(int(s / 2**shift), n), 1) for n, s in rows)
            )

        shares = [k / _SHARES for k in range(_SHARES + 1)]
        first = next((k for k, share in enumerate(shares) if self.fits(at(share))), None)
        if not first:
            return None if first is None else at(0.0)
        low, high = shares[first - 1], shares[first]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.fits(at(middle)) else (middle, high)
        return at(high)

    def least_bytes(self) -> int:
        """Return the least peak of all sizes that were tried."""
        return min(self._peaks.values(), default=_UNKNOWN)

    def _rounded(self, sizes: Index) -> Index:
        """Return sizes of equal parts, multiples of what arrays are stored in."""
        found = list[int]()
        for n, size, step in zip(self.extents, sizes, self.steps, strict=True):
            if size < n:
                even = math.ceil(n / math.ceil(n / size))
                step = step if step > 1 else _ROUND if even > 8 * _ROUND else 1
                size = (
                    min(math.ceil(even / step) * step, size // step * step)
                    if size >= step
                    else even
                )
            found.append(size)
        return tuple(found)

    def fits(self, sizes: Index) -> bool:
        """Return whether tasks of these sizes stay within the budget, and are enough."""
        rows = zip(self.extents, sizes, strict=True)
        if math.prod(math.ceil(n / s) for n, s in rows) < self.planner.least_tasks:
            return False
        return max(self.peak(sizes), self.fixed_bytes) <= self.planner.budget_bytes

    def choice(self, sizes: Index) -> Choice | None:
        """Return the choice of these sizes, None if a part has other shapes than it must have."""
        rows = zip(self.extents, sizes, strict=True)
        ends = [sorted({s, n - (math.ceil(n / s) - 1) * s}) for n, s in rows]
        for each in itertools.product(*ends):
            if not self.fits(sizes) or self.peak(each) > self.planner.budget_bytes:
                return None
            if not self._has_shapes(each):
                return None
        grid = [math.ceil(n / s) for n, s in zip(self.extents, sizes, strict=True)]
        tasks = math.prod(grid)
        moved = sum(x.nbytes for x in self.parts(sizes) if isinstance(x, Tensor))
        written = sum(x.nbytes for x in self.results[sizes])
        moved += written if self._is_aligned(sizes) else written * _REWRITTEN
        once = sum(self.split.joins[j].forms[i].nbytes for j, i in self.split.read)
        once += sum(
            self.planner.sources[p].like.nbytes
            for p in self.split.whole
            if p in self.planner.sources
        )
        return Choice(
            split=self.split,
            driver=self.driver,
            sizes=sizes,
            peak_bytes=self.peak(sizes),
            moved_bytes=moved * tasks + (0 if self.split.is_trivial else once),
            tasks=tasks,
            work=self._work(grid),
        )

    def _work(self, grid: Sequence[int]) -> float:
        """Return the bytes that are computed more than once, or by one process alone."""
        again = sum(
            nbytes * (math.prod(n for k, n in enumerate(grid) if k not in cutting) - 1)
            for nbytes, cutting in self.split.work
        )
        return again + (self.split.finish_work if self.extents else 0)

    def _is_aligned(self, sizes: Index) -> bool:
        """Return whether parts of results are whole chunks of the store that they go to."""
        stored = self.planner.stored(self.split).items()
        return all(sizes[k] % n == 0 or sizes[k] == self.extents[k] for k, n in stored)

    def _has_shapes(self, sizes: Index) -> bool:
        found = self.results[sizes]
        return all(
            self._shape(join, form, sizes) == tuple(found[join.outputs[place]].shape)
            for join in self.split.joins
            if join.rule.kind not in ("topk", "counts")
            for place, form in zip(join.taken, join.forms, strict=True)
        )

    def _shape(self, join: Join, form: Tensor, sizes: Index) -> tuple[int, ...]:
        """Return the shape of a part of a value: a point of the axis may be several rows."""
        shape = list(form.shape)
        for k, dim in join.cuts.items():
            if shape[dim] % self.extents[k]:
                raise Dependent("has another extent")
            shape[dim] = shape[dim] // self.extents[k] * sizes[k]
        return tuple(shape)
