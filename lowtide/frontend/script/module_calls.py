"""Calls of modules and of their methods: inlined, left to Python, or run by PyTorch.

In: a ModuleRef or BoundMethod, and a call's arguments. Out: the ops of the method's body.

    self.fc(x)       the forward pre-hooks, forward and the forward hooks of `fc`, inlined
    self.plot(x)     py.call(%self, %x) {target="net.Net.plot"} for a method marked @lt.ignore
    self.rnn(x)      call_module(%rnn, %x) {why="…"} where torch.nn's own forward does not compile

Invariant: a user's module that cannot be compiled is a CompileError at its own line. Only PyTorch's
own modules, and modules from installed packages, are called by Python instead.
"""

from __future__ import annotations

import builtins
import os
from types import FunctionType
from typing import Any, cast

import torch

from lowtide.frontend.script import hooks, torch_jit_twins
from lowtide.frontend.script.attempts import attempt_or
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.left_to_python import (
    forward_of,
    is_torch_hook,
    left_to_python,
    only_python,
    python_call,
    python_module,
    result_type,
)
from lowtide.frontend.script.module_attributes import class_attribute, note_not_replaced, state_of
from lowtide.frontend.script.module_containers import METHODS
from lowtide.frontend.script.module_state import own_call
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import (
    BoundMethod,
    Call,
    FinishedMethod,
    Members,
    ModuleRef,
    Node,
    PythonObject,
    Super,
)
from lowtide.frontend.script.programs import call_module_program, module_program
from lowtide.frontend.script.source import is_installed, is_installed_file, unwrap
from lowtide.ir import types as t
from lowtide.ir.core import Value

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


def call_module(c: Context, ref: ModuleRef, call: Call) -> Node:
    """Compile `module(args)`, hooks included."""
    if hasattr(type(ref.module), "__prepare_scriptable__"):
        problem = (
            f"the submodule {ref.path!r} defines __prepare_scriptable__, which is not called here"
        )
        raise c.error(
            call.node, problem, f"`module.{ref.path} = lt.script(module.{ref.path})` first"
        )
    own = None if ref.runs_forward else own_call(ref.module)
    if own is not None:
        bound = BoundMethod(own, ref)
        why = "its class defines __call__"
        return attempt_or(
            c,
            lambda: _method(c, bound, call),
            lambda _: python_module(c, ref, call, why),
            lambda _: True,
        )
    program = module_program(ref, "forward")
    if program is not None:
        state_of(c).guard("hooks", ref.path)
        call = hooks.before(c, ref, call)
        return hooks.after(c, ref, call, call_module_program(c, ref, program, call))
    why = only_python(ref.module)
    if why:
        return python_module(c, ref, call, why)
    return _or_python(c, ref, call, "__call__")


def call_forward(c: Context, ref: ModuleRef, call: Call) -> Node:
    """Compile `module.forward(args)` of the root, whose hooks PyTorch runs around the program."""
    return _or_python(c, ref, call, "forward")


def call_with_hooks(c: Context, ref: ModuleRef, call: Call) -> Node:
    """Compile `module(args)` of the root for a file, which has no hooks to run around it."""
    return _or_python(c, ref, call, "__call__")


def _or_python(c: Context, ref: ModuleRef, call: Call, method: str) -> Node:
    forward = forward_of(ref.module)
    if ref.path and torch_jit_twins.is_twin(ref.module):
        return attempt_or(
            c,
            lambda: _compiled(c, ref, call, method),
            lambda why: python_module(c, ref, call, why, method),
            lambda _: True,
        )
    is_torch = _is_torch(forward) or _has_torch_hooks(ref.module)
    may_leave = method == "__call__" and state_of(c).knowledge.leaves_parts
    if not is_torch and not (may_leave and is_installed(unwrap(forward))):
        return _compiled(c, ref, call, method)
    otherwise = t.TENSOR if is_torch else t.ANY
    return attempt_or(
        c,
        lambda: _compiled(c, ref, call, method),
        lambda why: python_module(c, ref, call, why, method, otherwise),
        _is_torch_file if is_torch else is_installed_file,
    )


def _has_torch_hooks(module: torch.nn.Module) -> bool:
    hooks = (*vars(module)["_forward_pre_hooks"].values(), *vars(module)["_forward_hooks"].values())
    return any(map(is_torch_hook, hooks))


def _is_torch_file(file: str) -> bool:
    return file.startswith(_TORCH_FOLDER)


def _is_torch(fn: object) -> bool:
    code = getattr(unwrap(fn), "__code__", None) if callable(fn) else None
    return code is not None and _is_torch_file(code.co_filename)


