"""Predicts the peak of each call of a compiled function, just before the call runs.

In: a block of code that calls compiled functions. Out: the name and the plan of each call.

    with predicted_calls() as calls:
        model(x)
    calls.largest        ("forward", MemoryPlan(peak_bytes=8_000_000, …))

Calls that PyTorch runs uncompiled are not seen. Calls of one program in one form have one
prediction.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lowtide.budget.dry_run import DryRun
from lowtide.budget.memory import MemoryPlan, plan_memory
from lowtide.budget.planned import call_key
from lowtide.execute.driver import Driver
from lowtide.memory import watching


@dataclass(kw_only=True)
class PredictedCalls:
    """`largest`: (name of the function, plan) of the call with the highest peak; None before the
    first call."""

    largest: tuple[str, MemoryPlan] | None = None
    _known: set[Any] = field(default_factory=set[Any])
    _drivers: list[Driver] = field(default_factory=list[Driver])  # alive, so that ids stay unique
    _lock: Any = field(default_factory=threading.Lock)

    def add(self, driver: Driver, args: Sequence[Any]) -> None:
        """Predict a call, unless a call in the same form has been predicted."""
        key = id(driver), call_key(args, reads_floats=True)
        with self._lock:
            if key in self._known:
                return
            self._known.add(key)
            self._drivers.append(driver)
        with watching.aside():
            plan = plan_memory(DryRun(driver, args))
        with self._lock:
            if self.largest is None or plan.peak_bytes > self.largest[1].peak_bytes:
                self.largest = driver.function.name, plan


@contextmanager
def predicted_calls() -> Generator[PredictedCalls]:
    """Yield the predictions of the calls inside, on all threads. Blocks must not overlap."""
    calls, run = PredictedCalls(), Driver.__call__

    def predicted(self: Driver, args: Sequence[Any]) -> Any:
        calls.add(self, args)
        return run(self, args)

    Driver.__call__ = predicted  # every other driver ends in a call of a plain one
    try:
        yield calls
    finally:
        Driver.__call__ = run
