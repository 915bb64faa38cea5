"""Calls that PyTorch or Python runs: one op each.

In: a module whose forward does not compile, or a function marked by `lt.ignore` or `lt.unused`, and
a call's arguments. Out: the op, with the type that annotations promise.

    self.rnn(x)      call_module(%rnn, %x) {why="…"}
    self.plot(x)     py.call(%self, %x) {target="net.Net.plot"}       @lt.ignore
    self.later(x)    raise {exception="NotImplementedError"}           @lt.unused
    Clip.apply(x)    py.call(%x) {target="net.Clip.apply"}            an autograd.Function

Invariant: attributes that such a function assigns are dynamic (see `module_state`).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, TypeGuard, TypeVar, cast

import torch
import torch.fx
from torch.nn.modules import module as torch_module

from lowtide import function_apply
from lowtide.errors import CompileError
from lowtide.frontend.script import decorators, torch_jit_twins
from lowtide.frontend.script.arguments import REST
from lowtide.frontend.script.attempts import attempt_or
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.functions import outer_names
from lowtide.frontend.script.module_attributes import state_of
from lowtide.frontend.script.module_state import Restart, own_call
from lowtide.frontend.script.nodes import Call, ModuleRef, Node, PythonObject
from lowtide.frontend.script.rechecked import python_ran
from lowtide.frontend.script.source import is_installed_file, read_source
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.torch_private.torch_jit import UNUSED

_TWO_STATES = t.tuple_of(t.TENSOR, t.TENSOR)

# What modules give that PyTorch runs, where their annotations do not say it.
_RESULTS: dict[type, t.Type] = {
    torch.nn.LSTMCell: _TWO_STATES,
    torch.nn.MultiheadAttention: t.tuple_of(t.TENSOR, t.optional(t.TENSOR)),
    torch.nn.AdaptiveLogSoftmaxWithLoss: t.TupleType((t.TENSOR, t.TENSOR), ("output", "loss")),
}

# These give a sequence of the kind that they are given, packed or not, and their state.
_OF_SEQUENCES: dict[type, t.Type] = {
    torch.nn.LSTM: _TWO_STATES,
    torch.nn.RNN: t.TENSOR,
    torch.nn.GRU: t.TENSOR,
}


def only_python(module: torch.nn.Module) -> str:
    """Return why PyTorch must call this module, whatever its forward is; "" if it need not."""
    own = vars(module)
    if torch_jit_twins.is_module(module):
        return "a module of torch.jit"
    if own.get("_forward_pre_hooks_with_kwargs") or own.get("_forward_hooks_with_kwargs"):
        return "a hook registered with with_kwargs=True"
    if own.get("_forward_hooks_always_called"):
        return "a hook registered with always_call=True"
    if own.get("_backward_hooks") or own.get("_backward_pre_hooks"):
        return "a backward hook"
    if not _calls_forward(type(module)) and own_call(module) is None:
        return "its class defines __call__"
    hooks = [*own["_forward_pre_hooks"].values(), *own["_forward_hooks"].values()]
    if not all(isinstance(h, FunctionType | MethodType) or is_torch_hook(h) for h in hooks):
        return "a hook that is not a Python function"
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if getattr(torch_module, name, None):
            return "a hook on all modules"
    return ""


def _calls_forward(cls: type[torch.nn.Module]) -> bool:
    """Return whether a call of a module of this class is a call of its forward with hooks."""
    wrapped: Any = vars(cls).get("_wrapped_call")
    if issubclass(cls, torch.fx.GraphModule) and getattr(wrapped, "cls_call", wrapped) is None:
        return cast("Any", super(wrapped.cls, cls)).__call__ is torch.nn.Module.__call__
    return cls.__call__ is torch.nn.Module.__call__ or hasattr(cls, "__lowtide_root__")


def is_torch_hook(hook: object) -> bool:
    """Return whether it is a callable object of `torch.nn.utils`, such as that of `weight_norm`.
    Its state never changes, so its source can be compiled."""
    cls: Any = type(hook)
    is_of_utils = str(cls.__module__).startswith("torch.nn.utils.")
    return is_of_utils and callable(hook) and isinstance(cls.__call__, FunctionType)


def python_module(
    c: Context,
    ref: ModuleRef,
    call: Call,
    why: str,
    method: str = "__call__",
    otherwise: t.Type = t.TENSOR,
) -> Node:
    """Return the result of a module that PyTorch runs, as one op. `otherwise`: its type if nothing
    declares it."""
    state_of(c).guard("hooks", ref.path)
    module = state_of(c).object(ref.path, ref.module)
    operands, kwnames = operands_of(c, call)
    _note_assigned(c, forward_of(ref.module), [ref.module])
    type_ = result_type(ref.module, forward_of(ref.module), call, otherwise)
    op = c.builder.emit(
        "call_module",
        [module, *operands],
        [type_],
        method=method,
        kwnames=kwnames,
        why=why.partition("\n")[0],
    )
    python_ran(c, type(ref.module))
    return op.result


def result_type(
    module: torch.nn.Module, forward: Any, call: Call, otherwise: t.Type = t.TENSOR
) -> t.Type:
    """Return the result type of a module that PyTorch runs; `otherwise` if nothing declares it."""
    return result_of(type(module), forward, call, otherwise)


def result_of(
    kind: type[torch.nn.Module], forward: Any, call: Call, otherwise: t.Type = t.TENSOR
) -> t.Type:
    """Return the result type of modules of this class."""
    given = [*call.args, *(v for k, v in call.keywords.items() if k == "input")]
    for cls in kind.__mro__:
        if cls in _OF_SEQUENCES and given and isinstance(given[0], Value):
            return t.tuple_of(given[0].type, _OF_SEQUENCES[cls])
    known = (_RESULTS[cls] for cls in kind.__mro__ if cls in _RESULTS)
    return next(known, None) or returned(forward, otherwise)


def forward_of(module: torch.nn.Module) -> Any:
    """Return the forward of a module's class."""
    return getattr(type(module), "forward", None)


