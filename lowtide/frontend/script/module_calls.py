"""Calls of modules and of their methods: inlined, left to Python, or run by PyTorch.

In: a ModuleRef or BoundMethod, and a call's arguments. Out: the ops of the method's body.

    self.fc(x)       the forward pre-hooks, forward and the forward hooks of `fc`, inlined
    self.plot(x)     py.call(%self, %x) {target="net.Net.plot"} for a method marked @lt.ignore
    self.rnn(x)      call_module(%rnn, %x) {why="…"} where torch.nn's own forward does not compile

Always holds: a module of the user's that cannot be compiled is a CompileError at its own line; only
PyTorch's own modules are left to PyTorch.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch.nn.modules import module as torch_module

from lowtide.errors import CompileError
from lowtide.frontend.script import decorators
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.calls import bind_python
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import known_elements
from lowtide.frontend.script.functions import compile_body, outer_names, push_frame
from lowtide.frontend.script.module_attributes import class_attribute, state_of
from lowtide.frontend.script.module_containers import METHODS
from lowtide.frontend.script.module_state import Restart
from lowtide.frontend.script.node_tables import CALL_OF, LEFT_TO_PYTHON
from lowtide.frontend.script.nodes import (
    BoundMethod,
    Call,
    Members,
    ModuleRef,
    Node,
    PythonObject,
    Super,
)
from lowtide.frontend.script.source import read_source, unwrap
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_DEEPEST = 200  # calls within calls
_TWO_STATES = t.tuple_of(t.TENSOR, t.TENSOR)

# What modules give that PyTorch runs, where their annotations do not say it.
_RESULTS: dict[type, t.Type] = {
    torch.nn.LSTM: t.tuple_of(t.TENSOR, _TWO_STATES),
    torch.nn.RNN: _TWO_STATES,
    torch.nn.GRU: _TWO_STATES,
    torch.nn.LSTMCell: _TWO_STATES,
    torch.nn.MultiheadAttention: t.tuple_of(t.TENSOR, t.optional(t.TENSOR)),
    torch.nn.AdaptiveLogSoftmaxWithLoss: t.TupleType((t.TENSOR, t.TENSOR), ("output", "loss")),
}


def call_module(c: Context, ref: ModuleRef, call: Call) -> Node:
    """`module(args)`, hooks included."""
    why = _only_python(ref.module)
    if why:
        return python_module(c, ref, call, why)
    return _or_python(c, ref, call, "__call__")


def call_forward(c: Context, ref: ModuleRef, call: Call) -> Node:
    """`module.forward(args)` of the root: its hooks are run around the program."""
    return _or_python(c, ref, call, "forward")


def _or_python(c: Context, ref: ModuleRef, call: Call, method: str) -> Node:
    if not _is_torch(_forward_of(ref.module)):
        return _compiled(c, ref, call, method)
    return _attempt(
        c,
        lambda: _compiled(c, ref, call, method),
        lambda why: python_module(c, ref, call, why, method),
    )


def _attempt(c: Context, compile_it: Callable[[], Node], otherwise: Callable[[str], Node]) -> Node:
    """`compile_it`; what it left behind is undone if PyTorch's own source does not compile."""
    block, variables = c.builder.block, dict(c.frame.vars)
    marks = len(block.ops), len(c.frames), len(state_of(c).active)
    try:
        return compile_it()
    except CompileError as error:
        if error.loc.line and not error.loc.file.startswith(_TORCH_FOLDER):
            raise
        del block.ops[marks[0] :], c.frames[marks[1] :], state_of(c).active[marks[2] :]
        c.frame.vars = variables
        return otherwise(error.problem)


def _is_torch(fn: object) -> bool:
    code = getattr(unwrap(fn), "__code__", None) if callable(fn) else None
    return code is not None and code.co_filename.startswith(_TORCH_FOLDER)


def _compiled(c: Context, ref: ModuleRef, call: Call, method: str) -> Node:
    found = class_attribute(c, call.node, ref, type(ref.module).__mro__, "forward")
    own = vars(ref.module).get("forward")
    if own is not None:  # `module.forward = …`, as some libraries patch it
        fn = unwrap(own)
        is_free = isinstance(own, FunctionType)
        found = PythonObject(own) if is_free else BoundMethod(fn, ref)
    if method == "__call__":
        state_of(c).guard("hooks", ref.path)
        call = _before(c, ref, call)
    assert isinstance(found, BoundMethod | PythonObject)
    if isinstance(found, BoundMethod):
        result = _method(c, found, call)
    else:
        raise c.error(call.node, f"the forward of {ref.path!r} was replaced", "a subclass")
    return _after(c, ref, call, result) if method == "__call__" else result