def _compiled(c: Context, ref: ModuleRef, call: Call, method: str) -> Node:
    c.assumed.note_class(ref.module)
    found = class_attribute(c, call.node, ref, type(ref.module).__mro__, "forward")
    own = vars(ref.module).get("forward")
    if own is None:
        note_not_replaced(c, ref, "forward")
    else:  # `module.forward = …`, as some libraries patch it
        c.assumed.note(vars(ref.module), "forward", own)
        is_free = isinstance(own, FunctionType)
        found = PythonObject(own) if is_free else BoundMethod(unwrap(own), ref)
    if method == "__call__":
        state_of(c).guard("hooks", ref.path)
        call = hooks.before(c, ref, call)
    assert isinstance(found, BoundMethod | PythonObject)
    is_method = isinstance(found, BoundMethod)
    result = _method(c, found, call) if is_method else CALL_OF[PythonObject](c, found, call)
    return hooks.after(c, ref, call, result) if method == "__call__" else result


# --- methods -----------------------------------------------------------------------------------


def call_method(c: Context, method: BoundMethod, call: Call) -> Node:
    """Compile `module.method(args)`. A forward of torch.nn that does not compile is called by
    PyTorch."""
    fn: FunctionType = cast("Any", method).fn
    owner = method.owner
    if fn.__name__ != "forward" or not isinstance(owner, ModuleRef) or not _is_torch(fn):
        return _method(c, method, call)
    bound = Call(node=call.node, args=[owner, *call.args], keywords=call.keywords)
    type_ = result_type(owner.module, fn, call)
    return attempt_or(
        c,
        lambda: _method(c, method, call),
        lambda _: python_call(c, fn, bound, type_),
        _is_torch_file,
    )


def call_finished(c: Context, method: FinishedMethod, call: Call) -> Node:
    """Inline `module.method(args)` of a traced or loaded module."""
    program = module_program(method.ref, method.name)
    assert program is not None
    return call_module_program(c, method.ref, program, call)


def _method(c: Context, method: BoundMethod, call: Call) -> Node:
    fn: FunctionType = cast("Any", method).fn  # a field, which pyright takes for a method
    owner = method.owner
    bound = Call(node=call.node, args=[owner, *call.args], keywords=call.keywords)
    bound.unpacked = call.unpacked
    left = left_to_python(c, fn, bound)
    if left is not None:
        return left
    if not isinstance(owner, ModuleRef):
        return _inline(c, fn, bound)
    special = METHODS.get(fn.__name__) if is_torch_function(fn) else None
    if special is not None:
        return special(c, owner, call)
    if fn is _UNIMPLEMENTED:
        raise c.error(call.node, f"{type(owner.module).__name__} has no forward()", "a method")
    state_of(c).callees.setdefault((id(owner.module), fn.__name__), {})
    return _inline(c, fn, bound, owner)


def _inline(c: Context, fn: FunctionType, call: Call, owner: ModuleRef | None = None) -> Node:
    key = 0 if owner is None else id(owner.module)
    args, words = call.args, call.keywords
    return c.inline(fn, call.node, args, words, unpacked=call.unpacked, owner=key)


_UNIMPLEMENTED = torch.nn.Module.forward


def is_torch_function(fn: FunctionType) -> bool:
    """Return whether it is a method of nn.Module or of one of its containers."""
    return fn.__module__ in ("torch.nn.modules.module", "torch.nn.modules.container")


def make_super(c: Context, call: Call) -> Node:
    """Compile `super()` and `super(Net, self)`."""
    if call.args:
        cls, owner = (*call.args, None)[:2]
        cls = cls.obj if isinstance(cls, PythonObject) else None
    else:
        cls = c.frame.names.get("__class__")
        parameters = c.frame.source.node.args.args
        owner = c.frame.vars.get(parameters[0].arg) if parameters else None
    if not isinstance(cls, type) or not isinstance(owner, ModuleRef | Value):
        raise c.error(call.node, "super() is compiled in methods only", "the function")
    return Super(owner, cls)


def call_members(c: Context, members: Members, call: Call) -> Node:
    """Compile `self.layers[1:](x)`, where the layers are an nn.Sequential."""
    if not members.chained:
        raise c.error(call.node, "a list of modules cannot be called", "a loop over it")
    (value,) = call.args
    for node in members.nodes:
        value = CALL_OF[type(node)](c, node, Call(node=call.node, args=[value]))
    return value


CALL_OF[ModuleRef] = call_module
CALL_OF[BoundMethod] = call_method
CALL_OF[FinishedMethod] = call_finished
CALL_OF[Members] = call_members
BUILTINS[builtins.super] = make_super