def returned(fn: Any, otherwise: t.Type) -> t.Type:
    """Return the annotated result type of a Python function."""
    annotation = getattr(fn, "__annotations__", {}).get("return", inspect.Parameter.empty)
    if annotation is inspect.Parameter.empty or not isinstance(fn, FunctionType):
        return otherwise
    return type_from_annotation(annotation, outer_names(fn)) or t.ANY


def operands_of(c: Context, call: Call) -> tuple[list[Value], tuple[str, ...]]:
    """Return the arguments of a call as operands, keywords last, and the keywords' names."""
    if call.unpacked:
        raise c.error(call.node, "`*` of a list of unknown length", "the elements one by one")
    if REST in call.keywords:
        raise c.error(call.node, "`**` of a dict that is made elsewhere", "the keywords one by one")
    given = [*call.args, *call.keywords.values()]
    return [operand(c, call, a) for a in given], tuple(call.keywords)


def operand(c: Context, call: Call, found: Node) -> Value:
    """Return the value that Python receives; for a module node, the module."""
    if isinstance(found, ModuleRef):
        return state_of(c).object(found.path, found.module)
    return shown(c, c.as_value(found, call.node))


def left_to_python(c: Context, fn: FunctionType, call: Call) -> Node | None:
    """Return the result of a function marked by `lt.ignore` or `lt.unused`; None for others."""
    mark = decorators.modifier(fn)
    if mark is None:
        return None
    if mark in UNUSED:
        return raise_unused(c, fn)
    if mark not in decorators.IGNORED:
        return None
    return python_call(c, fn, call, _given_back(fn, call) or returned(fn, t.TENSOR))


def call_of_object(c: Context, obj: object, call: Call) -> Node | None:
    """Return the result of `obj(x)` if the `__call__` of its class is marked by `lt.ignore`; None
    for others."""
    method = inspect.getattr_static(type(obj), "__call__", None)
    if decorators.modifier(method) not in decorators.IGNORED:
        return None
    result = returned(method, t.TENSOR)
    return python_call(c, method, call, result, target=obj)


def raise_unused(c: Context, fn: FunctionType) -> Node:
    """Compile a call of a function marked by `lt.unused`, which raises at run time."""
    message = c.const(f"{fn.__qualname__}() is marked as unused, so it is not compiled")
    c.builder.emit("raise", [message], exception="NotImplementedError")
    return c.builder.undef(returned(fn, t.TENSOR))


def _given_back(fn: FunctionType, call: Call) -> t.Type | None:
    """Return the type of the argument, for `def keep(x: T) -> T`."""
    names = outer_names(fn)
    meant = {key: names.get(str(a), a) for key, a in fn.__annotations__.items()}
    if not isinstance(meant.get("return"), TypeVar) or call.unpacked:
        return None
    given = inspect.signature(fn).bind_partial(*call.args, **call.keywords).arguments
    alike = (a for key, a in given.items() if meant.get(key) is meant["return"])
    return next((a.type for a in alike if isinstance(a, Value)), None)


def python_call(
    c: Context,
    fn: Callable[..., Any],
    call: Call,
    type_: t.Type,
    *,
    target: object = None,
    modules: Sequence[torch.nn.Module] = (),
) -> Node:
    """Return the result of a Python function that is called at run time. `target`: the name of the
    callee, if not of `fn`. `modules`: those that it uses besides its arguments."""
    operands, kwnames = operands_of(c, call)
    _note_assigned(c, fn, [*modules, *(a.module for a in call.args if isinstance(a, ModuleRef))])
    name = python_objects.name_of(fn if target is None else target)
    op = c.builder.emit("py.call", operands, [type_], target=name, kwnames=kwnames)
    python_ran(c, fn)
    return c.const(None) if type_ == t.NONE else op.result


def _note_assigned(c: Context, fn: Callable[..., Any], modules: Sequence[torch.nn.Module]) -> None:
    """Note that attributes assigned by `fn` are dynamic; raises Restart if that is new."""
    if c.modules is None or not isinstance(fn, FunctionType):
        return
    classes = frozenset(type(m) for module in modules for m in module.modules())
    assigned, knowledge = _assigned_attributes(fn, classes), c.modules.knowledge
    knowledge.by_python |= assigned
    if not assigned <= knowledge.dynamic:
        knowledge.dynamic |= assigned
        raise Restart(fn.__name__)