def _only_python(module: torch.nn.Module) -> str:
    """Why this module must be called by PyTorch, whatever its forward is."""
    own = vars(module)
    if isinstance(module, torch.jit.ScriptModule):  # pyright: ignore[reportPrivateImportUsage]
        return "a module of torch.jit"
    if own.get("_forward_pre_hooks_with_kwargs") or own.get("_forward_hooks_with_kwargs"):
        return "a hook that takes keywords"
    if own.get("_forward_hooks_always_called"):
        return "a hook that is always called"
    if own.get("_backward_hooks") or own.get("_backward_pre_hooks"):
        return "a backward hook"
    if type(module).__call__ is not torch.nn.Module.__call__ and not hasattr(
        type(module), "__lowtide_root__"
    ):
        return "its class has a __call__ of its own"
    hooks = [*own["_forward_pre_hooks"].values(), *own["_forward_hooks"].values()]
    if not all(isinstance(h, FunctionType | MethodType) for h in hooks):
        return "a hook that is not a Python function"
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if getattr(torch_module, name, None):
            return "a hook on all modules"
    return ""


def python_module(
    c: Context, ref: ModuleRef, call: Call, why: str, method: str = "__call__"
) -> Node:
    """The module run by PyTorch, as one op."""
    state_of(c).guard("hooks", ref.path)
    module = state_of(c).object(ref.path, ref.module)
    operands, kwnames = _operands(c, call)
    type_ = _result_type(ref.module, _forward_of(ref.module))
    op = c.builder.emit(
        "call_module",
        [module, *operands],
        [type_],
        method=method,
        kwnames=kwnames,
        why=why.partition("\n")[0],
    )
    return op.result


def _result_type(module: torch.nn.Module, forward: Any) -> t.Type:
    known = (_RESULTS[cls] for cls in type(module).__mro__ if cls in _RESULTS)
    return next(known, None) or _returned(forward, t.TENSOR)


def _forward_of(module: torch.nn.Module) -> Any:
    return getattr(type(module), "forward", None)


def _returned(fn: Any, otherwise: t.Type) -> t.Type:
    annotation = getattr(fn, "__annotations__", {}).get("return", inspect.Parameter.empty)
    if annotation is inspect.Parameter.empty or not isinstance(fn, FunctionType):
        return otherwise
    return type_from_annotation(annotation, outer_names(fn)) or t.ANY


def _operands(c: Context, call: Call) -> tuple[list[Value], tuple[str, ...]]:
    if call.unpacked:
        raise c.error(call.node, "`*` of a list of unknown length", "the elements one by one")
    given = [*call.args, *call.keywords.values()]
    return [_operand(c, call, a) for a in given], tuple(call.keywords)


def _operand(c: Context, call: Call, found: Node) -> Value:
    if isinstance(found, ModuleRef):
        return state_of(c).object(found.path, found.module)
    return c.as_value(found, call.node)


# --- hooks -------------------------------------------------------------------------------------


def _before(c: Context, ref: ModuleRef, call: Call) -> Call:
    """The arguments as the forward pre-hooks leave them."""
    hooks: dict[int, Any] = vars(ref.module)["_forward_pre_hooks"]
    for hook in hooks.values():
        values, names = _operands(c, call)
        given = c.builder.tuple_make(values[: len(values) - len(names)])
        found = _call_hook(c, call, hook, [ref, given])
        if isinstance(found, Value) and found.type != t.NONE:
            known = known_elements(c, found) if isinstance(found.type, t.TupleType) else None
            args: Sequence[Node] = [found] if known is None else known
            call = Call(node=call.node, args=list(args), keywords=call.keywords)
    return call


def _after(c: Context, ref: ModuleRef, call: Call, result: Node) -> Node:
    """The result as the forward hooks leave it."""
    hooks: dict[int, Any] = vars(ref.module)["_forward_hooks"]
    for hook in hooks.values():
        given = c.builder.tuple_make([c.as_value(a, call.node) for a in call.args])
        found = _call_hook(c, call, hook, [ref, given, result])
        if isinstance(found, Value) and found.type != t.NONE:
            result = found
    return result


def _call_hook(c: Context, call: Call, hook: Any, args: list[Node]) -> Node:
    inner = Call(node=call.node, args=args)
    if isinstance(hook, FunctionType) and hook.__name__ != "<lambda>":
        return inline(c, hook, inner, None)
    owner = getattr(hook, "__self__", None)
    if owner is args[0].module and isinstance(args[0], ModuleRef):  # pyright: ignore
        return inline(c, unwrap(hook), Call(node=call.node, args=[args[0], *args]), args[0])
    raise c.error(call.node, f"the hook {hook!r} is not a Python function", "a `def`")


# --- methods -----------------------------------------------------------------------------------


def call_method(c: Context, method: BoundMethod, call: Call) -> Node:
    """`module.method(args)`; a forward of torch.nn that does not compile is called as it is."""
    fn: FunctionType = cast("Any", method).fn
    owner = method.owner
    if fn.__name__ != "forward" or isinstance(owner, PythonObject) or not _is_torch(fn):
        return _method(c, method, call)
    bound = Call(node=call.node, args=[owner, *call.args], keywords=call.keywords)
    type_ = _result_type(owner.module, fn)
    return _attempt(
        c, lambda: _method(c, method, call), lambda _: _python_call(c, fn, bound, type_)
    )


