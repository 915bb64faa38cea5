"""The methods that every compiled function has: `explain`, `memory`, `stages`, `graph`, `code`.

In: a `Driver` for the arguments of a call, from a subclass. Out: the text of the program, its
kernels, its peak, its stages.

    c = lt.script(f)
    c.memory(x).peak_bytes        predicted; nothing is run or allocated
    print(c.explain(x))           kernels, ops left to PyTorch and why
    c.stages(x)                   [(stage, text), …], the generated source last

Hook: a traced `c.__lowtide_program__()` is its program, as a Function whose captured parameters, if
any, are read from `c.root` (a module's: from itself) by their paths; other front ends inline it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowtide import config
from lowtide.api.explain import Explanation, explain
from lowtide.budget.dry_run import DryRun, ineligible
from lowtide.budget.memory import MemoryPlan, plan_memory
from lowtide.diagnostics.tracebacks import entry_point
from lowtide.diagnostics.warned import warn
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.ir.core import Function
from lowtide.ir.python_text import python_text
from lowtide.memory import watching
from lowtide.memory.stand_ins import with_sizes
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state

if TYPE_CHECKING:
    from lowtide.frontend.trace.recorder import Recorder


def warn_without_budget(name: str, why: str) -> None:
    """Warn that PyTorch runs a program that has a budget, and does not observe it."""
    warn(f"{name}: the budget is not enforced, because PyTorch runs it uncompiled: {why}")


class Compiled(ABC):
    """A function that Lowtide runs."""

    __name__: str
    options: Options = Options()
    _has_warned = False

    def set_options(self, options: Options) -> None:
        """Set the options of later calls."""
        self.options = options

    def without_budget(self, why: str) -> None:
        """Says once that a call is PyTorch's own, which keeps to no budget; `why`: "" where the
        tensors are the reason."""
        if self.options.budget_bytes is None or self._has_warned or config.current().disable:
            return
        self._has_warned = True
        warn_without_budget(
            self.__name__, why or "an argument is a tensor subclass or not a dense tensor"
        )

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the Python function."""

    @abstractmethod
    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the operands of the program, in order; raises Python's own TypeError."""

    @abstractmethod
    def driver(self, args: tuple[Any, ...]) -> Driver:
        """Return the program for these arguments, built if need be; raises CompileError."""

    def resolve(self, values: tuple[Any, ...]) -> tuple[Driver, tuple[Any, ...]]:
        """Return the program for the operands that `bind` returned, and the operands with captured
        ones."""
        return self.driver(values), values

    @abstractmethod
    def program(self) -> Function:
        """Return the program that was built last."""

    @property
    def graph(self) -> Function:
        """The program for the latest types of arguments, else for the annotated ones; prints as
        IR."""
        return self.program()

    @property
    def code(self) -> str:
        """The program as Python-like source."""
        return python_text(self.program())

    @entry_point
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Return the kernels, the ops that PyTorch runs and why, and the predicted peak in bytes.

        `args`: of the function; they may be meta tensors. Nothing is run or allocated.
        """
        why, dry_run = self._dry_run(args, kwargs)
        return explain(self.__name__, dry_run, why)

    @entry_point
    def memory(self, *args: Any, **kwargs: Any) -> MemoryPlan:
        """Return the predicted peak of a call in bytes, as a plan that prints.

        `args`: of the function; they may be meta tensors. Nothing is run or allocated.
        """
        why, dry_run = self._dry_run(args, kwargs)
        return plan_memory(dry_run, why)

    @entry_point
    def stages(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        """Return [(stage, text)] for a call: the program after each stage, the generated source
        last."""
        _, dry_run = self._dry_run(args, kwargs)
        return dry_run.stages()

    def _dry_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, DryRun]:
        with watching.aside():
            given = self.bind(*with_sizes((args, kwargs)))
            driver, values = self.resolve(given)
            plain_values = [v for v in values if not isinstance(v, torch.nn.Module)]
            unmet = driver.demands.unmet(values) if driver.demands is not None else ""
            why = torch_state.reason() or unmet or ineligible(plain_values)
            dry_run = DryRun(driver.planned(values), values, driver.computed_among(values))
            dry_run.differences = driver.differences
            return why, dry_run

    def inline(self, recorder: Recorder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call from code that is being traced. The program's ops, control flow included,
        become part of the recorded one. Raises CannotInline before anything is run or recorded."""
        from lowtide.frontend.trace.active import paused  # only where something is traced
        from lowtide.frontend.trace.encode import is_encodable
        from lowtide.frontend.trace.encode import plain as without_memory
        from lowtide.frontend.trace.splice import given, operands, splice

        values = self.bind(tuple(args), dict(kwargs))
        driver, real = self.resolve(tuple(without_memory(v) for v in values))
        if any(isinstance(v, torch.nn.Module) for v in real):
            raise CannotInline(f"the program of {self.__name__}() uses a module as an object")
        if not all(map(is_encodable, real)):
            raise CannotInline(
                f"{self.__name__}() takes an object that cannot be recorded in a program"
            )
        held = given(values, real[: len(values)])
        stand_ins = operands(recorder, (*values, *real[len(values) :]))
        with paused():
            result = _run(driver, real)
        return splice(recorder, driver.function, stand_ins, result, held)


class CannotInline(Exception):
    """A traced call of a compiled function whose program cannot become part of another."""


def _run(driver: Driver, values: tuple[Any, ...]) -> Any:
    if torch_state.reason():
        return driver.run_eager(values)
    try:
        return driver(values)
    except Ineligible:
        return driver.run_eager(values)
