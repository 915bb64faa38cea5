"""Traced functions and modules: a recorded program, ready to be called.

In: a Function, how its arguments and results are nested, and the module that its captured
parameters are read from at each call. Out: the callable.

    TracedFunction(function, form, root)(x, y)
    TracedModule(root, {"forward": function})(x)        an nn.Module around the parameters

Always holds: there is no Python function to fall back to, so where the driver cannot run the
program (gradients, autocast, another device) PyTorch runs the recorded ops, one by one.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from lowtide.errors import LowtideError
from lowtide.frontend.trace.active import active
from lowtide.frontend.trace.nests import LEAF
from lowtide.frontend.trace.trace import Form
from lowtide.ir.core import Function
from lowtide.ir.types import Type
from lowtide.pipeline import plain
from lowtide.pipeline.compiled import Compiled, run_eagerly
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.explain import Explanation
from lowtide.pipeline.memory import MemoryPlan
from lowtide.pipeline.script import ScriptFunction
from lowtide.pipeline.shells import share, slot
from lowtide.pipeline.signature import Ineligible

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_reason = plain.reason


def flat_form(function: Function) -> Form:
    """The form of a program whose arguments are tensors and whose result is as it is."""
    names = tuple(a.name for a in function.arguments)
    return Form(names, (LEAF,) * len(names), len(names))


class TracedFunction(Compiled):
    """A recorded function. `root` holds what it captured; see the module's text."""

    def __init__(self, function: Function, form: Form, root: torch.nn.Module) -> None:
        self.__name__ = self.__qualname__ = function.name
        self.form = form
        self.root = root
        self._driver = Driver(function)
        self._slots = [slot(root, path) for path in function.captures]
        self._count = len(form.names) if form.is_flat else -1
        self._is_direct = form.output is LEAF

    def on(self, root: torch.nn.Module) -> TracedFunction:
        """The same program, kernels and all, with the parameters of another module."""
        made = copy.copy(self)
        made.root = root
        made._slots = [slot(root, path) for path in self.program().captures]
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the recorded run would give for these arguments."""
        if _is_compiling() or _reason():
            recorder = active()
            if recorder is not None:
                return self.inline(recorder, args, kwargs)
            return self.wrap(run_eagerly(self._driver, self.bind(args, kwargs)))
        if kwargs or len(args) != self._count or not _TENSORS.issuperset(map(type, args)):
            args = self._flat(args, kwargs)
        slots = self._slots
        values = (*args, *[held[key] for held, key in slots]) if slots else args
        try:
            result = self._driver(values)
        except Ineligible:
            result = run_eagerly(self._driver, values)
        return result if self._is_direct else self.wrap(result)

    def wrap(self, result: Any) -> Any:
        """The caller's nest around the program's result."""
        return result if self._is_direct else self.form.output.build(iter(result))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The operands of the program: the tensors of the arguments, then the captured ones."""
        return (*self._flat(args, kwargs), *(held[key] for held, key in self._slots))

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        names, nests = self.form.names, self.form.nests
        given = dict(zip(names, args, strict=False))
        extra = [name for name in kwargs if name in given or name not in names]
        if len(args) > len(names) or extra:
            wrong = f"{extra[0]!r}" if extra else f"{len(args)} of them"
            raise TypeError(
                f"{self.__name__}() was traced with the arguments ({', '.join(names)}), "
                f"and takes no others: {wrong}"
            )
        given |= kwargs
        missing = [n for n, nest in zip(names, nests, strict=True)
                   if n not in given and nest.kind != "none"]  # fmt: skip
        if missing:
            raise TypeError(f"{self.__name__}() missing argument: {missing[0]!r}")
        leaves: list[Any] = []
        for name, nest in zip(names, nests, strict=True):
            nest.take(given.get(name), f"argument `{name}` of {self.__name__}()", leaves)
        return tuple(leaves)

    def driver(self, args: tuple[Any, ...]) -> Driver:
        """The one program that there is."""
        return self._driver

    def program(self) -> Function:
        """The recorded program."""
        return self._driver.function

    def __lowtide_program__(self, types: Sequence[Type] = ()) -> Function | None:
        """The program, for a front end to inline: None where arguments or results are nested in a
        way that IR does not say. Captured parameters are read from `self.root`."""
        return self.program() if self.form.is_flat and self._is_direct else None

    def __deepcopy__(self, memo: object) -> TracedFunction:
        return self  # as a function

    def __repr__(self) -> str:
        return f"<lt.TracedFunction {self.__name__}({', '.join(self.form.names)})>"

    def save(self, f: Any, **kwargs: Any) -> None:
        """As `lt.save`."""
        save(self, f, **kwargs)


