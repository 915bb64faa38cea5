"""Runs the tasks of a job: in this process, on an executor, or on Dask.

In: a `Job`. Out: its results are collected.

    run_here(job)                             one task at a time; parts are read ahead
    run_on_executor(job, ProcessPoolExecutor(4))
    run_on_dask(job, client)                  parts are scattered once; Dask retries

Tasks are submitted a few at a time, so that parts and results do not pile up. What Dask does for
one of its tasks takes milliseconds: short tasks go to it in bundles, each one task of Dask.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from typing import Any, Final, TypeAlias

import torch

from lowtide.diagnostics.warned import warn
from lowtide.errors import LowtideError
from lowtide.runtime import arena
from lowtide.scale.chunk_plan import Index
from lowtide.scale.job import Job, PartKey
from lowtide.scale.task import Done, decoded_all, encoded, packed, run_task, run_tasks

Tensor = torch.Tensor
_AHEAD: Final = 2  # tasks for each worker
_AHEAD_DASK: Final = 8  # the scheduler's answers take longer
_SENT_BYTES: Final = 1 << 20  # of a part that is sent with its only task
_BUNDLE_SECONDS: Final = 0.1  # of a bundle, which Dask's few milliseconds are little of
_BUNDLE_BYTES: Final = 8 << 20  # of the parts and results of a bundle
_BUNDLES_LEFT: Final = 4  # for each worker, so that all end at about the same time
_SECONDS: Final = 2.0  # between two looks at a cluster
_AGAIN: Final = 3  # times that a task is submitted again after its parts were lost
Progress: TypeAlias = Callable[[Done | None], None]


def run_here(job: Job, progress: Progress, tasks: Sequence[Index] | None = None) -> None:
    """Run these tasks, or all that are left, in this process."""
    arena.keep_tight()  # the last part of an axis is smaller: it takes no block beside the others'
    todo = job.todo() if tasks is None else list(tasks)
    reads = any(s.is_loaded for s in job.sources.values())
    with ThreadPoolExecutor(1) as reader, torch.no_grad():
        held: dict[PartKey, Tensor] = {}
        ahead: Future[dict[PartKey, Tensor]] | None = None
        try:
            for index, following in itertools.zip_longest(todo, todo[1:]):
                held = _read(job, index, held) if ahead is None else ahead.result()
                ahead = reader.submit(_read, job, following, held) if reads and following else None
                results = job.plan.driver(job.arguments(held, index))
                job.collect(index, results)
                del results
                progress(None)
        finally:
            reader.shutdown(wait=True, cancel_futures=True)


def _read(job: Job, index: Index, held: Mapping[PartKey, Tensor]) -> dict[PartKey, Tensor]:
    """Return the parts of a task; those that the task before it has are not read again."""
    return {key: held[key] if key in held else job.part(key) for key in job.keys(index)}


def run_on_executor(job: Job, executor: Executor, progress: Progress) -> None:
    """Run all tasks on an executor; parts are sent with each task. A pool that broke, as one of
    processes does when a process is killed, takes no more tasks: this process runs the rest."""
    left = dict.fromkeys(job.todo())
    try:
        _run_on_executor(job, executor, progress, left)
    except BrokenExecutor as fault:
        warn(f"{job.plan.name}: {fault}; this process runs the {len(left):,} tasks that are left")
        run_here(job, progress, list(left))


def _run_on_executor(
    job: Job, executor: Executor, progress: Progress, left: dict[Index, None]
) -> None:
    """`left`: tasks; those whose results have been collected are removed."""
    parcel, waiting = packed(job.split.task), dict[Future[Done], Index]()
    room = _AHEAD * workers_of(executor)
    held: dict[PartKey, Any] = {}
    following = iter(list(left))
    try:
        while True:
            for index in _some(following, room - len(waiting)):
                held = {k: held[k] if k in held else encoded(job.part(k)) for k in job.keys(index)}
                future = executor.submit(run_task, parcel, *_sent(job, held, index))
                waiting[future] = index
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                done = future.result()
                index = waiting.pop(future)
                job.collect(index, decoded_all(done))
                del left[index]
                progress(done)
    finally:
        for future in waiting:
            future.cancel()


def _sent(job: Job, parts: Mapping[PartKey, Any], index: Index) -> list[Any]:
    return [encoded(x) for x in job.arguments(parts, index)]


def _some(left: Iterator[Index], count: int) -> Iterator[Index]:
    for _ in range(count):
        index = next(left, None)
        if index is None:
            return
        yield index


def workers_of(executor: Any) -> int:
    """Return how many tasks an executor, or a Dask cluster, runs at once."""
    if is_dask(executor):
        workers = executor.scheduler_info()["workers"]
        return max(sum(w["nthreads"] for w in workers.values()), 1)
    return getattr(executor, "_max_workers", None) or os.cpu_count() or 1


def is_dask(executor: object) -> bool:
    """Return whether this is a `dask.distributed.Client`."""
    return all(
        hasattr(executor, name) for name in ("scatter", "submit", "gather", "scheduler_info")
    )


def run_on_dask(job: Job, client: Any, progress: Progress) -> None:
    """Run all tasks on a Dask cluster. Each part is scattered once, and held until all tasks that
    read it are done."""
    _Dask(job, client, progress).run()


class _Dask:
    def __init__(self, job: Job, client: Any, progress: Progress) -> None:
        self.job, self.client, self.progress = job, client, progress
        self.parcel = packed(job.split.task)
        self.parts: dict[PartKey, Any] = {}
        self.readers: dict[PartKey, int] = {}
        self.attempts: dict[Index, int] = {}
        self.waiting: dict[Any, list[Index]] = {}
        self.left = collections.deque(job.todo())
        self.seconds, self.bytes = _BUNDLE_SECONDS, 1  # of a task
        loc = job.split.task.loc
        where = f"{os.path.basename(loc.file)}:{loc.line}"
        self.name = f"{job.plan.name}@{where}"
        self.token = os.urandom(8).hex()
        self.room, self.looked_up = 0, -_SECONDS

    def run(self) -> None:
        """See `run_on_dask`."""
        for index in self.left:
            for key in self.job.keys(index):
                self.readers[key] = self.readers.get(key, 0) + 1
        try:
            while True:
                while self.left and len(self.waiting) < self._room():
                    self._submit([self.left.popleft() for _ in range(self._bundle())])
                if not self.waiting:
                    return
                self._take(self._finished())
        finally:
            self.client.cancel(list(self.waiting))

    def _room(self) -> int:
        """Return how many tasks may wait; workers come and go, so it is looked up now and then."""
        if time.monotonic() > self.looked_up + _SECONDS:
            self.room, self.looked_up = _AHEAD_DASK * workers_of(self.client), time.monotonic()
        return self.room

    def _bundle(self) -> int:
        """Return how many tasks the next bundle has."""
        workers = max(self.room // _AHEAD_DASK, 1)
        share = len(self.left) // (workers * _BUNDLES_LEFT)
        quick = min(_BUNDLE_SECONDS / self.seconds, _BUNDLE_BYTES / self.bytes)
        return max(min(int(quick), share), 1)

    def _finished(self) -> list[Any]:
        """Return futures that are done, or whose parts were lost."""
        waits = importlib.import_module("distributed").wait
        while True:
            found = [f for f in self.waiting if f.status != "pending"]
            if found:
                return found
            with contextlib.suppress(*_CANCELLED):  # of a task whose parts were lost
                waits(list(self.waiting), return_when=FIRST_COMPLETED)

    def _submit(self, indices: list[Index]) -> None:
        arguments = list[Any]()
        for index in indices:
            parts = {key: self._scattered(key) for key in self.job.keys(index)}
            arguments += self.job.arguments(parts, index)
        place = "-".join(map(str, indices[0])) or "0"
        again = self.attempts.get(indices[0], 0)
        future = self.client.submit(
            run_tasks,
            self.parcel,
            len(indices),
            *(x if _is_future(x) else encoded(x) for x in arguments),
            key=f"{self.name}-{self.token}-{place}-{again}",
            pure=False,
        )
        self.waiting[future] = indices

    def _scattered(self, key: PartKey) -> Any:
        """Return a part as a future; as itself, if one task reads it, with which it is sent."""
        found = self.parts.get(key)
        if found is None or found.status in ("lost", "cancelled", "error"):
            part = self.job.part(key)
            if found is None and self.readers[key] == 1 and part.nbytes <= _SENT_BYTES:
                return encoded(part)
            found = self.parts[key] = self._scatter(encoded(part), not key[1])
        return found

    def _scatter(self, part: Any, everywhere: bool) -> Any:
        """Scatter a part; again, if a worker dies while it takes it."""
        for _ in range(_AGAIN):
            with contextlib.suppress(OSError):
                return self.client.scatter(part, hash=False, broadcast=everywhere)
            time.sleep(_SECONDS)  # until the cluster knows
        return self.client.scatter(part, hash=False, broadcast=everywhere)

    def _gathered(self, futures: Sequence[Any], lost: list[Any]) -> list[tuple[Any, list[Done]]]:
        """Return futures with their results; those that are cancelled meanwhile are lost, too."""
        with contextlib.suppress(*_CANCELLED):
            return list(zip(futures, self.client.gather(list(futures)), strict=True))
        found = list[tuple[Any, list[Done]]]()
        for future in futures:
            try:
                found.append((future, future.result()))
            except _CANCELLED:
                lost.append(future)
        return found

    def _take(self, futures: Sequence[Any]) -> None:
        """Collect the results of futures; submit those again whose parts went with a worker."""
        lost = [f for f in futures if f.status in ("cancelled", "lost")]
        for future, bundle in self._gathered([f for f in futures if f not in lost], lost):
            self.seconds = max(sum(done.seconds for done in bundle) / len(bundle), 1e-6)
            self.bytes = max(bundle[0].nbytes, 1)
            for index, done in zip(self.waiting.pop(future), bundle, strict=True):
                self._collect(index, done)
        for future in lost:
            indices = self.waiting.pop(future)
            again = self.attempts[indices[0]] = self.attempts.get(indices[0], 0) + 1
            if again > _AGAIN:
                raise LowtideError(
                    f"{self.name}: the parts of task {indices[0]} were lost {again} times, with "
                    "the workers that held them"
                )
            self._submit(indices)

    def _collect(self, index: Index, done: Done) -> None:
        keys, job = self.job.keys(index), self.job
        job.collect(index, decoded_all(done))
        for key in keys:
            self.readers[key] -= 1
            if not self.readers[key]:
                self.parts.pop(key, None)
        self.progress(done)


_CANCELLED: Final = (CancelledError, asyncio.CancelledError)


def _is_future(value: object) -> bool:
    return hasattr(value, "status") and hasattr(value, "key")
