"""Calls: of PyTorch, of Python's builtins, of methods, and of other Python functions, which are
inlined.

In: a call's AST. Out: the result's node, after the ops that compute it.

    torch.sum(x, dim=1)  →  torch.sum.dim    len(xs)  →  py.len    helper(x)  →  the helper's body

Invariant: arguments are compiled from left to right, then the call. An inlined function sees its
own globals and closure, and its ops have source locations in it.
"""

from __future__ import annotations

import ast
import collections
import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any, TypeVar, cast

import torch

from lowtide.cpython import CACHED_FUNCTION
from lowtide.errors import CompileError
from lowtide.frontend.script import classes, constructing, methods, torch_jit_twins
from lowtide.frontend.script.arguments import bind_python, check_count, compile_arguments
from lowtide.frontend.script.builtin_calls import BUILTINS, Builtin, take_keywords
from lowtide.frontend.script.cached_functions import cached_call
from lowtide.frontend.script.comprehensions import decided_early, first_of
from lowtide.frontend.script.context import Context, expression, link
from lowtide.frontend.script.context_managers import context_manager
from lowtide.frontend.script.decorators import MODIFIER, modifier
from lowtide.frontend.script.expressions import python_object
from lowtide.frontend.script.functions import (
    compile_body,
    is_same,
    push_frame,
    signature_annotations,
)
from lowtide.frontend.script.iterable_calls import gives_iterator
from lowtide.frontend.script.mutation import is_inplace
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import (
    Call,
    Method,
    Node,
    Partial,
    PythonObject,
    describe,
    is_choosable,
)
from lowtide.frontend.script.programs import call_program, call_saved, program_of
from lowtide.frontend.script.recursion import uncompiled
from lowtide.frontend.script.remedies import CALLABLES, IGNORED
from lowtide.frontend.script.source import is_installed, is_of_library, is_stdlib, mark_of, unwrap
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.torch_calls import source_of, torch_call
from lowtide.ir import opdefs, python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.python_ops.numbers import MATH_OF_INTS
from lowtide.ir.types import ClassType
from lowtide.torch_private.torch_jit import UNUSED

T = TypeVar("T")

# Python runs these, and the methods of what they make.
_PYTHONS: tuple[object, ...] = (
    collections.Counter,
    collections.defaultdict,
    collections.deque,
    torch.func.functional_call,
)
_GIVE_ITERATORS = ("finditer", "merge", "scandir", "walk")
_LEGACY: type = type(torch.FloatTensor)
_DEEPEST = 200  # nested calls


@expression(ast.Call)
def compile_call(c: Context, node: ast.Call) -> Node:
    """`callee(args)`."""
    callee = c.callee(node.func)
    if isinstance(callee, PythonObject) and callee.obj in (any, all):
        match node.args:
            case [ast.GeneratorExp() as generator]:
                return decided_early(c, node, generator, callee.obj is any)
            case _:
                pass
    if isinstance(callee, PythonObject) and callee.obj is next:
        return first_of(c, node)
    return _called(c, callee, compile_arguments(c, node))


def _called(c: Context, callee: Node, call: Call) -> Node:
    if type(callee) in CALL_OF:
        return CALL_OF[type(callee)](c, callee, call)
    node = call.node
    match callee:
        case Value() if (cls := _module_class(callee)) is not None:
            return _module_call(c, callee, cls, call)
        case Value() if isinstance(callee.type, t.FunctionType):  # which says which one it is
            return object_call(c, PythonObject(python_objects.find(callee.type.name)), call)
        case Value() if isinstance(callee.type, ClassType):
            return classes.call_method(c, node, callee, "__call__", call.args, call.keywords)
        case Value() if t.is_dynamic(callee.type) or callee.type == t.NONE:
            call.args.insert(0, callee)
            return _py_call(c, call_any, call)
        case _:
            pass
    raise c.error(node, f"{describe(callee)} cannot be called", CALLABLES)


def call_any(callee: Callable[..., object], *args: object, **keywords: object) -> object:
    """Compile a call of an object of unknown type: Python makes it."""
    return callee(*args, **keywords)


def _py_call(
    c: Context, fn: Callable[..., object], call: Call, type_: t.Type | None = None
) -> Node:
    from lowtide.frontend.script import left_to_python  # it reads this module

    return left_to_python.python_call(
        c, fn, call, left_to_python.returned(getattr(fn, "__func__", fn), t.ANY)
    )


