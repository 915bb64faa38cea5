"""Compiles a module's method to a Function with captured parameters.

In: a module, a method of it, the types of the caller's arguments. Out: a `MethodProgram`.

    class Net(nn.Module):                    def forward(%x: Tensor, %weight: Tensor @ "fc.weight",
        def forward(self, x):                            %bias: Tensor @ "fc.bias") -> Tensor:
            return self.fc(x)                  %0: Tensor = torch.linear(%x, %weight, %bias)
                                               return(%0)

Invariant: a parameter that the program does not use is not captured. Lists, dicts and tuples are
captured all the same, since the types of their items may have decided a branch.

A method that does not compile with bools and strings read at run time is compiled again with their
present values as constants. For instance, `if self.has_bias:` can then leave out code that needs a
bias.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch

from lowtide.compiler import simplified
from lowtide.errors import CompileError
from lowtide.frontend.script import module_attributes, module_calls, module_containers
from lowtide.frontend.script.arguments import forwarded_call
from lowtide.frontend.script.context import Context, Frame
from lowtide.frontend.script.functions import outer_names
from lowtide.frontend.script.global_containers import check_unchanged
from lowtide.frontend.script.leaves import leaf_classes
from lowtide.frontend.script.module_state import (
    Callees,
    Guard,
    Knowledge,
    ModuleState,
    Restart,
    follow,
    own_call,
)
from lowtide.frontend.script.nodes import BoundMethod, ModuleRef
from lowtide.frontend.script.outside import Assumptions
from lowtide.frontend.script.rechecked import put_rechecks
from lowtide.frontend.script.script import signature_types
from lowtide.frontend.script.source import decorated, parameters_of, read_source
from lowtide.ir.builder import Builder
from lowtide.ir.core import Block, Function, Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import DictType, ListType, TupleType, Type
from lowtide.ir.verify import verify

LANGUAGE = (module_attributes, module_calls, module_containers)  # these fill the tables
_MOST_RESTARTS = 64
_CONTAINERS = (ListType, DictType, TupleType)
_LITERALS = (bool, int, float, str, tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodProgram:
    """The program of a method. `callees`: see `ModuleState`. `leaves`, `assumed`: see `leaves` and
    `outside`."""

    function: Function
    guards: tuple[Guard, ...]
    callees: Callees
    leaves: tuple[type[Any], ...]
    assumed: Assumptions


def method_types(fn: FunctionType, arg_types: Sequence[Type | None]) -> dict[str, Type]:
    """Return the type of every parameter but the first, which is the module."""
    names = signature_types(fn, [None, *arg_types])
    return dict(list(names.items())[1:])


def compile_method(
    module: torch.nn.Module,
    name: str,
    fn: FunctionType,
    arg_types: Sequence[Type | None] = (),
    *,
    frozen: bool = False,
    preserved: frozenset[str] = frozenset(),
    as_declared: bool = False,
    varying: frozenset[tuple[int, str]] = frozenset(),
    changing: frozenset[str] = frozenset(),
) -> MethodProgram:
    """Return the program of a method; `frozen`: plain attributes are constants, save the
    `preserved`; `as_declared`, `changing`: see `Knowledge`; `varying`: see `Assumptions`.

    Raises CompileError, with the place in the user's file.
    """
    literal_types = _LITERALS if frozen else ()
    first: CompileError | None = None
    for leaves_parts in (False, True):
        for constants in (literal_types, (*literal_types, bool, str)):
            knowledge = Knowledge(
                literal_types=constants,
                captured_names=preserved,
                as_declared=as_declared,
                leaves_parts=leaves_parts,
                varying=varying,
                changing=changing,
            )
            try:
                return _settled(module, name, fn, arg_types, knowledge)
            except CompileError as error:
                first = first or error
    assert first is not None
    raise first


def _settled(
    module: torch.nn.Module,
    name: str,
    fn: FunctionType,
    arg_types: Sequence[Type | None],
    knowledge: Knowledge,
) -> MethodProgram:
    for _ in range(_MOST_RESTARTS):
        try:
            return _compile(module, name, fn, arg_types, knowledge)
        except Restart:
            continue
    raise CompileError(f"the types of the attributes that {name}() assigns do not settle")


def _compile(
    module: torch.nn.Module,
    name: str,
    fn: FunctionType,
    arg_types: Sequence[Type | None],
    knowledge: Knowledge,
) -> MethodProgram:
    source = read_source(fn)
    types = method_types(fn, arg_types)
    builder = Builder(Block())
    c = Context(builder)
    c.assumed = Assumptions(
        varying=set(knowledge.varying), live=knowledge.live, assigned=knowledge.assigned
    )
    c.modules = state = ModuleState(root=module, block=builder.block, knowledge=knowledge)
    builder.loc = source.loc(source.node)
    parameters = list(parameters_of(fn).values())[1:]
    arguments = [Value(n, type_) for n, type_ in types.items()]
    builder.block.args.extend(arguments)
    # Calls look for a frame; this one only passes the arguments on.
    c.frames.append(Frame(fn=fn, source=source, names=outer_names(fn), local_names=frozenset()))
    call = forwarded_call(c, source.node, parameters, arguments)
    ref = ModuleRef(module, "")
    if name == "forward":
        found = module_calls.call_forward(c, ref, call)
    elif name == "__call__" and own_call(module) is None:
        found = module_calls.call_with_hooks(c, ref, call)
    else:
        found = module_calls.call_method(c, BoundMethod(fn, ref), call)
    result = c.as_value(found, source.node)
    state.settle()
    check_unchanged(c)
    is_wider = any(v.type != types[v.name] for v in arguments)
    c.assumed.puts_more = is_wider or bool(knowledge.container_types)
    captures = builder.block.args[len(arguments) :]
    by_path = dict(zip(state.paths, captures, strict=True))
    c.assumed.settle_methods({**dict(enumerate(arguments)), **by_path})
    builder.emit("return", [result])
    put_rechecks(c)
    defaults = _defaults(fn)
    loc = source.loc(source.node)
    paths = tuple(state.paths)
    compiled = Function(name, builder.block, result.type, defaults, loc, paths)
    verify(compiled, after="script")
    function = without_unused_captures(simplified(compiled), c.assumed.methods)
    # A path of which only the type mattered is no longer read, but its type must still hold.
    unread = [p for p in paths if p not in function.captures and not p.startswith("@")]
    types_only = [Guard("type", p) for p in unread if follow(module, p)[1]]
    return MethodProgram(
        function=function,
        guards=tuple(dict.fromkeys((*state.guards, *types_only))),
        callees=state.callees,
        leaves=leaf_classes(compiled),
        assumed=c.assumed,
    )


def _defaults(fn: FunctionType) -> dict[str, object]:
    fn = decorated(fn)
    code, values = fn.__code__, fn.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    found = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return {n: v for n, v in (found | (fn.__kwdefaults__ or {})).items() if is_literal(v)}


def without_unused_captures(fn: Function, wanted: Container[int | str] = ()) -> Function:
    """Return the function without unused captured parameters, except containers and those whose
    paths are `wanted`."""
    used = {v for op in fn.walk() for v in op.operands}
    count = len(fn.arguments)
    rows = list(zip(fn.params[count:], fn.captures, strict=True))
    kept = [(v, p) for v, p in rows if v in used or isinstance(v.type, _CONTAINERS) or p in wanted]
    block = Block([*fn.arguments, *(v for v, _ in kept)], fn.block.ops)
    return replace(fn, block=block, captures=tuple(path for _, path in kept))
