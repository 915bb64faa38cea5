"""Traced functions and modules: callables around a recorded program.

In: a Function, the nesting of its arguments and results, and the module whose parameters it reads
at each call. Out: the callable.

    TracedFunction(function, form, root)(x, y)
    TracedModule(root, {"forward": function})(x)        a ScriptModule around the root

Invariant: if the driver cannot run the program (a mode of PyTorch's, another device), PyTorch
runs the recorded ops one by one, since there is no Python function to call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lowtide.api.pickled import reduced
from lowtide.api.script_method import ScriptMethod
from lowtide.api.script_module import ScriptModule, WrappedModule
from lowtide.budget.dry_run import DryRun
from lowtide.diagnostics.tracebacks import through_user_lines
from lowtide.errors import CompileError
from lowtide.frontend.trace.nested_programs import with_nests, with_result
from lowtide.frontend.trace.nested_values import LEAF
from lowtide.frontend.trace.trace import Form
from lowtide.ir.core import Function
from lowtide.ir.types import Type
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_reason = torch_state.reason
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def flat_form(function: Function) -> Form:
    """Return the form of a program with tensors as arguments and a plain result."""
    names = tuple(a.name for a in function.arguments)
    return Form(names, (LEAF,) * len(names), len(names))


class TracedFunction(ScriptMethod):
    """A recorded function, which `lt.trace` returns. `root`: a module with the captured tensors."""

    def __init__(self, function: Function, form: Form, root: torch.nn.Module) -> None:
        super().__init__(root, function.name, function)
        self.__qualname__ = function.name
        self.form = form
        self._program = function
        self._captures = bool(function.captures) or len(self._recorded_with) > 1
        self._count = len(form.names) if form.is_flat else -1
        self._is_direct = form.output is LEAF
        self._whole = function if form.is_flat else with_nests(function, form.names, form.nests)

    def __reduce__(self) -> Any:
        return reduced(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the recorded run would return for these arguments."""
        if kwargs or len(args) != self._count or not _TENSORS.issuperset(map(type, args)):
            args = self.flat(args, kwargs)
        variant = self._newest
        values = None
        if variant is not None and not _is_compiling() and not _reason():
            values = variant.values() if self._captures else ()
        if variant is None or values is None:
            return self.wrap(super().__call__(*args))
        try:
            result = variant.driver((*args, *values))
        except Ineligible:
            result = self._python(*args)
        except Exception as error:
            raise through_user_lines(error) from error.__cause__
        return result if self._is_direct else self.wrap(result)

    def wrap(self, result: Any) -> Any:
        """Return the caller's nest around the program's result."""
        return result if self._is_direct else self.form.output.build(iter(result))

    def flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the tensors of the arguments, in the program's order; raises TypeError for
        others."""
        names, nests = self.form.names, self.form.nests
        given = dict(zip(names, args, strict=False))
        extra = [name for name in kwargs if name in given or name not in names]
        if len(args) > len(names) or extra:
            wrong = f"{extra[0]!r}" if extra else f"{len(args)} of them"
            raise TypeError(
                f"{self.__name__}() was traced with the arguments ({', '.join(names)}), "
                f"and takes no other ones: {wrong}"
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

    def program(self) -> Function:
        """Return the recorded program."""
        return self._program

    def _dry_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, DryRun]:
        return super()._dry_run(self.flat(args, kwargs), {})

    def __lowtide_program__(self, types: Sequence[Type] = ()) -> Function | None:
        """Return the program for a front end to inline. None if IR cannot express the nest of
        arguments or results. Captured parameters are read from `self.root`."""
        return self.whole

    @property
    def whole(self) -> Function | None:
        """The program with the arguments as the user gives them; None where IR cannot say it."""
        return self._whole if self._is_direct else None

    def __deepcopy__(self, memo: object) -> TracedFunction:
        return self  # as a function

    def __repr__(self) -> str:
        return f"<lt.TracedFunction {self.__name__}({', '.join(self.form.names)})>"

    def __lowtide_saved__(self) -> ScriptModule:
        """Return the module that `lt.save` writes, whose forward is this function. Raises
        CompileError."""
        return WrappedModule(self.root, {"forward": saved(self)})


def saved(traced: TracedFunction) -> Function:
    """Return the program to save. An OrderedDict or a ModelOutput becomes a dict, a named tuple a
    tuple. Raises CompileError if IR cannot express it."""
    form = traced.form
    program = traced.program()
    if form.output is not LEAF:
        program = with_result(program, form.output.in_files)
    if program is not None and not form.is_flat:
        program = with_nests(program, form.names, [n.in_files for n in form.nests])
    if program is None:
        raise CompileError(
            f"the traced {traced.__name__}() has arguments or results that cannot be saved",
            remedy="tuples, lists of one type, and dicts by name, or lt.script",
        )
    return program


class TracedModule(WrappedModule):
    """A compiled module whose methods are recorded programs.

    `root`: its parameters, buffers and submodules; `methods`: the programs, whose captures are
    paths in it; `forms`: how their arguments and results are nested, if not flat."""

    def __init__(
        self,
        root: torch.nn.Module,
        methods: Mapping[str, Function],
        forms: Mapping[str, Form] | None = None,
    ) -> None:
        super().__init__(root, methods)
        own = self.__dict__
        own["_lowtide_forms"] = dict(forms or {})
        for name, function in methods.items():
            form = own["_lowtide_forms"].get(name) or flat_form(function)
            own[name] = TracedFunction(function, form, root)
        whole = {name: self.method(name).whole for name in methods}
        root.__dict__["_lowtide_programs"] = {n: f for n, f in whole.items() if f is not None}

    def method(self, name: str) -> TracedFunction:
        """Return the recorded method of this name."""
        return self.__dict__[name]

    def __lowtide_program__(
        self, types: Sequence[Type] = (), method: str = "forward"
    ) -> Function | None:
        """See `TracedFunction.__lowtide_program__`; captures are paths from this module."""
        return self.method(method).__lowtide_program__(types)

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedModule:
        own = self.__dict__
        for name in own["_lowtide_given"]:
            self.method(name).check_submodules()
        root = copy.deepcopy(own["_lowtide_root"], memo)
        made = TracedModule(root, own["_lowtide_given"], own["_lowtide_forms"])
        memo[id(self)] = made
        return made

    def _get_name(self) -> str:
        return "TracedModule"

    def __lowtide_saved__(self) -> ScriptModule:
        """Return the module that `lt.save` writes. Raises CompileError."""
        given: Mapping[str, Function] = self.__dict__["_lowtide_given"]
        whole = {name: saved(self.method(name)) for name in given}
        return self if whole == given else WrappedModule(self.__dict__["_lowtide_root"], whole)
