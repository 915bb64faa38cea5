"""`lt.script` of a function: a Python function that is compiled when it is called.

In: a function. Out: a `ScriptFunction`. Its syntax is checked at once, its program built for each
tuple of argument types, its kernels for each signature of sizes.

    @lt.script
    def f(x, n: int = 3): return x.sum(0) * n

    f(torch.rand(1000, 4))       # as if it were the Python function
    f.explain(torch.rand(10, 4))
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from types import FunctionType
from typing import Any, cast

import torch

from lowtide.api import names
from lowtide.api.compiled import CannotInline
from lowtide.api.pickled import reduced
from lowtide.api.torch_jit_members import TorchJitMembers
from lowtide.budget.drivers import make_driver
from lowtide.diagnostics import debug, stats
from lowtide.diagnostics.argument_errors import python_words
from lowtide.diagnostics.tracebacks import entry_point, through_user_lines
from lowtide.diagnostics.warned import warn
from lowtide.errors import CompileError
from lowtide.execute.captures import Reader
from lowtide.execute.demands import demands
from lowtide.execute.differences import differences, type_facts
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.frontend.script.outside import Assumptions, note_program, renewed
from lowtide.frontend.script.recursion import is_inside, running
from lowtide.frontend.script.script import check_syntax, signature_types, simplified_function
from lowtide.frontend.script.source import has_own_source
from lowtide.frontend.trace.active import active
from lowtide.ir import types as ir_types
from lowtide.ir.core import Function
from lowtide.memory import watching
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state
from lowtide.torch_private.graph_capture import left_out

_SCALAR_TYPES = frozenset(
    {torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}
)
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_reason = torch_state.reason


class ScriptFunction(TorchJitMembers):
    """A compiled function, which `lt.script` returns. Safe to call from many threads.

    It is called like the Python function. A program is built for each tuple of argument types,
    kernels for each signature of sizes. `explain`, `memory` and `stages` take the same arguments.
    """

    __wrapped__: Callable[..., Any]
    __name__: str
    _of_defaults: Callable[..., Any] | None = None  # whose defaults a call has, where it has any
    _defaults: Sequence[object] = ()
    _count = 0  # of the programs that were made
    _receivers = 0  # arguments that Python counts, which are not in the signature

    def __init__(self, fn: Callable[..., Any]) -> None:
        check_syntax(fn)
        functools.update_wrapper(self, fn)
        self.__lowtide_function__ = fn
        self._fn = self._plainly(fn.__name__) if has_own_source(fn) else fn
        self._signature = inspect.signature(fn)
        self._of_defaults = inspect.unwrap(fn)
        self._defaults = defaults_of(self._of_defaults)
        parameters = self._signature.parameters.values()
        plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        self._arity = len(parameters) if plain else -1  # arguments of a call that needs no binding
        self._plain_drivers: dict[tuple[type, ...], Driver] = {}
        self._drivers: dict[tuple[ir_types.Type, ...], Driver] = {}
        self._assumed: dict[tuple[ir_types.Type, ...], Assumptions] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the Python function."""
        if _is_compiling() or (running and is_inside(self._of_defaults)):
            return self._fn(*args, **kwargs)
        if _reason():
            return watching.call(self._fn.__name__, self, self._python, _reason, args, kwargs)
        values = args
        if kwargs or len(args) != self._arity:
            values = self.bind(args, kwargs)
        driver = self._plain_drivers.get(tuple(map(type, values)))
        if driver is None or (driver.holds is not None and not driver.holds()):
            with watching.aside():
                driver = self._built(values)
        try:
            if driver.captured is not None:
                values = (*values, *driver.captured()[0])
            return driver(values)
        except Ineligible:
            return self._python(*args, **kwargs)
        except Exception as error:
            raise through_user_lines(error) from error.__cause__

    @entry_point
    def _built(self, values: tuple[Any, ...]) -> Driver:
        return self.driver(values)

    def _python(self, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is not None:
            try:
                return self.inline(recorder, args, kwargs)
            except CannotInline:
                pass  # its Python code is traced, control flow frozen
        else:
            self.without_budget(_reason())
        stats.count("calls_eager")
        return self._fn(*args, **kwargs)

    def _plainly(self, name: str) -> Callable[..., Any]:
        """Stands for the Python function where there is none: PyTorch runs the program's ops."""

        def run(*args: Any, **kwargs: Any) -> Any:
            driver, values = self.resolve(self.bind(args, kwargs))
            return driver.run_eager(values)

        run.__name__ = run.__qualname__ = name
        return left_out(cast("FunctionType", run))

    def _read_signature(self) -> inspect.Signature:
        return inspect.signature(self.__lowtide_function__)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: plain Python's binding."""
        return self if instance is None else functools.partial(self, instance)

    @property
    def __defaults__(self) -> tuple[object, ...] | None:
        """The defaults of the Python function; the next call sees a change."""
        return cast("Any", self._of_defaults).__defaults__

    @__defaults__.setter
    def __defaults__(self, values: tuple[object, ...] | None) -> None:
        cast("Any", self._of_defaults).__defaults__ = values

    @property
    def __kwdefaults__(self) -> dict[str, object] | None:
        """The keyword defaults of the Python function; the next call sees a change."""
        return cast("Any", self._of_defaults).__kwdefaults__

    @__kwdefaults__.setter
    def __kwdefaults__(self, values: dict[str, object] | None) -> None:
        cast("Any", self._of_defaults).__kwdefaults__ = values

    def __deepcopy__(self, memo: object) -> ScriptFunction:
        return self  # as a function

    def __reduce__(self) -> Any:
        if has_own_source(self.__lowtide_function__) or not self._has_name():
            return reduced(self)
        return self._fn.__qualname__  # pickled by name, as a function

    def _has_name(self) -> bool:
        """Return whether another process finds the function by its module and name: not one of a
        script, a notebook or another function, nor one whose name is the Python function's."""
        module = self._fn.__module__
        found: object = sys.modules.get(module)
        for part in self._fn.__qualname__.split("."):
            found = getattr(found, part, None)
        return found is self and module != "__main__"

    def __repr__(self) -> str:
        return f"<lt.ScriptFunction {self._fn.__qualname__}{self._signature}>"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments in order, with defaults; raises Python's own TypeError."""
        defaults = defaults_of(self._of_defaults)
        if len(defaults) != len(self._defaults) or not all(map(is_, defaults, self._defaults)):
            self._signature, self._defaults = self._read_signature(), defaults
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            what = python_words(self._signature, args, kwargs, self._receivers) or error
            raise TypeError(f"{self._fn.__name__}() {what}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def driver(self, args: tuple[Any, ...]) -> Driver:
        """Return the program for the types of these arguments, built if need be; raises
        CompileError."""
        types = tuple(map(self._type_of, self._signature.parameters, args))
        kinds = tuple(map(type, args))
        are_plain = _SCALAR_TYPES.issuperset(kinds)  # their classes tell the types
        driver = self._drivers.get(types)
        if driver is not None and not are_plain and not driver.is_outdated():
            return driver
        with self._lock:
            driver = self._drivers.get(types)
            if driver is None or driver.is_outdated():
                assumed = self._assumed[types] = renewed(
                    self._assumed.get(types), self.__name__, warn
                )
                source = self.__lowtide_function__
                function, leaves = simplified_function(source, types, assumed)
                debug.show("ir", function.name, lambda: str(function))
                driver = make_driver(function, self.options)
                driver.leaves, driver.holds = leaves, assumed.holds()
                driver.demands = demands(function, assumed)
                driver.differences = assumed.differences or self._new_types(types, self._drivers)
                self._drivers[types] = driver
                self._count += 1
                note_program(self._count, self.__name__, assumed, driver.differences, warn)
                if function.captures:
                    driver.captured = Reader(torch.nn.Module(), function.captures, ()).read
            if are_plain and not driver.leaves:
                self._plain_drivers[kinds] = driver
            return driver

    def set_options(self, options: Options) -> None:
        """See `Compiled.set_options`."""
        with self._lock:
            super().set_options(options)
            self._drivers.clear()
            self._plain_drivers.clear()

    def _new_types(
        self, types: Sequence[ir_types.Type], known: Iterable[Sequence[ir_types.Type]]
    ) -> tuple[str, ...]:
        """Return the differences between the types of a new program's arguments and the nearest
        known ones."""
        names = self._signature.parameters
        return differences(type_facts(names, types), (type_facts(names, k) for k in known))

    def _type_of(self, name: str, value: object) -> ir_types.Type:
        found = ir_types.type_of(value)
        if found is None:
            raise CompileError(
                f"argument `{name}` of {self._fn.__name__}() is a {type(value).__name__}, "
                "which is not compiled",
                remedy="tensors, numbers, strings, dtypes, devices, and lists and tuples of them",
            )
        return found

    def resolve(self, values: tuple[Any, ...]) -> tuple[Driver, tuple[Any, ...]]:
        """See `Compiled.resolve`."""
        driver = self.driver(values)
        return driver, values if driver.captured is None else (*values, *driver.captured()[0])

    @property
    def signature(self) -> inspect.Signature:
        """The parameters."""
        return self._signature

    def drivers(self) -> list[Driver]:
        """Return the programs built so far, in order."""
        with self._lock:
            return list(self._drivers.values())

    def save(self, f: Any, _extra_files: dict[str, Any] | None = None) -> None:
        """Write the function to a file: `lt.save(self, f, _extra_files)`."""
        names.find("save")(self, f, _extra_files)

    def program(self) -> Function:
        """Return the program for the latest types of arguments, else for the annotated ones."""
        with self._lock:
            if self._drivers:
                return next(reversed(self._drivers.values())).function
        source = self.__lowtide_function__
        return program_of(source, tuple(signature_types(source).values()))


def program_of(fn: Callable[..., Any], types: Sequence[ir_types.Type]) -> Function:
    """Return the program of a function for arguments of these types."""
    return simplified_function(fn, types)[0]


def defaults_of(fn: Any) -> list[object]:
    """Return the defaults of a function's parameters, which Python code may replace."""
    by_name: dict[str, object] = getattr(fn, "__kwdefaults__", None) or {}
    return [*(getattr(fn, "__defaults__", None) or ()), *by_name.values()]
