"""Inlines finished programs, traced or loaded, into the program being built.

In: an object with programs, and a call's arguments. Out: the ops of one program, in place of the
call. Its captured parameters become captured parameters of the outer program.

    traced(x)      →  the recorded ops, with %x for their parameter
    loaded(x, 2)   →  the ops of the program that was saved for (Tensor, int)

Invariant: the outer program has all guards of the inner one.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch

from lowtide.errors import CompileError
from lowtide.frontend.script.arguments import bind_python, check_count
from lowtide.frontend.script.captured import capture
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.flow import branch_on
from lowtide.frontend.script.module_state import Guard, ModuleState, Restart, follow, join_path
from lowtide.frontend.script.nodes import Call, ModuleRef, Node
from lowtide.frontend.script.source import mark_of
from lowtide.frontend.script.statements import as_declared
from lowtide.ir import types as t
from lowtide.ir.core import Function, Value, clone_op
from lowtide.ir.types import Type


class Saved(Protocol):
    """A program from a file. `reads`: the types of attributes that it reads in place."""

    @property
    def function(self) -> Function: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...
    @property
    def reads(self) -> Mapping[str, Type]: ...


class SavedPrograms(Protocol):
    """All programs of a function or method from a file."""

    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> inspect.Signature: ...

    def chosen(
        self, types: Sequence[Type], root: torch.nn.Module | None, *, as_declared: bool = False
    ) -> Saved:
        """Return the program for these argument types and the module's present state. With
        `as_declared`, for any state that its declarations allow. Raises TypeError or
        CompileError."""
        ...

    def optional(self, name: str) -> Type | None:
        """Return the Optional type that a program declares for this attribute, None if none
        does."""
        ...


def program_of(obj: object) -> Function | None:
    """Return the finished program of a callable, None if it has none that can be inlined."""
    find: Callable[[], Function | None] | None = mark_of(obj, "__lowtide_program__")
    return None if find is None else find()


def call_program(c: Context, obj: Any, function: Function, call: Call) -> Node:
    """Inline a traced function; its captures are read from its root."""
    return _inline(c, function, call, lambda path, type_: capture(c, obj.root, path, type_))


def call_saved(c: Context, saved: SavedPrograms, call: Call) -> Node:
    """Inline a loaded function."""
    given = _arguments(c, saved, call)
    program = _chosen(c, saved, call.node, given, None)
    return _grafted(c, program.function, given, call.node, {})


def module_program(ref: ModuleRef, method: str) -> Function | SavedPrograms | None:
    """Return the finished program of a traced module's method, or those of a loaded one."""
    own = vars(ref.module)
    given = cast("dict[str, Function | SavedPrograms]", own.get("_lowtide_programs", {}))
    return given.get(method)


def finished_names(ref: ModuleRef) -> list[str]:
    """Return the methods of a module that have finished programs."""
    return list(cast("dict[str, object]", vars(ref.module).get("_lowtide_programs", {})))


def saved_optional(module: torch.nn.Module, name: str) -> Type | None:
    """Return the Optional type of a loaded module's attribute in the programs of its methods."""
    given = cast("dict[str, Function | SavedPrograms]", vars(module).get("_lowtide_programs", {}))
    found = (p.optional(name) for p in given.values() if not isinstance(p, Function))
    return next((type_ for type_ in found if type_ is not None), None)


def note_ties(root: torch.nn.Module) -> None:
    """Store with the module of recorded programs which parameters and buffers are shared: one
    capture stands for all names of a tensor."""
    names: dict[int, dict[tuple[int, str], str]] = {}
    buffers = root.named_buffers(remove_duplicate=False)
    for path, tensor in (*root.named_parameters(remove_duplicate=False), *buffers):
        owner, name = follow(root, path)  # a module that has two names itself is one
        names.setdefault(id(tensor), {}).setdefault((id(owner), name), path)
    tied = (tuple(found.values()) for found in names.values())
    pairs = [Guard("same", path, other) for path, *rest in tied for other in rest]
    vars(root)["_lowtide_ties"] = tuple(pairs)


def ties_of(root: torch.nn.Module, function: Function) -> tuple[Guard, ...]:
    """Return the shared tensors that a recorded program relies on."""
    if "_lowtide_ties" not in vars(root):
        note_ties(root)
    noted = cast("tuple[Guard, ...]", vars(root)["_lowtide_ties"])
    return tuple(guard for guard in noted if guard.path in function.captures)


def call_module_program(
    c: Context, ref: ModuleRef, found: Function | SavedPrograms, call: Call
) -> Node:
    """Inline such a method; its captures are paths from the module."""
    state = c.modules
    assert state is not None
    if isinstance(found, Function):
        for tie in ties_of(ref.module, found):
            _rely_on(c, state, ref, tie, call)
        return _inline(c, found, call, lambda path, type_: _own(c, state, ref, path, type_))
    given = _arguments(c, found, call)
    program = _chosen(c, found, call.node, given, ref.module)
    function = program.function
    _restart_if_assigned(state, function)
    for guard in program.guards:
        other = _within(ref, guard.other) if guard.other else ""
        state.guards[Guard(guard.kind, _within(ref, guard.path), other)] = None
    for path in program.reads:
        state.guard("type", _within(ref, path))
    parameters = function.params[len(function.arguments) :]
    captured = {
        parameter: _own(c, state, ref, path, parameter.type)
        for parameter, path in zip(parameters, function.captures, strict=True)
    }
    return _grafted(c, function, given, call.node, captured)


