"""`lt.trace`: one run of a Python function or module on example inputs, as a compiled program.

In: a function or an nn.Module, and example inputs. Out: a `TracedFunction` or a `TracedModule`.

    g = lt.trace(lambda x, y: (x @ y).relu(), (torch.rand(3, 4), torch.rand(4, 5)))
    g(torch.rand(7, 4), torch.rand(4, 2))     other sizes: sizes stay symbols

    m = lt.trace(model.eval(), torch.rand(1, 3, 32, 32))
    m.state_dict(), m.parameters()            those of the model, shared with it

Invariant: a Python branch on a tensor is fixed, with a `TracerWarning` at its line.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, cast

import torch

from lowtide.api.compile_module import keep_module_to
from lowtide.api.compiled import Compiled
from lowtide.api.parameter_tree import Shell, members, shell_of
from lowtide.api.script import script
from lowtide.api.script_module import ScriptModule
from lowtide.api.trace_check import Check, check, copied
from lowtide.api.traced import TracedFunction, TracedModule
from lowtide.diagnostics import debug
from lowtide.errors import CompileError
from lowtide.execute.options import Options, options_of
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.trace.captures import CONSTANTS, Constants
from lowtide.frontend.trace.nested_values import NotANest
from lowtide.frontend.trace.trace import Call, Recording, record


def trace(
    func: Callable[..., Any],
    example_inputs: Any = None,
    optimize: Any = None,
    check_trace: bool = True,
    check_inputs: Sequence[Any] | None = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_kwarg_inputs: Mapping[str, Any] | None = None,
    _store_inputs: bool = True,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> Any:
    """Record one run of `func` on example inputs, and compile the recorded program.

    `example_inputs`: a tuple of tensors, or of tuples, lists and dicts of tensors; a lone tensor is
    a tuple of one. `check_trace`: run the function a second time, and warn where the recorded
    program differs. `check_inputs`: a list of inputs for that. `budget`, `tune`: see `lt.script`.
    `strict` and the other names are torch.jit's and change nothing: containers are recorded in
    their own form.

    Warns with TracerWarning where a Python branch depends on a tensor. Raises CompileError for
    inputs or results that are no tensors, and what the function raises.
    """
    del optimize, strict, _force_outplace, _module_class, _compilation_unit, _store_inputs
    options = options_of(budget, tune)
    if torch_jit_twins.is_module(func) or torch_jit_twins.is_function(func):
        return script(func, budget=budget, tune=tune)  # it has its control flow already
    if isinstance(func, Compiled | ScriptModule):
        warnings.warn("this is already compiled: lt.trace returns it unchanged", stacklevel=2)
        return func
    calls = [_call(func, inputs, None) for inputs in check_inputs or ()]
    example = Example(func, _call(func, example_inputs, example_kwarg_inputs), calls)
    checking = check_tolerance if check_trace else None
    module = _module_of(func)
    if module is not None:
        return _trace_methods(module, {"forward": example}, checking, options)
    return _trace_function(example, checking, options)


def trace_module(
    mod: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimize: Any = None,
    check_trace: bool = True,
    check_inputs: Sequence[Mapping[str, Any]] | None = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_inputs_is_kwarg: bool = False,
    _store_inputs: bool = True,
    *,
    budget: int | str | None = None,
    tune: bool = False,
) -> Any:
    """Trace several methods of a module: `{"forward": args, "encode": args}`. Otherwise as `trace`.

    `example_inputs_is_kwarg`: the inputs of each method are a dict of keyword arguments.
    """
    del optimize, strict, _force_outplace, _module_class, _compilation_unit, _store_inputs
    options = options_of(budget, tune)
    if torch_jit_twins.is_module(mod):
        return script(mod, budget=budget, tune=tune)  # it has its control flow already
    if _module_of(mod) is not mod:
        raise CompileError(f"trace_module takes an nn.Module, not a {type(mod).__name__}")
    methods: dict[str, Example] = {}
    for name, example in inputs.items():
        method = mod if name == "forward" else getattr(mod, name)
        args, kwargs = ((), example) if example_inputs_is_kwarg else (example, None)
        calls = [_call(method, c[name], None) for c in check_inputs or () if name in c]
        methods[name] = Example(method, _call(method, args, kwargs), calls)
    return _trace_methods(mod, methods, check_tolerance if check_trace else None, options)


@dataclass(frozen=True, slots=True)
class Example:
    """A function to trace: a call, and the calls that check the result. Without any, the traced
    call is made a second time. `repeat`: a copy of the call from before the run, which may change
    shapes."""

    func: Callable[..., Any]
    call: Call
    checks: Sequence[Call]
    repeat: Call = field(init=False)

    def __post_init__(self) -> None:
        try:
            repeat = copied(self.call, data=False)
        except NotANest:  # recording it says which argument is none
            repeat = self.call
        object.__setattr__(self, "repeat", repeat)


def _trace_function(example: Example, tolerance: float | None, options: Options) -> TracedFunction:
    constants, name = Constants(), _name(example.func)
    recording = record(example.func, example.call, name=name, root=None, constants=constants)
    root = _with_constants(torch.nn.Module(), constants)
    traced = TracedFunction(recording.function, recording.form, root)
    functools.update_wrapper(traced, example.func, updated=())
    traced.__name__ = name
    _finish(example, recording, traced, None, constants, tolerance)
    traced.set_options(options)
    return traced


def _trace_methods(
    module: torch.nn.Module,
    methods: Mapping[str, Example],
    tolerance: float | None,
    options: Options,
) -> TracedModule:
    parts = cast("Iterable[tuple[str, object]]", module.named_modules())
    for path, part in parts:
        if any(vars(part).get(kind) for kind in ("_backward_hooks", "_backward_pre_hooks")):
            raise CompileError(
                f"{path or 'the module'} has a backward hook, which lt.trace cannot record",
                remedy="lt.script(module), or a module without the hook",
            )
    known: torch.nn.Module | None = members(module, "_modules").get(CONSTANTS)
    constants = Constants(list(known.buffers()) if known is not None else [])
    recordings = {
        name: record(m.func, m.call, name=name, root=module, constants=constants)
        for name, m in methods.items()
    }
    functions = {name: r.function for name, r in recordings.items()}
    forms = {name: r.form for name, r in recordings.items()}
    made = TracedModule(_with_constants(shell_of(module), constants), functions, forms)
    for name, recording in recordings.items():
        traced = made.method(name)
        _finish(methods[name], recording, traced, module, constants, tolerance)
    keep_module_to(made, options)
    return made


def _finish(
    example: Example,
    recording: Recording,
    traced: TracedFunction,
    module: torch.nn.Module | None,
    constants: Constants,
    tolerance: float | None,
) -> None:
    function = recording.function
    debug.show("ir", function.name, lambda: str(function))
    if tolerance is None:
        return
    checking = Check(
        func=example.func,
        name=function.name,
        module=module,
        constants=constants,
        recording=recording,
        traced=traced,
        tolerance=tolerance,
    )
    check(checking, example.checks or [example.repeat], vary=not example.checks)


def _with_constants(root: torch.nn.Module, constants: Constants) -> torch.nn.Module:
    """Return the root, to which the tensors are added that the program captured from elsewhere."""
    if constants.tensors:
        holder = Shell()
        for k, tensor in enumerate(constants.tensors):
            holder.register_buffer(f"c{k}", tensor, persistent=False)
        root.add_module(CONSTANTS, holder)
    return root


def _call(func: Callable[..., Any], inputs: Any, kwargs: Mapping[str, Any] | None) -> Call:
    if inputs is None and kwargs is None:
        raise CompileError(
            f"lt.trace of {_name(func)}() without inputs",
            remedy="lt.trace(func, (x, y)), or example_kwarg_inputs={'x': x}",
        )
    if isinstance(inputs, torch.Tensor | Mapping):
        inputs = (inputs,)
    args: tuple[Any, ...] = tuple(inputs if inputs is not None else ())
    return Call(args, dict(kwargs or {}), _names(func, len(args)))


def _names(func: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return the names of the first arguments, numbered where they have none."""
    target = func.forward if isinstance(func, torch.nn.Module) else func
    names: list[str] = []
    try:
        for p in inspect.signature(target).parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                names.extend(f"{p.name}_{k}" for k in range(count - len(names)))
            elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
    except (TypeError, ValueError):
        pass  # a builtin
    names.extend(f"arg_{k}" for k in range(len(names), count))
    return tuple(names[:count])


def _name(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", type(func).__name__))
    return name if name.isidentifier() else "traced"


def _module_of(func: object) -> torch.nn.Module | None:
    """Return the module, if a module or its bound forward is traced."""
    if isinstance(func, torch.nn.Module):
        return func
    if isinstance(func, MethodType) and func.__func__.__name__ == "forward":
        owner: object = func.__self__
        return owner if isinstance(owner, torch.nn.Module) else None
    return None
