"""Runs one task, here or at a worker: a saved program and the parts of its arguments.

In: a `Parcel` and parts. Out: the task's results, as NumPy arrays that any pickle can send.

    parcel = packed(plan.cutting.task)
    run_task(parcel, [encoded(a[:4096]), encoded(b)])

A worker compiles a program once, or finds its kernels in the cache of its machine.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from lowtide.api.torch_jit_members import saved_to_buffer
from lowtide.budget.drivers import make_driver
from lowtide.deploy.fitting import Program
from lowtide.deploy.load import load
from lowtide.deploy.loaded import LoadedFunction
from lowtide.errors import LowtideError
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.ir.core import Function, print_function
from lowtide.runtime import arena
from lowtide.version import __version__

Tensor = torch.Tensor
_MOST_DRIVERS: Final = 16
_PLAIN: Final = (torch.bfloat16,)  # NumPy has no such dtype
_IMPORTED_BY: Final = os.getpid()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tensor on its way to another process. `dtype`: PyTorch's name of it."""

    array: np.ndarray[Any, Any]
    dtype: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """A program on its way to another process. `digest`: of its text."""

    program: bytes
    digest: str
    version: str


@dataclass(frozen=True, slots=True)
class Done:
    """The results of a task, and what it took. `nbytes`: of its parts and results."""

    results: tuple[Encoded, ...]
    nbytes: int
    seconds: float
    resident_bytes: int


def packed(function: Function) -> Parcel:
    """Return a program in the form of `lt.save`. Raises CompileError."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(v.name, kinds) for v in function.params])
    raw = saved_to_buffer(LoadedFunction(function.name, signature, [Program(function)]))
    digest = hashlib.sha256(print_function(function, locs=False).encode()).hexdigest()
    return Parcel(raw, digest, __version__)


def encoded(value: Any) -> Any:
    """Return a value that any pickle can send without sharing memory."""
    if not isinstance(value, torch.Tensor):
        return value
    x = value.detach().contiguous()
    name = str(x.dtype).removeprefix("torch.")
    return Encoded((x.view(torch.int16) if x.dtype in _PLAIN else x).numpy(), name)


def decoded(value: Any) -> Any:
    """Return the value that `encoded` was given."""
    if not isinstance(value, Encoded):
        return value
    array = value.array if value.array.flags.writeable else value.array.copy()
    x, dtype = torch.from_numpy(array), getattr(torch, value.dtype)
    return x.view(dtype) if dtype in _PLAIN else x


def run_task(parcel: Parcel, *parts: Any) -> Done:
    """Return the results of a task. Raises LowtideError, which names the worker, if it has another
    version of Lowtide."""
    if parcel.version != __version__:
        raise LowtideError(
            f"{worker_name()} has lowtide {__version__}, the caller {parcel.version}; write "
            f"instead: pip install lowtide=={parcel.version} there"
        )
    begun = time.perf_counter()
    if os.getpid() != _IMPORTED_BY and torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # OpenMP's other threads stayed in the process that forked
    try:
        arena.keep_tight()
        driver = _driver(parcel.digest, parcel)
        with torch.no_grad():
            results = driver([decoded(p) for p in parts])
    except Exception as fault:
        fault.add_note(f"in a task at {worker_name()}")
        raise
    found: tuple[Encoded, ...] = tuple(map(encoded, results))
    nbytes = sum(x.array.nbytes for x in (*parts, *found) if isinstance(x, Encoded))
    return Done(found, nbytes, time.perf_counter() - begun, resident_bytes())


def run_tasks(parcel: Parcel, count: int, *parts: Any) -> list[Done]:
    """Return the results of several tasks, one after another. `parts`: of all, task by task."""
    each = len(parts) // count
    return [run_task(parcel, *parts[k * each : (k + 1) * each]) for k in range(count)]


_known: dict[str, Driver] = {}


def _driver(digest: str, parcel: Parcel) -> Driver:
    found = _known.get(digest)
    if found is None:
        if len(_known) >= _MOST_DRIVERS:
            _known.clear()
        found = _known[digest] = make_driver(load(parcel.program).graph, Options())
    return found


@functools.cache
def worker_name() -> str:
    """Return the name of this process for messages."""
    return f"worker {platform.node()}, process {os.getpid()}"


def resident_bytes() -> int:
    """Return the most memory that this process has had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def decoded_all(done: Done) -> Sequence[Tensor]:
    """Return the results of a task as tensors."""
    return [decoded(x) for x in done.results]