def _library_call(c: Context, obj: Any, call: Call) -> Node:
    """Compile a call that Python runs; an iterator becomes a list, as those of builtins."""
    found = _py_call(c, obj, call)
    if getattr(obj, "__name__", "") not in _GIVE_ITERATORS:
        return found
    elements = c.py(call.node, "list.of", c.as_value(found, call.node))
    c.iterators.add(elements)
    return elements


def _legacy_tensor(c: Context, cls: Any, call: Call) -> Node:
    """Compile `torch.FloatTensor(data)` as `torch.tensor` if the data have the form for it."""
    values = [c.as_value(arg, call.node) for arg in call.args]
    match [value.type for value in values]:
        case [t.ListType(t.INT | t.FLOAT)] if not call.keywords and _is_float_on_cpu(cls):
            dtype = c.const(cls.dtype)
            return torch_call(c, call.node, "torch.tensor", [*values], {"dtype": dtype})
        case _:
            return _py_call(c, cls, call, t.TENSOR)


def _is_float_on_cpu(cls: Any) -> bool:
    return cls.dtype.is_floating_point and not cls.is_cuda


def _module_class(value: Value) -> type[torch.nn.Module] | None:
    """Return the class of a module that is an argument, or an attribute of an object."""
    if not isinstance(value.type, ClassType):
        return None
    cls = python_objects.find(value.type.name)
    return cls if isinstance(cls, type) and issubclass(cls, torch.nn.Module) else None


def _module_call(
    c: Context, module: torch.nn.Module | Value, cls: type[torch.nn.Module], call: Call
) -> Node:
    """Compile a call of a module outside the compiled one: Python makes it, with the module's
    parameters, hooks and programs at that time."""
    from lowtide.frontend.script import left_to_python  # it reads this module

    gives = t.TENSOR if cls.__module__.startswith("torch.nn.") else t.ANY
    type_ = left_to_python.result_of(cls, getattr(cls, "forward", None), call, gives)
    if isinstance(module, Value):
        call.args.insert(0, module)
        return left_to_python.python_call(c, call_any, call, type_)
    return left_to_python.python_call(c, module, call, type_)


def _method_call(c: Context, method: Method, call: Call) -> Node:
    receiver = method.receiver
    if not t.is_tensor(receiver.type):
        check_count(c, call)
        return methods.call_method(c, method, call)
    found = torch_call(
        c,
        call.node,
        f"Tensor.{method.name}",
        [receiver, *call.args],
        call.keywords,
        unpacked=call.unpacked,
    )
    if is_inplace(method.name) and method.variable and isinstance(found, Value):
        c.frame.vars[method.variable] = found
        found.name = method.variable
    return found


def object_call(c: Context, callee: PythonObject, call: Call) -> Node:
    obj = callee.obj
    if not callable(obj) or not is_installed(obj):
        return _object_call(c, callee, call)
    from lowtide.frontend.script import left_to_python  # it reads this module

    return left_to_python.call_of_package(c, obj, call, lambda: _object_call(c, callee, call))


