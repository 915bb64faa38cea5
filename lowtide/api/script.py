"""`lt.script`: compiles a function, a module or a class from its Python source.

@lt.script
def f(x, n: int = 3): return x.sum(0) * n        a ScriptFunction

lt.script(nn.Linear(3, 4))                       a ScriptModule
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast, overload

import torch

from lowtide.api.compile_module import script_module
from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import ScriptModule
from lowtide.diagnostics.tracebacks import entry_point
from lowtide.errors import CompileError
from lowtide.execute.options import Options, options_of
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.syntax import check_syntax
from lowtide.ir import python_objects

Class = TypeVar("Class", bound=type)


@overload
def script(  # pyright: ignore[reportOverlappingOverload]: a module is callable, too
    obj: torch.nn.Module,
    optimize: None = None,
    _frames_up: int = 0,
    _rcb: Callable[[str], Any] | None = None,
    example_inputs: Any = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> ScriptModule: ...
@overload
def script(  # pyright: ignore[reportOverlappingOverload]: a class is callable, too
    obj: Class,
    optimize: None = None,
    _frames_up: int = 0,
    _rcb: Callable[[str], Any] | None = None,
    example_inputs: Any = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> Class: ...
@overload
def script(
    obj: Callable[..., Any],
    optimize: None = None,
    _frames_up: int = 0,
    _rcb: Callable[[str], Any] | None = None,
    example_inputs: Any = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> ScriptFunction: ...
@overload
def script(
    obj: None = None, *, budget: int | str | None = None, tune: bool = False
) -> Callable[[Callable[..., Any]], ScriptFunction]: ...


@entry_point
def script(
    obj: Any = None,
    optimize: None = None,
    _frames_up: int = 0,
    _rcb: Callable[[str], Any] | None = None,
    example_inputs: Any = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> Any:
    """Compile a function, an nn.Module or a class from its Python source, control flow included; a
    decorator too.

    `budget`: bytes, or a string such as "512MB", that one call may allocate at its peak. Results
    and values saved for backward count. A call that does not fit raises BudgetError before it runs.

    `tune`: the first call with sizes of a kind measures several schedules, and stores the fastest
    on this machine. `example_inputs`: a list of tuples of arguments of a module's forward, or
    {module: list}, for which kernels are compiled at once. `optimize`, `_frames_up` and `_rcb` are
    torch.jit's: they choose nothing here.

    Raises CompileError for what is outside the language, with the line and what to write instead.
    """
    del optimize, _frames_up, _rcb
    options = options_of(budget, tune)
    if obj is None:
        return functools.partial(script, budget=budget, tune=tune)
    if isinstance(obj, ScriptFunction):
        if options != Options():
            obj.set_options(options)
        return obj
    if hasattr(obj, "__prepare_scriptable__") and not isinstance(obj, type):
        obj = obj.__prepare_scriptable__()  # what is to be compiled in its place, as for torch.jit
    if isinstance(obj, list | dict):
        return cast("object", obj)  # compiled code takes it as it is; torch.jit wraps it
    if isinstance(obj, torch.nn.Module):
        return script_module(obj, example_inputs, options)
    if isinstance(obj, type) and not issubclass(obj, torch.nn.Module):
        return script_class(cast("type[Any]", obj))
    if isinstance(obj, type | MethodType):
        name = getattr(obj, "__name__", type(obj).__name__)
        if isinstance(obj, type):
            problem, remedy = "a class of modules", f"lt.script({name}(…)), of an object"
        else:
            problem, remedy = (
                "a bound method",
                f"lt.script(module).{name}, with @lt.export above it",
            )
        raise CompileError(f"{name!r} is {problem}, which is not compiled", remedy=remedy)
    if torch_jit_twins.is_function(obj):
        obj = torch_jit_twins.function_twin(obj)
    made = ScriptFunction(obj)
    made.set_options(options)
    return made


def script_class(cls: Class) -> Class:
    """Check the syntax of the class's methods, and return the class. Compiled functions make and
    use its objects, and inline its methods."""
    for member in vars(cls).values():
        fn = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(fn, FunctionType) and fn.__code__.co_filename == _file_of(cls):
            check_syntax(fn)
    python_objects.name_of(cls)
    return cls


def _file_of(cls: type) -> str:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", ""))