def call_of_package(
    c: Context, obj: Callable[..., Any], call: Call, compile_it: Callable[[], Node]
) -> Node:
    """Compile a call of an installed package's function if possible, else let Python run it. Its
    annotations are not relied on."""
    return attempt_or(c, compile_it, lambda _: python_call(c, obj, call, t.ANY), is_installed_file)


def is_autograd_function(obj: object) -> TypeGuard[MethodType | BuiltinMethodType]:
    """Return whether it is `F.apply` of a subclass of torch.autograd.Function."""
    if not isinstance(obj, MethodType | BuiltinMethodType):
        return False
    cls = obj.__self__
    is_function = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    return is_function and function_apply.without_layers(obj) == _APPLY.__get__(None, cls)


# A method of Python or, from PyTorch 2.14 on, of C.
_APPLY: Final[Any] = inspect.getattr_static(torch.autograd.Function, "apply")


def autograd_call(c: Context, obj: MethodType | BuiltinMethodType, call: Call) -> Node:
    """Return the result of `F.apply(x)`, run by Python with F's own backward. Its type is Tensor
    unless forward declares another."""
    cls = cast("Any", obj.__self__)
    operands, kwnames = operands_of(c, call)
    target = python_objects.name_of(_applied(cls))
    type_ = returned(inspect.getattr_static(cls, "forward").__func__, t.TENSOR)
    return c.builder.emit("py.call", operands, [type_], target=target, kwnames=kwnames).result


@functools.cache
def _applied(cls: Any) -> Callable[..., Any]:
    return function_apply.without_layers(cls.apply)  # one object for each class, to be named


@functools.cache
def _assigned_attributes(fn: FunctionType, classes: frozenset[type]) -> frozenset[str]:
    """Return the attributes assigned by a function that Python runs, and by the methods of these
    classes that it mentions, directly or through such methods."""
    found: set[str] = set()
    seen: set[FunctionType] = set()
    waiting = [fn]
    while waiting:
        method = waiting.pop()
        if method in seen or (method.__module__ or "").startswith("torch."):
            continue
        seen.add(method)
        try:
            tree = read_source(method).node
        except CompileError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            if isinstance(node, ast.Attribute):
                waiting += _methods(classes, node.attr)
    return frozenset(found)


def _methods(classes: frozenset[type], name: str) -> list[FunctionType]:
    found = [inspect.getattr_static(cls, name, None) for cls in classes]
    both = [f for p in found if isinstance(p, property) for f in (p.fget, p.fset)]
    return [f for f in (*found, *both) if isinstance(f, FunctionType)]


@functools.cache
def warner(
    category: type[Warning], file: str, line: int, module: str = ""
) -> Callable[[str], None]:
    """Return `warnings.warn` for one category at this line, the same object for the same
    arguments."""
    return functools.partial(warn_at, category=category, file=file, line=line, module=module)


def warn_at(message: str, *, category: type[Warning], file: str, line: int, module: str) -> None:
    """Call `warnings.warn` as if from this line."""
    known = vars(sys.modules[module]) if module in sys.modules else _registries
    registry: Any = known.setdefault("__warningregistry__", {})
    name = module or os.path.splitext(file)[0]
    warnings.warn_explicit(message, category, file, line, name, registry)


_registries: dict[str, Any] = {}


def warn(c: Context, call: Call) -> Node:
    """Compile `warnings.warn(message, category, stacklevel)`."""
    given = dict(zip(("message", "category", "stacklevel"), call.args, strict=False))
    given |= call.keywords
    found = given.get("category")
    category = found.obj if isinstance(found, PythonObject) else UserWarning
    level = given.get("stacklevel")
    up = c.builder.constant(level) if isinstance(level, Value) else 1
    place, frames = c.frame.source.loc(call.node), c.frames
    while isinstance(up, int) and up > 1 and frames[-1].caller is not None:
        place, frames, up = frames[-1].caller, frames[:-1], up - 1
    target = warner(cast("Any", category), place.file, place.line, frames[-1].fn.__module__)
    operands = [c.as_value(given["message"], call.node)]
    before, c.builder.loc = c.builder.loc, place
    name = python_objects.name_of(target)
    c.builder.emit("py.call", operands, [t.NONE], target=name, kwnames=())
    c.builder.loc = before
    return c.const(None)


def _of_dataclass(fn: FunctionType) -> Callable[[Context, Call], Node]:
    """Compile a function of `dataclasses`, which Python runs; `replace` keeps the type."""

    def compile_call(c: Context, call: Call) -> Node:
        given = c.as_value(call.args[0], call.node)
        return python_call(c, fn, call, given.type if fn is dataclasses.replace else t.ANY)

    return compile_call


BUILTINS[warnings.warn] = warn
BUILTINS.update(
    {
        fn: _of_dataclass(cast("FunctionType", fn))
        for fn in (dataclasses.replace, dataclasses.asdict, dataclasses.astuple)
    }
)