def _method(c: Context, method: BoundMethod, call: Call) -> Node:
    fn: FunctionType = cast("Any", method).fn  # a field, which pyright takes for a method
    owner = method.owner
    bound = Call(node=call.node, args=[owner, *call.args], keywords=call.keywords)
    bound.unpacked = call.unpacked
    left = left_to_python(c, fn, bound)
    if left is not None:
        return left
    if isinstance(owner, PythonObject):
        return inline(c, fn, bound, None)
    special = METHODS.get(fn.__name__) if is_torch_function(fn) else None
    if special is not None:
        return special(c, owner, call)
    if fn is _UNIMPLEMENTED:
        raise c.error(call.node, f"{type(owner.module).__name__} has no forward()", "a method")
    state_of(c).callees.add((id(owner.module), fn.__name__))
    return inline(c, fn, bound, owner)


_UNIMPLEMENTED = torch.nn.Module.forward


def is_torch_function(fn: FunctionType) -> bool:
    """Whether it is a method of nn.Module or of one of its containers."""
    return fn.__module__ in ("torch.nn.modules.module", "torch.nn.modules.container")


def inline(c: Context, fn: FunctionType, call: Call, owner: ModuleRef | None) -> Node:
    """The body of a Python function in place of its call; `owner`: the module it belongs to."""
    active = state_of(c).active
    key = (fn.__code__, 0 if owner is None else id(owner.module))
    if key in active or len(active) > _DEEPEST:
        raise c.error(
            call.node, f"{fn.__name__!r} calls itself: recursion is not compiled", "a loop"
        )
    bound = bind_python(c, fn, call)
    depth = len(c.frames)
    push_frame(c, fn)
    active.append(key)
    try:
        c.frame.vars.update(bound)
        return compile_body(c)
    finally:
        del c.frames[depth:]
        active.pop()


def left_to_python(c: Context, fn: FunctionType, call: Call) -> Node | None:
    """The call of a function marked by `lt.ignore` or `lt.unused`; None for any other."""
    mark = decorators.modifier(fn)
    if mark is None:
        return None
    if mark in decorators.UNUSED:
        message = c.const(f"{fn.__qualname__}() is marked as unused, so it is not compiled")
        c.builder.emit("raise", [message], exception="NotImplementedError")
        return c.builder.undef(_returned(fn, t.TENSOR))
    if mark not in decorators.IGNORED:
        return None
    return _python_call(c, fn, call, _returned(fn, t.TENSOR))


def _python_call(c: Context, fn: FunctionType, call: Call, type_: t.Type) -> Node:
    operands, kwnames = _operands(c, call)
    assigned = _assigned_attributes(fn)
    knowledge = state_of(c).knowledge
    if not assigned <= knowledge.dynamic:
        knowledge.dynamic |= assigned
        raise Restart(fn.__name__)
    target = python_objects.name_of(fn)
    op = c.builder.emit("py.call", operands, [type_], target=target, kwnames=kwnames)
    return c.const(None) if type_ == t.NONE else op.result


@functools.cache
def _assigned_attributes(fn: FunctionType) -> frozenset[str]:
    """The attributes that a function left to Python assigns, of whatever object."""
    try:
        tree = read_source(fn).node
    except CompileError:
        return frozenset()
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return frozenset(n.attr for n in nodes if isinstance(n.ctx, ast.Store))


def make_super(c: Context, call: Call) -> Node:
    """`super()` and `super(Net, self)`."""
    if call.args:
        cls, owner = (*call.args, None)[:2]
        cls = cls.obj if isinstance(cls, PythonObject) else None
    else:
        cls = c.frame.names.get("__class__")
        parameters = c.frame.source.node.args.args
        owner = c.frame.vars.get(parameters[0].arg) if parameters else None
    if not isinstance(cls, type) or not isinstance(owner, ModuleRef):
        raise c.error(call.node, "super() is compiled in methods of modules only", "the function")
    return Super(owner, cls)


def call_members(c: Context, members: Members, call: Call) -> Node:
    """`self.layers[1:](x)` where the layers are an nn.Sequential."""
    if not members.chained:
        raise c.error(call.node, "a list of modules cannot be called", "a loop over it")
    (value,) = call.args
    for node in members.nodes:
        value = CALL_OF[type(node)](c, node, Call(node=call.node, args=[value]))
    return value


@functools.cache
def _warner(category: type[Warning]) -> Callable[[str], None]:
    return functools.partial(warnings.warn, category=category, stacklevel=2)


def warn(c: Context, call: Call) -> Node:
    """`warnings.warn(message, category)`, when the program runs."""
    message, *rest = [*call.args, *(v for k, v in call.keywords.items() if k == "category")]
    classes = [r.obj for r in rest if isinstance(r, PythonObject)]
    category = classes[0] if classes and isinstance(classes[0], type) else UserWarning
    target = python_objects.name_of(_warner(category))
    operands = [c.as_value(message, call.node)]
    c.builder.emit("py.call", operands, [t.NONE], target=target, kwnames=())
    return c.const(None)


CALL_OF[ModuleRef] = call_module
CALL_OF[BoundMethod] = call_method
CALL_OF[Members] = call_members
LEFT_TO_PYTHON.append(left_to_python)
BUILTINS[builtins.super] = make_super
BUILTINS[warnings.warn] = warn
