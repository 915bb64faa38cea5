"""`lt.plan_chunks` and `lt.map_chunks`: a function of large arrays, in chunks that fit a budget.

In: a function, its arguments, a budget. Out: the plan, or the result of the function.

    d = lt.map_chunks(similar, a, b, budget="500MB", out=zarr_array)
    lt.map_chunks(chamfer, a, b, budget="200MB", executor=Client(cluster))
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final

import torch

from lowtide.api import names
from lowtide.api.compiled import Compiled
from lowtide.budget.dry_run import DryRun, ineligible
from lowtide.budget.outer import Outer
from lowtide.errors import BudgetError, CompileError, LowtideError
from lowtide.execute.driver import Driver
from lowtide.ir.core import Op
from lowtide.memory import watching
from lowtide.memory.sizes import budget_bytes
from lowtide.scale.arrays import Source, is_array, refuse_overlaps, source_of
from lowtide.scale.branches import first_write, with_branches_chosen
from lowtide.scale.chunk_plan import ChunkPlan, Planner
from lowtide.scale.cutting import Cutting
from lowtide.scale.engines import (
    Progress,
    is_dask,
    run_here,
    run_on_dask,
    run_on_executor,
    workers_of,
)
from lowtide.scale.gradients import run_with_gradients, wanted
from lowtide.scale.job import Job, places_of
from lowtide.scale.repeated_operands import twice_read, with_repeated_operands
from lowtide.scale.task import Done
from lowtide.torch_private import torch_state

Tensor = torch.Tensor
_TASKS: Final = 4  # for each worker
_MOST_REPEATED: Final = 4  # ops whose operands are computed twice


def plan_chunks(
    f: Callable[..., Any], *args: Any, budget: int | str, out: Any = None, tasks: int = 1
) -> ChunkPlan:
    """Return the chunks in which `map_chunks` computes `f(*args)`; nothing is run.

    `args`: of `f`; arrays may be tensors, also on the meta device, NumPy arrays and memory maps,
    and arrays of Zarr, HDF5 and Dask. `budget`: bytes that one task may allocate. `out`: as for
    `map_chunks`. `tasks`: how many there should be at least. Raises BudgetError with the least
    budget, and the lines that need whole values."""
    return Call(f, args).plan(budget_bytes(budget), out, tasks)


def map_chunks(
    f: Callable[..., Any],
    *args: Any,
    budget: int | str,
    executor: Any = None,
    out: Any = None,
    progress: Any = None,
    tasks: int | None = None,
) -> Any:
    """Return `f(*args)`, computed in chunks; each task allocates at most `budget` bytes.

    `args`, `budget`: as for `plan_chunks`. `executor`: None for this process, an executor of
    concurrent.futures, or a dask.distributed.Client. `out`: where results go, a tuple if there are
    several; it is returned. If it is on disk, a second call resumes. `progress`: True for a bar and
    a report, or a function of the number of tasks that are done and of all. `tasks`: how many there
    should be at least; 4 for each worker of the executor if None."""
    call = Call(f, args)
    run = _engine(executor)
    if tasks is None:
        tasks = 1 if executor is None else _TASKS * workers_of(executor)
    chunks = call.plan(budget_bytes(budget), out, tasks)
    if call.recorded and out is not None:
        raise LowtideError("out: results with gradients are new tensors; write: torch.no_grad()")
    places = places_of(out, len(chunks.cutting.direct), chunks.cutting.is_single)
    refuse_overlaps(places or (), args)
    job = Job(chunks, call.sources, call.values, places)
    try:
        with watching.aside(), _reporting(progress, chunks) as done:
            if call.recorded:
                run_with_gradients(job, lambda: run(job, done), call.recorded)
            else:
                run(job, done)
        with watching.aside(), torch.set_grad_enabled(bool(call.recorded)):
            return job.finish()
    except BaseException:
        if job.record is not None:
            job.record.write()
        raise


def _engine(executor: Any) -> Callable[[Job, Progress], None]:
    """Return the function that runs a job there. Raises LowtideError."""
    if executor is None:
        return run_here
    if is_dask(executor):
        return lambda job, done: run_on_dask(job, executor, done)
    if isinstance(executor, Executor) or hasattr(executor, "submit"):
        return lambda job, done: run_on_executor(job, executor, done)
    raise LowtideError(
        f"executor={executor!r}: write None, an executor of concurrent.futures, or a "
        "dask.distributed.Client"
    )


class Call:
    """A call whose arrays are not loaded. `values`: of the program's parameters, arrays on the meta
    device. `sources`: of those that are arrays, by position."""

    def __init__(self, f: Callable[..., Any], args: Sequence[Any]) -> None:
        compiled = compiled_of(f)
        self.name = compiled.__name__
        sources = [source_of(x) if is_array(x) else None for x in args]
        given = tuple(x if s is None else s.like for x, s in zip(args, sources, strict=True))
        by_id = {id(s.like): s for s in sources if s is not None}
        with watching.aside():
            driver, values = compiled.resolve(compiled.bind(given, {}))
        self.values: list[Any] = []
        self.sources: dict[int, Source] = {}
        for k, v in enumerate(values):
            source = by_id.get(id(v)) or (source_of(v) if isinstance(v, Tensor) else None)
            if source is not None:
                self.sources[k] = source
            self.values.append(v if source is None else source.like)
        why = (
            torch_state.reason()
            or ineligible(self.values)
            or (driver.demands.unmet(self.values) if driver.demands is not None else "")
        )
        if why or any(isinstance(v, torch.nn.Module) for v in self.values):
            raise LowtideError(f"{self.name}() is not computed in chunks: {why or 'uses a module'}")
        self.recorded = wanted(self.sources)
        self.function = driver.function
        self._choose_branches()

    def _choose_branches(self) -> None:
        """Choose what is known before the call. Raises CompileError for a program that writes into
        tensors, of which tasks have only parts."""
        with watching.aside(), torch.no_grad():
            while True:
                outer = Outer(Driver(self.function), self.values)
                chosen = with_branches_chosen(outer)
                if chosen is self.function:
                    break
                self.function = chosen
        loc = first_write(outer)
        if loc is not None:
            raise CompileError(
                "a tensor is changed in place, which chunks cannot do",
                loc,
                remedy="the same without a write, such as `torch.where`, or `eval()` of the module",
            )

    def plan(self, budget: int, out: Any, tasks: int = 1) -> ChunkPlan:
        """Return the plan. Raises BudgetError, and what the call itself would raise."""
        if type(tasks) is not int or tasks < 1:
            raise LowtideError(f"tasks={tasks!r} is not a number of tasks; write one from 1 on")
        with watching.aside(), torch.no_grad():
            refused: BudgetError | None = None
            for _ in range(_MOST_REPEATED):
                planner = self.planner(budget, out, tasks)
                try:
                    return planner.plan()
                except BudgetError as error:
                    refused = refused or error
                op = twice_read(planner.outer, planner.axes)
                if op is None:
                    break
                self._set_apart(planner.outer, op)
            assert refused is not None
            raise refused

    def planner(self, budget: int, out: Any, tasks: int = 1) -> Planner:
        """Return what plans the call."""
        outer = Outer(Driver(self.function), self.values)
        if any(v not in outer.known for v in outer.ops[-1].operands):
            raise self._unknown(outer)
        return Planner(
            self.name, outer, self.sources, budget, lambda c: _stored(c, out), tasks, self.recorded
        )

    def _unknown(self, outer: Outer) -> LowtideError:
        """Return the error that says why the result has no form before the call, such as shapes
        that disagree."""
        driver = Driver(self.function)
        dry_run = DryRun(driver.planned(self.values), self.values)
        op = next(op for op in outer.ops if any(v not in outer.known for v in op.results))
        why = dry_run.fails or f"{op.loc}: `{op.loc.text.strip()}` is not known before the call"
        return LowtideError(f"{self.name}() is not computed in chunks: {why}")

    def _set_apart(self, outer: Outer, op: Op) -> None:
        """Give an argument that is read twice by one op as two arguments."""
        params = list(self.function.params)
        self.function, repeated = with_repeated_operands(outer, op)
        for old in repeated.values():
            k = params.index(old)
            value = self.values[k]
            if k in self.sources:
                source = self.sources[k]
                value = torch.empty_like(source.like)
                self.sources[len(self.values)] = replace(source, like=value)
            self.values.append(value)


def compiled_of(f: Any) -> Compiled:
    """Return the compiled function of a function or module, which is scripted if it is not."""
    if not isinstance(f, Compiled | torch.nn.Module) or not hasattr(f, "explain"):
        f = names.find("script")(f)
    found = f if isinstance(f, Compiled) else f.forward
    if not isinstance(found, Compiled):
        raise LowtideError(f"{f!r} has no compiled forward")
    return found


def _stored(split: Cutting, out: Any) -> Mapping[int, int]:
    """Return for each axis the size in which `out` is stored."""
    places = places_of(out, len(split.direct), split.is_single) or []
    found: dict[int, int] = {}
    for place, array in zip(split.direct, places, strict=False):
        if place is None or array is None or isinstance(array, Tensor):
            continue
        stored = source_of(array).chunks
        for k, dim in split.joins[place[0]].cuts.items():
            if dim < len(stored) and split.joins[place[0]].forms[0].shape[dim] == (
                split.axes[k].extent
            ):
                found[k] = max(found.get(k, 1), stored[dim])
    return found


@contextlib.contextmanager
def _reporting(progress: Any, chunks: ChunkPlan) -> Generator[Progress]:
    """Give the function that is called after each task."""
    count, begun, worst = 0, time.perf_counter(), 0
    show: Callable[[int, int], Any] | None = progress if callable(progress) else None
    with contextlib.ExitStack() as stack:
        if progress is True:
            show = _bar(stack, chunks)

        def done(task: Done | None) -> None:
            nonlocal count, worst
            count += 1
            worst = max(worst, task.resident_bytes if task is not None else 0)
            if show is not None:
                show(count, chunks.tasks)

        yield done
    if progress is True:
        seconds = time.perf_counter() - begun
        resident = f", a worker had at most {worst:,} resident bytes" if worst else ""
        print(
            f"{chunks.name}(): {count:,} tasks in {seconds:.1f} s, at most "
            f"{chunks.task_peak_bytes:,} bytes each by prediction{resident}"
        )


def _bar(stack: contextlib.ExitStack, chunks: ChunkPlan) -> Callable[[int, int], Any]:
    from rich.progress import Progress

    bar = stack.enter_context(Progress())
    row = bar.add_task(f"{chunks.name}()", total=chunks.tasks)
    return lambda count, tasks: bar.update(row, completed=count)