def _rely_on(c: Context, state: ModuleState, ref: ModuleRef, tie: Guard, call: Call) -> None:
    names = _within(ref, tie.path), _within(ref, tie.other)
    one, other = (getattr(*follow(ref.module, path), None) for path in (tie.path, tie.other))
    if one is not other:
        reason = f"`self.{names[0]}` is no longer `self.{names[1]}`"
        problem = f"{reason}, as it was when the module was recorded"
        raise c.error(call.node, problem, "one tensor for both, or lt.trace again")
    state.guards[Guard("same", *names)] = None


def _arguments(c: Context, saved: SavedPrograms, call: Call) -> list[Value]:
    check_count(c, call)
    bound = bind_python(c, call.node, saved.name, saved.signature, call.args, call.keywords)
    return [c.as_value(bound[name], call.node) for name in saved.signature.parameters]


def _chosen(
    c: Context,
    saved: SavedPrograms,
    node: ast.AST,
    given: Sequence[Value],
    root: torch.nn.Module | None,
) -> Saved:
    as_declared = c.modules is not None and c.modules.knowledge.as_declared
    try:
        return saved.chosen([v.type for v in given], root, as_declared=as_declared)
    except TypeError as error:
        raise c.error(node, str(error), "arguments of those types") from error
    except CompileError as error:
        raise c.error(node, error.problem, error.remedy) from error


def _restart_if_assigned(state: ModuleState, function: Function) -> None:
    """Make attributes that the program assigns dynamic in the outer program, too."""
    modules = set(function.params[len(function.arguments) :])
    found = {
        str(op.attrs["name"])
        for op in function.walk()
        if op.name == "attr.set" and op.operands[0] in modules
    }
    if not found <= state.knowledge.dynamic:
        state.knowledge.dynamic |= found
        raise Restart(", ".join(sorted(found)))


def _within(ref: ModuleRef, path: str) -> str:
    return join_path(ref.path, path) if path and not path.startswith("@") else path or ref.path


def _own(c: Context, state: ModuleState, ref: ModuleRef, path: str, type_: Type) -> Value:
    if not path:
        return state.object(ref.path, ref.module)
    if path.startswith("@"):
        return state.capture(path, None, type_)
    owner, name = follow(ref.module, path)
    own = vars(owner)
    whole = join_path(ref.path, path)
    found: list[object] = [
        held[name] for held in (own["_parameters"], own["_buffers"], own) if name in held
    ]
    if found and name in state.knowledge.dynamic:  # assigned by what is around the program
        state.guard("type", whole)
        module = state.object(whole.rpartition(".")[0], owner)
        return c.builder.emit("attr.get", [module], [type_], name=name).result
    return state.capture(whole, found[0] if found else None, type_)


def _inline(
    c: Context, function: Function, call: Call, captured: Callable[[str, Type], Value]
) -> Node:
    names = [a.name for a in function.arguments]
    given: dict[str, Node] = dict(zip(names, call.args, strict=False)) | call.keywords
    if len(call.args) > len(names) or not set(given) <= set(names):
        raise c.error(
            call.node, f"{function.name}() takes {', '.join(names)}", "one value for each"
        )
    values: list[Value] = []
    for argument in function.arguments:
        if argument.name in given:
            values.append(c.as_value(given[argument.name], call.node))
        elif argument.name in function.defaults:
            values.append(c.const(function.defaults[argument.name]))
        else:
            raise c.error(
                call.node, f"{function.name}() lacks {argument.name!r}", f"`{argument.name}=…`"
            )
    parameters = function.params[len(names) :]
    rows = zip(parameters, function.captures, strict=True)
    return _grafted(c, function, values, call.node, {p: captured(path, p.type) for p, path in rows})


def _fitting(c: Context, node: ast.AST, value: Value, argument: Value) -> Value:
    """Return the value for an argument of a finished program, which has fixed types. If the type is
    known at run time only, the program raises TypeError there."""
    vague = t.is_dynamic(value.type) and not t.is_subtype(value.type, argument.type)
    if not vague:
        return c.as_value(as_declared(c, value, argument.type), node)

    def fail() -> None:
        problem = f"{argument.name!r} was saved for {argument.type}"
        c.builder.emit("raise", [c.const(problem)], exception="TypeError")

    if argument.type == t.TENSOR or t.is_number(argument.type):
        is_tensor = c.builder.emit("py.isinstance", [value], [t.BOOL], type="Tensor").result
        then, otherwise = fail, lambda: None
        if argument.type == t.TENSOR:
            then, otherwise = otherwise, then
        branch_on(c, node, is_tensor, then, otherwise)
    return c.builder.emit("cast", [value], [argument.type]).result


def _grafted(
    c: Context,
    function: Function,
    given: Sequence[Value],
    node: ast.AST,
    captured: Mapping[Value, Value],
) -> Node:
    mapping = dict(captured)
    for argument, value in zip(function.arguments, given, strict=True):
        mapping[argument] = _fitting(c, node, value, argument)
    for op in function.block.ops[:-1]:
        c.builder.graft(clone_op(op, mapping))
    (result,) = function.block.terminator.operands
    return mapping.get(result, result)