ScriptFunction.register(TracedFunction)  # "the type of a compiled function", as in torch.jit


class TracedModule(torch.nn.Module):
    """An nn.Module whose methods are recorded programs.

    `root`: its parameters, buffers and submodules become this module's; `methods`: the programs,
    whose captures are paths in it; `forms`: how their arguments and results are nested."""

    def __init__(
        self,
        root: torch.nn.Module,
        methods: Mapping[str, Function],
        forms: Mapping[str, Form] | None = None,
    ) -> None:
        super().__init__()
        self.original_name: str = getattr(root, "original_name", type(root).__name__)
        share(root, self)
        self._traced = {
            name: TracedFunction(fn, (forms or {}).get(name) or flat_form(fn), self)
            for name, fn in methods.items()
        }

    def __getattr__(self, name: str) -> Any:
        traced = cast("dict[str, TracedFunction]", self.__dict__.get("_traced", {}))
        if name in traced:
            return traced[name]
        return super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the recorded forward."""
        found = self._traced.get("forward")
        if found is None:
            raise NotImplementedError(f"{self.original_name} was traced without a forward")
        return found(*args, **kwargs)

    def method(self, name: str) -> TracedFunction:
        """The recorded method of this name."""
        return self._traced[name]

    def _forward(self) -> TracedFunction:
        return self._traced.get("forward") or next(iter(self._traced.values()))

    @property
    def graph(self) -> Function:
        """The program of forward; prints as IR."""
        return self._forward().graph

    @property
    def code(self) -> str:
        """The program of forward as Python-like source."""
        return self._forward().code

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """See `Compiled.explain`."""
        return self._forward().explain(*args, **kwargs)

    def memory(self, *args: Any, **kwargs: Any) -> MemoryPlan:
        """See `Compiled.memory`."""
        return self._forward().memory(*args, **kwargs)

    def stages(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        """See `Compiled.stages`."""
        return self._forward().stages(*args, **kwargs)

    def save(self, f: Any, **kwargs: Any) -> None:
        """As `lt.save`."""
        save(self, f, **kwargs)

    def __lowtide_program__(
        self, types: Sequence[Type] = (), method: str = "forward"
    ) -> Function | None:
        """See `TracedFunction.__lowtide_program__`; captures are paths from this module."""
        return self._traced[method].__lowtide_program__(types)

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedModule:
        made = TracedModule.__new__(type(self))
        torch.nn.Module.__init__(made)
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            if name != "_traced":
                made.__dict__[name] = copy.deepcopy(value, memo)
        made.__dict__["_traced"] = {name: fn.on(made) for name, fn in self._traced.items()}
        return made

    def _get_name(self) -> str:
        return "TracedModule"

    def extra_repr(self) -> str:
        """As torch.jit shows it."""
        return f"original_name={self.original_name}"


def save(obj: object, f: Any, **kwargs: Any) -> None:
    """`lt.save`, once there is one."""
    lowtide = importlib.import_module("lowtide")
    found: Callable[..., None] | None = getattr(lowtide, "save", None)
    if found is None:
        raise LowtideError("saving is not there yet")
    found(obj, f, **kwargs)