def _object_call(c: Context, callee: PythonObject, call: Call) -> Node:
    obj = callee.obj
    builtin = _hashable_get(BUILTINS, obj)
    if builtin is not None:
        return _builtin_call(c, callee, builtin, call)
    module = getattr(obj, "__module__", None)
    math_name = f"{module}.{getattr(obj, '__name__', '')}"
    if module in ("math", "cmath") and opdefs.find(math_name) is not None:
        return _math_call(c, math_name, call)
    wrapped = getattr(obj, "__wrapped__", None)
    is_cached = type(obj).__name__ == CACHED_FUNCTION
    if is_cached and isinstance(wrapped, FunctionType):
        return cached_call(c, obj, wrapped, call)
    if is_of_library(obj) or any(obj is python for python in _PYTHONS):
        return _library_call(c, cast("Any", obj), call)
    source = source_of(callee)
    entered = context_manager(c, obj, call)
    if entered is not None:
        return entered
    is_helper = source is not None and source.startswith("F._") and isinstance(obj, FunctionType)
    is_given_calls = isinstance(obj, FunctionType) and any(map(is_choosable, call.args))
    if source is not None and not isinstance(obj, type) and not (is_helper or is_given_calls):
        return torch_call(c, call.node, source, call.args, call.keywords, unpacked=call.unpacked)
    if (obj is copy.copy or obj is copy.deepcopy) and call.args:
        return _py_call(c, cast("Any", obj), call, c.as_value(call.args[0], call.node).type)
    if type(obj) is _LEGACY:
        return _legacy_tensor(c, cast("Any", obj), call)
    if obj is torch.autograd.Variable:
        return _py_call(c, cast("Any", obj), call, t.TENSOR)
    if isinstance(obj, torch.nn.Module):
        return _module_call(c, obj, type(obj), call)
    if isinstance(obj, MethodType) and isinstance(obj.__self__, torch.nn.Module):
        return _py_call(c, obj, call)
    if obj in (torch.finfo, torch.iinfo):
        return _static_call(c, call, callee)
    if isinstance(obj, type):
        check_count(c, call)
    if isinstance(obj, type) and hasattr(obj, "_fields"):
        return constructing.named_tuple(c, obj, call)
    if isinstance(obj, type) and constructing.can_construct(obj):
        return constructing.construct(c, call.node, obj, call.args, call.keywords)
    program = program_of(obj)
    if program is not None:
        check_count(c, call)
        return call_program(c, obj, program, call)
    saved = mark_of(obj, "__lowtide_saved_programs__")
    if saved is not None:
        return call_saved(c, saved, call)
    if isinstance(obj, MethodDescriptorType) and call.args:  # `str.upper`
        receiver = c.as_value(call.args[0], call.node)
        rest = Call(node=call.node, args=call.args[1:], keywords=call.keywords)
        return _method_call(c, Method(receiver, obj.__name__), rest)
    if isinstance(obj, WrapperDescriptorType):  # `str.__str__`
        return _py_call(c, cast("Any", obj), call)
    left = _left_to_python(c, obj, call)
    if left is not None:
        return left
    if isinstance(obj, MethodType) and isinstance(obj.__func__, FunctionType):
        args = [c.python_object(call.node, obj.__self__), *call.args]
        return inline(c, obj.__func__, call.node, args, call.keywords, unpacked=call.unpacked)
    if isinstance(obj, FunctionType) or mark_of(obj, "__lowtide_function__"):
        return inline(c, unwrap(obj), call.node, call.args, call.keywords, unpacked=call.unpacked)  # pyright: ignore[reportArgumentType]
    if isinstance(obj, functools.partial):
        return CALL_OF[Partial](c, _partial(c, call, cast("functools.partial[object]", obj)), call)
    if torch_jit_twins.is_function(obj):
        twin = torch_jit_twins.function_or_none(obj)
        if twin is None:
            return _py_call(c, cast("Any", obj), call)
        return inline(c, twin, call.node, call.args, call.keywords, unpacked=call.unpacked)
    if callable(obj) and is_installed(obj):
        return _py_call(c, obj, call)
    raise c.error(
        call.node,
        f"{describe(callee)} cannot be called in compiled code",
        f"a function of PyTorch or math, a builtin, a Python `def`, or {IGNORED}",
    )


def _partial(c: Context, call: Call, obj: functools.partial[object]) -> Partial:
    c.assumed.note_contents("args", obj.args)
    c.assumed.note_contents("keywords", obj.keywords)
    callee, *args = (c.python_object(call.node, o) for o in (obj.func, *obj.args))
    keywords = {k: c.python_object(call.node, v) for k, v in obj.keywords.items()}
    return Partial(callee, tuple(args), keywords)


def _builtin_call(c: Context, callee: PythonObject, builtin: Builtin, call: Call) -> Node:
    if callee.obj is not zip:
        check_count(c, call)
    take_keywords(c, callee.obj, call)
    try:
        found = builtin(c, call)
        if isinstance(found, Value) and gives_iterator(callee.obj):
            c.iterators.add(found)
        return found
    except (ValueError, IndexError) as error:  # there are more or fewer than it takes
        name = getattr(callee.obj, "__name__", "it")
        raise c.error(
            call.node, f"{name}() is not compiled with these arguments", "a loop, or `if`"
        ) from error


def _left_to_python(c: Context, obj: object, call: Call) -> Node | None:
    from lowtide.frontend.script import left_to_python  # it reads this module

    if isinstance(obj, FunctionType) and hasattr(obj, MODIFIER):
        return left_to_python.left_to_python(c, obj, call)
    if left_to_python.is_autograd_function(obj):
        return left_to_python.autograd_call(c, obj, call)
    return left_to_python.call_of_object(c, obj, call)


