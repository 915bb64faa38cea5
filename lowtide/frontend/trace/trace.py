"""One run of a Python function, as a Function.

In: a callable, its arguments, the module whose parameters it may use. Out: a `Recording`: the
program, and how its inputs and outputs are nested.

    record(f, Call((x,), {}, ("x",)))   →   def f(%x: Tensor) -> Tensor: …

Invariant: each tensor of the arguments is one parameter of the Function, in order, and captured
tensors follow. A result of nested tuples, lists and dicts is IR's own; any other is a flat tuple,
and `output` puts it together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.compiler import simplified
from lowtide.cpython import frame_at
from lowtide.errors import UNKNOWN_LOC, CompileError, Loc, LowtideError
from lowtide.frontend.trace import active
from lowtide.frontend.trace.captures import Captures, Constants
from lowtide.frontend.trace.encode import NotEncodable, encode
from lowtide.frontend.trace.mode import TraceMode
from lowtide.frontend.trace.nested_programs import built
from lowtide.frontend.trace.nested_values import LEAF, Nest, NotANest, describe, take_apart
from lowtide.frontend.trace.numbers import TracedFloat, TracedInt
from lowtide.frontend.trace.places import here
from lowtide.frontend.trace.recorder import Recorder
from lowtide.ir import types as t
from lowtide.ir.core import Function, Value
from lowtide.ir.verify import verify

_OUTPUTS = (torch.Tensor, TracedInt, TracedFloat)


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments of a traced function: names and nests. The first `positional` ones were passed
    by position, so they may be passed either way."""

    names: tuple[str, ...]
    nests: tuple[Nest, ...]
    positional: int
    output: Nest = LEAF

    @property
    def is_flat(self) -> bool:
        """Return whether the arguments are tensors."""
        return all(n.kind == "leaf" for n in self.nests)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a traced call. `names`: those of `args`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The result of tracing."""

    function: Function
    form: Form
    result: Any
    warnings: int


def record(
    func: Callable[..., Any],
    call: Call,
    *,
    name: str,
    root: torch.nn.Module | None,
    constants: Constants,
    quiet: bool = False,
) -> Recording:
    """Runs the function once and gives its program; see the module's text.

    Raises CompileError for arguments and results that are not tensors, naming them, and for calls
    that cannot be recorded. The function's own exceptions are raised unchanged.
    """
    if active.is_tracing():
        raise LowtideError(f"lt.trace of {name} inside a traced function: trace it beforehand")
    form, leaves = _form(call, name)
    captures = Captures(root, constants)
    recorder = Recorder(captures, frame_at(), quiet=quiet)
    params: list[Value] = []
    tensors: list[torch.Tensor] = []
    own = {id(x) for x in (*root.parameters(), *root.buffers())} if root is not None else set[int]()
    for where, leaf in leaves:
        is_another = id(leaf) in own or any(leaf is x for x in tensors)
        tensor = _alias(leaf) if is_another else leaf
        params.append(Value(re.sub(r"\W+", "_", where).strip("_"), t.TENSOR))
        tensors.append(tensor)
        recorder.bind_tensor(tensor, params[-1])
    buffers = _buffers(root)
    rest = iter(tensors)
    given = [nest.build(rest) for nest in form.nests]
    named = dict(zip(form.names[form.positional :], given[form.positional :], strict=True))
    try:
        with active.recording(recorder), TraceMode(recorder):
            result = func(*given[: form.positional], **named)
        _warn_of_assigned(recorder, buffers, _buffers(root))
        value, output = _result(recorder, name, result)
    except NotEncodable as what:
        raise CompileError(
            f"{what} cannot be recorded",
            recorder.builder.loc,
            remedy="tensors, numbers, and lists, tuples and dicts of them",
        ) from None
    finally:
        recorder.done = True
    function = _function(recorder, name, [*params, *captures.values], value, _where(func))
    form = Form(form.names, form.nests, form.positional, output)
    return Recording(function, form, result, recorder.warnings)


def _form(call: Call, name: str) -> tuple[Form, list[tuple[str, Any]]]:
    leaves: list[tuple[str, Any]] = []
    names = (*call.names, *call.kwargs)
    nests: list[Nest] = []
    for arg, value in zip(names, (*call.args, *call.kwargs.values()), strict=True):
        try:
            nests.append(take_apart(value, arg, leaves, (torch.Tensor,)))
        except NotANest as what:
            raise CompileError(
                f"argument `{what.where}` of {name}() is {describe(what.value)}: only tensors, and "
                "tuples, lists and dicts of them, are inputs of a traced function",
                remedy="a tensor, or a function of the tensors alone with this value fixed in it",
            ) from None
    return Form(names, tuple(nests), len(call.args)), leaves


def _alias(x: torch.Tensor) -> torch.Tensor:
    """Return the same tensor as another object, so that equal arguments, or an argument and the
    module's parameter, can be told apart."""
    return x.view_as(x) if x.layout is torch.strided else x.detach()


def _buffers(root: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    return {} if root is None else dict(root.named_buffers(remove_duplicate=False))


def _warn_of_assigned(
    recorder: Recorder, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> None:
    """Warn of `self.mean = self.mean * 0.9 + x.mean(0)`: an attribute assignment is not recorded, a
    write into the buffer is."""
    for path, x in after.items():
        if path in before and x is not before[path] and recorder.knows(x):
            what = f"the assignment of the buffer `{path}` is not recorded"
            remedy = f"{path.rpartition('.')[2]}.copy_(...), which is"
            recorder.warn_frozen(what, here(), remedy)


def _result(recorder: Recorder, name: str, result: Any) -> tuple[Value, Nest]:
    leaves: list[tuple[str, Any]] = []
    recorder.grad_off = False
    try:
        nest = take_apart(result, "the result", leaves, _OUTPUTS)
    except NotANest as what:
        raise CompileError(
            f"{what.where} of {name}() is {describe(what.value)}: only tensors, and tuples, lists "
            "and dicts of them, are results of a traced function",
            remedy="torch.as_tensor(...) of a number computed from the inputs, or lt.script",
        ) from None
    values = [encode(recorder, leaf) for _, leaf in leaves]
    if not nest.is_plain:
        return recorder.builder.tuple_make(values), nest
    rest = iter(values)
    return built(recorder.builder, nest, rest), LEAF


def _function(
    recorder: Recorder, name: str, params: Sequence[Value], result: Value, loc: Loc
) -> Function:
    builder = recorder.builder
    recorder.autocast.note(builder.block)
    builder.emit("return", [result])
    recorder.autocast.put_into(builder.block)
    builder.block.args = list(params)
    function = Function(name, builder.block, result.type, {}, loc, tuple(recorder.captures.paths))
    verify(function, after="trace")
    return _without_unused(simplified(function, unrolled=True))


def _without_unused(function: Function) -> Function:
    """Return the function without captures that no op uses."""
    used = {v for op in function.walk() for v in op.operands}
    given = len(function.arguments)
    kept = [
        (value, path)
        for value, path in zip(function.params[given:], function.captures, strict=True)
        if value in used
    ]
    function.block.args = [*function.params[:given], *(value for value, _ in kept)]
    function.captures = tuple(path for _, path in kept)
    return function


def _where(func: Callable[..., Any]) -> Loc:
    target: Any = getattr(func, "forward", func) if isinstance(func, torch.nn.Module) else func
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    if code is None:
        return UNKNOWN_LOC
    return Loc(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
