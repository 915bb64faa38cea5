"""Finds the largest batch whose training step stays within a number of bytes, by running steps.

In: a step, a maker of batches, and a budget. Out: the size. The size is doubled until the step is
too large. Then the next size is interpolated linearly between the peaks of the largest good and the
smallest bad size; or it is their middle if the last interpolation gained little. Each peak is
measured. A step that runs out of memory is too large, too.

    lt.max_batch_size(train_step, lambda n: torch.rand(n, 3, 224, 224), "8GB")

A step changes weights, so its effects are undone: on random generators, and on every module and
optimizer that the step refers to by its closure, globals, defaults or object.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

import torch
from torch.optim.lr_scheduler import LRScheduler

from lowtide.errors import LowtideError
from lowtide.memory.available import is_out_of_memory
from lowtide.memory.measure import same_python_random, same_random_numbers
from lowtide.memory.scopes.allocation_sites import is_users
from lowtide.memory.sizes import budget_bytes
from lowtide.tools.profiler.profile import profile

_MOST: Final = 100_000  # objects that are searched
_WITH_STATE: Final = (torch.nn.Module, torch.optim.Optimizer, LRScheduler)


def max_batch_size(
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    budget: int | str,
    *,
    limit: int = 1 << 16,
    keep: Iterable[Any] | None = None,
) -> int:
    """Return the largest n up to `limit` for which `step(make_batch(n))` stays within `budget`.

    `budget`: bytes, or a string such as "2GB", for the peak of one step with its batch, on the
    device with the highest peak. Returns 0 if not even one sample fits. A larger batch is assumed
    to need at least as much memory. `keep`: modules, optimizers and others with a `state_dict`,
    whose state is restored afterwards; None: those that `step` refers to. Random generators are
    restored, too; other effects of a step (a counter, a log) stay. Raises LowtideError if `step` or
    `make_batch` cannot be called with one argument; and what `step` raises, except for errors that
    report a lack of memory."""
    most_bytes = budget_bytes(budget)
    if type(limit) is not int or limit < 1:  # not True, which is 1
        raise LowtideError(f"limit={limit!r} is not a batch size; pass a whole number from 1")
    for name, function, argument in (
        ("step", step, "a batch"),
        ("make_batch", make_batch, "how many samples it has"),
    ):
        _check_takes_one(name, function, argument)
    kept = _reached_by(step) if keep is None else _with_state(keep)

    def peak(size: int) -> float:
        found = _peak_of(step, make_batch, size, kept)
        return math.inf if found is None else found

    return largest(peak, most_bytes, limit)


def _check_takes_one(name: str, function: object, argument: str) -> None:
    """Raise LowtideError if the function cannot be called with one argument."""
    if not callable(function):
        kind = type(function).__name__
        raise LowtideError(f"{name} is of type {kind}; pass a function of {argument}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(None)
    except TypeError as fault:
        raise LowtideError(f"{name} is called with {argument} alone: {fault}") from fault


def largest(peak: Callable[[int], float], most: float, limit: int) -> int:
    """Return the largest number from 1 to `limit` whose `peak` is at most `most`; 0 if none is."""
    good, good_peak = 0, 0.0
    bad, bad_peak = limit + 1, math.inf
    tried = 1
    while tried <= limit:
        found = peak(tried)
        if found > most:
            bad, bad_peak = tried, found
            break
        good, good_peak = tried, found
        tried *= 2
    bisect_next = False
    while bad - good > 1:
        width = bad - good
        tried = (good + bad) // 2
        if not bisect_next and bad_peak < math.inf:
            share = (most - good_peak) / max(bad_peak - good_peak, 1.0)
            tried = min(max(good + int(share * width), good + 1), bad - 1)
        found = peak(tried)
        if found <= most:
            good, good_peak = tried, found
        else:
            bad, bad_peak = tried, found
        bisect_next = not bisect_next and bad - good > width // 2
    return good


def _with_state(keep: object) -> list[Any]:
    things: list[Any] = list(keep) if isinstance(keep, Iterable) else [keep]  # pyright: ignore[reportUnknownArgumentType]
    for thing in things:
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise LowtideError(
                f"keep has a {type(thing).__name__}, which has no state_dict(); "
                "pass a list of modules, optimizers and the like"
            )
    return things


def _peak_of(
    step: Callable[[Any], object], make_batch: Callable[[int], Any], size: int, kept: list[Any]
) -> int | None:
    """Return the peak bytes of one step; None if it ran out of memory."""

    def run() -> None:
        step(make_batch(size))

    with _unchanged(kept):
        try:
            return _measured(run)
        except (RuntimeError, MemoryError) as fault:
            if not is_out_of_memory(fault):
                raise
            fault.__traceback__ = None  # its frames refer to the batch
            gc.collect()
            return None


def _measured(run: Callable[[], None]) -> int:
    gc.collect()  # cycles of an earlier step
    with profile() as prof:  # which sees the arena, GPUs and other threads, too
        run()
    return prof.peak_bytes


@contextmanager
def _unchanged(kept: list[Any]) -> Generator[None]:
    """A context after which random generators and `kept` have their earlier state."""
    restores = [_keeper(thing) for thing in kept]
    with same_random_numbers(), same_python_random():
        try:
            yield
        finally:
            for restore in restores:
                restore()


def _keeper(thing: Any) -> Callable[[], None]:
    """Return a function that restores the current state of `thing`."""
    if isinstance(thing, torch.nn.Module):
        return _module_keeper(thing)
    state = copy.deepcopy(thing.state_dict())
    return lambda: thing.load_state_dict(state)


def _module_keeper(module: torch.nn.Module) -> Callable[[], None]:
    tensors = [*module.parameters(), *module.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    grads = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in module.parameters()]
    modes = [(inner, inner.training) for inner in module.modules()]

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            for parameter, grad, value in grads:
                if grad is not None and value is not None:
                    grad.copy_(value)
                parameter.grad = grad
        for inner, was_training in modes:
            inner.training = was_training

    return restore


def _reached_by(step: Any) -> list[Any]:
    """Return the modules and optimizers that a function refers to; not those inside others."""
    seen: dict[int, Any] = {}
    things: list[Any] = []
    todo: list[Any] = [step]
    while todo and len(seen) < _MOST:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen[id(x)] = x
        if isinstance(x, _WITH_STATE):
            things.append(x)
        else:
            todo += _parts(x)
    modules = [thing for thing in things if isinstance(thing, torch.nn.Module)]
    inner = {id(m) for module in modules for m in module.modules() if m is not module}
    return [thing for thing in things if id(thing) not in inner]


def _parts(x: Any) -> list[Any]:
    """Return what an object refers to: a function to its closure, defaults and the globals that it
    names; a container to its items; an object of the user's class to its attributes."""
    if isinstance(x, FunctionType):
        if not is_users(x.__code__):
            return []
        cells = [c.cell_contents for c in x.__closure__ or () if c != CellType()]
        named = [x.__globals__.get(name) for name in _names(x.__code__)]
        return [*cells, *(x.__defaults__ or ()), x.__kwdefaults__, *named]
    if isinstance(x, MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, Mapping):
        return list(cast("Mapping[Any, Any]", x).values())
    if isinstance(x, list | tuple | set | deque):
        return list(cast("Iterable[Any]", x))
    kind = cast("type[Any]", type(x))
    if isinstance(x, type | ModuleType | torch.Tensor) or _is_installed(kind):
        return []
    methods = [m for owner in kind.__mro__ for m in vars(owner).values()]
    return [*methods, *vars(x).values()] if hasattr(x, "__dict__") else methods


def _is_installed(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return package in sys.stdlib_module_names or package in ("torch", "lowtide", "numpy")


def _names(code: CodeType) -> set[str]:
    """Return the names of globals in a function and the functions inside it."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)