@link
def call_function(
    c: Context,
    node: ast.Call,
    callee: Node,
    args: Sequence[Node],
    keywords: Mapping[str, Node] | None = None,
) -> Node:
    """Compile a call made by a builtin such as `map` or `sorted`."""
    return _called(c, callee, Call(node=node, args=list(args), keywords=dict(keywords or {})))


def _hashable_get(table: Mapping[object, T], obj: object) -> T | None:
    try:
        return table.get(obj)
    except TypeError:
        return None


def _math_call(c: Context, name: str, call: Call) -> Node:
    check_count(c, call)
    operands = [c.as_value(a, call.node) for a in call.args]
    read = "py.index" if name.removeprefix("math.") in MATH_OF_INTS else "py.float"
    if name != "math.prod":  # which goes over the rows
        operands = [c.py(call.node, read, o) if t.is_tensor(o.type) else o for o in operands]
    if call.keywords:
        raise c.error(call.node, f"{name} with keywords", "positional arguments")
    return c.py(call.node, name, *operands)


def _static_call(c: Context, call: Call, callee: PythonObject) -> Node:
    known = [c.constant(a) for a in call.args]
    if UNKNOWN in known:
        source = f"torch.{getattr(callee.obj, '__name__', '')}"
        operands = [c.as_value(a, call.node) for a in call.args]
        op = c.builder.emit("call_torch", operands, [t.ANY], target=source, kwnames=())
        return op.result
    made = callee.obj(*known)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    return python_object(c, call.node, made, "")  # pyright: ignore[reportUnknownArgumentType]


@link
def inline(
    c: Context,
    fn: FunctionType,
    node: ast.AST,
    args: Sequence[Node],
    keywords: Mapping[str, Node] | None = None,
    *,
    unpacked: bool = False,
    owner: int = 0,
) -> Node:
    """Inline the body of a Python function; see `Context.inline`."""
    if modifier(fn) in UNUSED:
        from lowtide.frontend.script import left_to_python  # it reads this module

        return left_to_python.raise_unused(c, fn)
    if any(is_same(f.fn, fn) and f.owner == owner for f in c.frames):
        return _recursion(c, fn, node, args, keywords or {})
    if len(c.frames) > _DEEPEST:
        raise c.error(node, f"more than {_DEEPEST} nested calls", "a loop")
    if unpacked:
        check_count(c, Call(node=cast("ast.Call", node), args=[], unpacked=True))
    signature = inspect.signature(fn, follow_wrapped=False)
    bound = bind_python(c, node, fn.__name__, signature, args, keywords or {})
    c.assumed.note_function(fn)
    depth = len(c.frames)
    try:
        frame = push_frame(c, fn)
        frame.owner = owner
        types = signature_annotations(fn, frame.source.node)
        for name, value in bound.items():
            declared = types.get(name)
            frame.vars[name] = as_declared(c, value, declared)
        if owner and c.modules is not None:
            arguments = [frame.vars[name] for name in bound]
            c.modules.note_call(owner, fn.__name__, arguments[1:])
        return compile_body(c)
    except CompileError as error:
        place = c.frames[depth - 1].source.loc(node)
        if not error.loc.line or (is_stdlib(fn) and not is_stdlib(c.frames[depth - 1].fn)):
            name = f"{fn.__module__}.{fn.__qualname__}"
            raise CompileError(
                f"{name}() is not compiled: {error.problem}", place, IGNORED
            ) from error
        if depth == 1 and is_same(c.frames[0].fn, fn):
            raise  # the outermost frame only hands the arguments on
        raise error.called_from(place) from error.__cause__
    finally:
        del c.frames[depth:]


def _recursion(
    c: Context, fn: FunctionType, node: ast.AST, args: Sequence[Node], keywords: Mapping[str, Node]
) -> Node:
    """Compile a recursive call: Python makes it, since its depth is unknown."""
    place = ast.copy_location(ast.Call(ast.Constant(None), [], []), node)
    call = Call(node=place, args=list(args), keywords=dict(keywords))
    from lowtide.frontend.script import left_to_python  # it reads this module

    type_ = left_to_python.returned(fn, t.ANY)
    return left_to_python.python_call(c, fn, call, type_, target=uncompiled(fn))


CALL_OF[Method] = _method_call
CALL_OF[PythonObject] = object_call
