"""Attributes of modules: looked up in the real module while compiling, read from it at each call.

In: a ModuleRef and a name. Out: a captured parameter, a submodule, a method, or a constant.

    self.weight            parameter, buffer, number, list: captured
    self.fc                ModuleRef(path="fc")
    self.stride            in `__constants__`: a constant, with a guard
    self.norm              a method: bound; a property: its getter inlined
    self.h = x             attr.set; `h` is dynamic from the start (`Restart`)

Invariant: each decision made while compiling has a guard.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import typing
from collections.abc import Iterable
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch

from lowtide.errors import CompileError
from lowtide.frontend.script import classes
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.declared_in_methods import declared_in_init
from lowtide.frontend.script.expressions import python_object
from lowtide.frontend.script.functions import outer_names
from lowtide.frontend.script.module_state import (
    HOOKS,
    Guard,
    ModuleState,
    Restart,
    child,
    is_torch_class,
    join_path,
    names_of,
    root_of,
)
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, CALL_OF, STORE_OF, VALUE_OF
from lowtide.frontend.script.nodes import (
    BoundMethod,
    Call,
    FinishedMethod,
    Members,
    ModuleRef,
    Node,
    PythonObject,
    Super,
    describe,
)
from lowtide.frontend.script.programs import finished_names, module_program, saved_optional
from lowtide.frontend.script.remedies import alike
from lowtide.frontend.script.source import mark_of, unwrap
from lowtide.frontend.script.types_from_annotations import field_type, type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal

_MISSING = object()
_REGISTERED = ("_modules", "_parameters", "_buffers")
_MADE = ("__lowtide_function__", "__lowtide_program__", "__lowtide_saved_programs__")


def state_of(c: Context) -> ModuleState:
    """Return the state of compiling a module's method."""
    assert c.modules is not None
    return c.modules


def module_attribute(c: Context, node: ast.AST, ref: ModuleRef, name: str) -> Node:
    """Compile `module.name`."""
    state, own = state_of(c), vars(ref.module)
    path = join_path(ref.path, name)
    c.assumed.note_class(ref.module)
    if name == "__class__":
        return PythonObject(type(ref.module))
    if name in HOOKS and not own.get(name):
        state.guard("hooks", ref.path)
        return Members(())
    if name in own:
        if name in own["_modules"]:
            raise _hidden(c, node, path)
    elif any(name in own[held] for held in _REGISTERED):
        c.assumed.note_presence(own, name, False)
    if name in own["_modules"]:
        found = child(ref.module, name)
        c.assumed.note_read(ref.module, name, own["_modules"][name])
        if found is not None:
            return ModuleRef(found, path)
        state.guard("none", path)
        return c.const(None)
    if name == "_flat_weights" and isinstance(ref.module, torch.nn.RNNBase):
        # PyTorch's own copy of them is brought up to date by `forward`, which is not run.
        names = cast("Any", ref.module)._flat_weights_names
        weights = [c.as_value(module_attribute(c, node, ref, n), node) for n in names]
        return c.builder.list_make(weights)
    for held in (own, own["_parameters"], own["_buffers"]):
        if name in held and not _is_made_method(ref.module, name):
            is_dynamic = name in state.knowledge.dynamic
            found = (
                _dynamic(c, ref, name, held[name])
                if is_dynamic
                else data(c, node, ref, name, held[name])
            )
            _note_read(c, ref, name, held[name], found, is_dynamic=is_dynamic)
            return found
    if module_program(ref, name) is not None:
        return FinishedMethod(ref, name)
    note_not_replaced(c, ref, name)
    return class_attribute(c, node, ref, type(ref.module).__mro__, name)


def _hidden(c: Context, node: ast.AST, path: str) -> CompileError:
    """Return the error about a submodule that an attribute of the same name hides, as
    `object.__setattr__(module, name, value)` makes one."""
    problem = f"an attribute hides the submodule {path!r}, which has the same name"
    return c.error(node, problem, "`setattr(module, name, value)`, which replaces the submodule")


def _note_read(
    c: Context, ref: ModuleRef, name: str, before: object, found: Node, *, is_dynamic: bool
) -> None:
    """Note the read for a check after calls of Python code: see `rechecked`."""
    is_captured = isinstance(found, Value) and found not in c.builder.makers
    kept = found if is_captured else before
    kept = found.type if is_dynamic and isinstance(found, Value) else kept
    c.assumed.note_read(ref.module, name, kept)


def note_not_replaced(c: Context, ref: ModuleRef, name: str) -> None:
    """Rely on the class's attribute not being hidden by one of the module itself."""
    own = vars(ref.module)
    if name not in own and not hasattr(type(ref.module), "__lowtide_root__"):
        c.assumed.note_presence(own, name, False)


def _is_made_method(module: torch.nn.Module, name: str) -> bool:
    """Return whether the module stores a compiled method there, as modules of the class style
    do."""
    made = vars(module).get(name)
    return mark_of(made, "__lowtide_function__") is not None and hasattr(type(module), name)


def data(c: Context, node: ast.AST, ref: ModuleRef, name: str, found: Any) -> Node:
    """Return the captured parameter for a parameter, buffer or plain attribute."""
    state, path = state_of(c), join_path(ref.path, name)
    declared = optional_type(ref.module, name) if state.knowledge.as_declared else None
    if declared is not None and t.is_subtype(t.type_of(found) or t.ANY, declared):
        return state.capture(path, found, declared)
    if found is None:
        state.guard("none", path)
        return c.const(None)
    if path not in state.knowledge.changing and _is_constant(state, ref.module, name, found):
        state.guard("value", path)
        return c.const(found)
    if isinstance(found, MethodType) and found.__self__ is ref.module:  # `m.f = MethodType(f, m)`
        state.guard("value", path)
        return BoundMethod(unwrap(found), ref)
    if _is_function(found):
        state.guard("value", path)
        return python_object(c, node, found, "")
    if isinstance(found, torch.nn.Module):  # of which one knows the path: a parent, say
        modules = cast("Iterable[tuple[str, torch.nn.Module]]", state.root.named_modules())
        for whole, module in modules:
            if root_of(module) is root_of(found):
                state.guard("value", path)
                return ModuleRef(root_of(found), whole)
    type_ = None if _holds_modules(found) else data_type(ref.module, name, found)
    if type_ is not None and not isinstance(type_, t.FunctionType):
        return c.stands_for(state.capture(path, found, type_), found, is_read=True)
    kind, remedy = _unreadable(name, found)
    raise c.error(
        node, f"the attribute {path!r} is {kind}, which compiled code cannot hold", remedy
    )


def _is_function(found: object) -> bool:
    """Return whether it is a function, a class or a Python module. A function may be compiled,
    traced or loaded, and partially applied to plain data."""
    if isinstance(found, functools.partial):
        given = (*found.args, *found.keywords.values())  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return _is_function(found.func) and all(map(is_literal, given))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    is_python = isinstance(found, FunctionType | BuiltinFunctionType | type | ModuleType)
    return is_python or any(mark_of(found, name) is not None for name in _MADE)


def _unreadable(name: str, found: object) -> tuple[str, str]:
    """Return the kind of an attribute that no program can read, and the remedy."""
    kind = type(found).__name__
    if isinstance(found, torch.nn.Module):
        return (
            f"a {kind} that is not registered as a submodule",
            f"`self.{name} = …` in __init__, which registers it",
        )
    if _holds_modules(found):
        kept = "nn.ModuleDict" if isinstance(found, dict) else "nn.ModuleList"
        return f"a {kind} of modules", kept
    return f"a {kind}", "a method marked @lt.ignore that uses it; register_buffer() for a tensor"


def _holds_modules(found: object) -> bool:
    """Return whether it is a plain list, tuple or dict of modules, or a module outside the tree."""
    if isinstance(found, dict):
        found = list(cast("dict[object, object]", found).values())
    if isinstance(found, list | tuple):
        return any(map(_holds_modules, cast("list[object]", found)))
    return isinstance(found, torch.nn.Module)


def data_type(module: torch.nn.Module, name: str, found: object) -> t.Type | None:
    """Return the type of an attribute's value; an annotation decides for an empty list."""
    actual = t.type_of(found)
    if isinstance(found, list | dict) and not found:
        return declared_type(module, name) or actual
    return actual


def declared_type(module: torch.nn.Module, name: str) -> t.Type | None:
    """Return the type that the class, or `lt.Attribute`, declares for the attribute."""
    own: dict[str, object] = vars(module).get("_lowtide_types", {})
    if name in own:
        return type_from_annotation(own[name], {})
    for cls in type(module).__mro__:
        if name in vars(cls).get("__annotations__", {}):
            scope = dict(vars(typing))
            for member in vars(cls).values():
                scope |= outer_names(member) if isinstance(member, FunctionType) else {}
            return field_type(cls, name, scope)
    return declared_in_init(type(module), name)


def optional_type(module: torch.nn.Module, name: str) -> t.Type | None:
    """Return the Optional type that the user declares for an attribute, None if there is none;
    torch.nn's own classes declare most of theirs so."""
    bases = filter(is_torch_class, type(module).__mro__)
    if any(name in vars(base).get("__annotations__", {}) for base in bases):
        return None
    found = declared_type(module, name) or saved_optional(module, name)
    if not isinstance(found, t.OptionalType):
        return None
    cls = classes.class_of(found.elem)
    return None if cls is not None and issubclass(cls, torch.nn.Module) else found


def _is_constant(state: ModuleState, module: torch.nn.Module, name: str, found: object) -> bool:
    if not is_literal(found) or name in state.knowledge.captured_names:
        return False
    if isinstance(found, state.knowledge.literal_types):
        return True
    return name != "training" and (name in _constants(type(module)) or _is_final(module, name))


def _constants(cls: type) -> frozenset[str]:
    found = [name for base in cls.__mro__ for name in base.__dict__.get("__constants__", ())]
    return frozenset(found)


def _is_final(module: torch.nn.Module, name: str) -> bool:
    for cls in type(module).__mro__:
        annotation = vars(cls).get("__annotations__", {}).get(name)
        if annotation is not None:
            text = annotation if isinstance(annotation, str) else ""
            origin = typing.get_origin(annotation) or annotation
            return origin is typing.Final or "Final" in text.partition("[")[0]
    return False


# --- what the class gives ----------------------------------------------------------------------


def class_attribute(
    c: Context, node: ast.AST, ref: ModuleRef, mro: tuple[type, ...], name: str
) -> Node:
    """Return a method, property or constant of the class."""
    found: Any = next((k.__dict__[name] for k in mro if name in k.__dict__), _MISSING)
    if found is _MISSING:
        given = _given_by_python(c, ref, name)
        if given is None:
            raise _absent(c, node, ref, name)
        return given
    if isinstance(found, FunctionType | property | staticmethod | classmethod):
        c.assumed.note_member(mro, name)
    if isinstance(found, property):
        return _property(c, node, ref, name, found)
    if isinstance(found, staticmethod):
        return python_object(c, node, found.__func__, "")  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    if isinstance(found, classmethod):
        method = cast("Any", found).__func__
        return BoundMethod(method, PythonObject(type(ref.module)))
    if found is torch.nn.Module.__call__:  # `layer.__call__`, hooks included
        return replace(ref, runs_forward=True)
    if isinstance(found, FunctionType) or mark_of(found, "__lowtide_function__"):
        return BoundMethod(unwrap(found), ref)
    if name in state_of(c).knowledge.dynamic:
        return _dynamic(c, ref, name, found)
    return data(c, node, ref, name, found)


def _absent(
    c: Context, node: ast.AST, ref: ModuleRef, name: str, *, assigned: bool = False
) -> CompileError:
    near = [] if assigned else difflib.get_close_matches(name, _names_alike(ref.module, name), 3)
    cls = type(ref.module).__name__
    remedy = " or ".join(f"`{n}`" for n in near) or f"`self.{name} = …` in {cls}.__init__"
    programs = finished_names(ref)
    if programs:  # its class has no source
        remedy = " or ".join(f"`{n}`" for n in near or programs)
    return c.error(node, f"{describe(ref)} has no attribute {name!r}", remedy)


def _names_alike(module: torch.nn.Module, name: str) -> list[str]:
    """Return names that may be meant: the module's own, and very similar ones of nn.Module."""
    inherited = set(dir(torch.nn.Module))
    near = difflib.get_close_matches(name, inherited, 3, 0.8)
    return [n for n in names_of(module) if n not in inherited or n in near]


def _property(c: Context, node: ast.AST, ref: ModuleRef, name: str, found: property) -> Node:
    """Compile a property: its getter is inlined. One that does not compile is read by Python:
    before the call, or at its place if the number or the time of reads matters."""
    getter = found.fget
    assert getter is not None
    fn = unwrap(getter)
    if (id(ref.module), name) in state_of(c).knowledge.read_in_place:
        return _read_in_place(c, ref, name)
    try:
        if fn.__module__.startswith("torch."):  # a parametrization
            raise c.error(node, f"the property {name!r} is read by Python")
        place = node if isinstance(node, ast.expr) else ast.Constant(None)
        call = Call(node=ast.copy_location(ast.Call(place, [], []), node), args=[])
        return CALL_OF[BoundMethod](c, BoundMethod(fn, ref), call)
    except CompileError:
        state, place = state_of(c), (id(ref.module), name)
        before = torch.get_rng_state()
        given = _given_by_python(c, ref, name)
        if given is None:
            raise
        draws = not torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(before)  # the call is to draw these numbers
        if not isinstance(given, Value) or given.type != t.TENSOR or _only_computes(ref, name):
            return given
        if place in state.read or draws or c.builder.block is not state.block:
            state.knowledge.read_in_place.add(place)
            raise Restart(name) from None
        state.read.add(place)
        return given


def _read_in_place(c: Context, ref: ModuleRef, name: str) -> Value:
    """Return the value of a property, read by Python where the program reads it."""
    operands = [state_of(c).object(ref.path, ref.module), c.const(name)]
    target = python_objects.name_of(getattr)
    return c.builder.emit("py.call", operands, [t.TENSOR], target=target, kwnames=()).result


def _only_computes(ref: ModuleRef, name: str) -> bool:
    """Return whether it is a weight that a PyTorch parametrization computes from parameters alone.
    Spectral norm is not: reading its weight advances its power iteration."""
    made = dict(ref.module.named_children()).get("parametrizations")
    steps = () if made is None else dict(made.named_children()).get(name, ())
    kinds = [type(step) for step in cast("Iterable[object]", steps)]
    return bool(kinds) and all(
        kind.__module__.startswith("torch.") and kind.__name__ != "_SpectralNorm" for kind in kinds
    )


def _given_by_python(c: Context, ref: ModuleRef, name: str) -> Node | None:
    """Return the current value of a property or `__getattr__`; None if it cannot be captured."""
    value: object = getattr(ref.module, name, None)
    modules: list[Any] = list(cast("Any", ref.module).named_modules())
    for inner, module in modules:
        if module is value:
            return ModuleRef(root_of(module), join_path(ref.path, inner) if inner else ref.path)
        if isinstance(value, MethodType) and value.__self__ is module:
            return BoundMethod(unwrap(value), ModuleRef(module, join_path(ref.path, inner)))
    type_ = t.type_of(value)
    if type_ is None or value is None:
        return None
    return state_of(c).capture(join_path(ref.path, name), value, type_)


def super_attribute(c: Context, node: ast.AST, found: Super, name: str) -> Node:
    """Compile `super().name`."""
    if isinstance(found.owner, Value):
        return _object_super(c, node, found, found.owner, name)
    mro = type(found.owner.module).__mro__
    after = mro[mro.index(found.cls) + 1 :] if found.cls in mro else mro
    return class_attribute(c, node, found.owner, after, name)


def _object_super(c: Context, node: ast.AST, found: Super, owner: Value, name: str) -> Node:
    """Compile `super().name` of an object of a plain class."""
    cls = classes.class_of(owner.type)
    mro = cls.__mro__ if cls is not None else ()
    after = mro[mro.index(found.cls) + 1 :] if found.cls in mro else mro
    member: Any = next((k.__dict__[name] for k in after if name in k.__dict__), None)
    if member is object.__init__:
        return PythonObject(_nothing)
    if isinstance(member, property) and member.fget is not None:
        return c.inline(unwrap(member.fget), node, [owner])
    if not isinstance(member, FunctionType):
        near = alike(name, {n for k in after for n in vars(k)}, "a method of a base class")
        raise c.error(node, f"super() of {describe(owner)} has no method {name!r}", near)
    return BoundMethod(member, owner)


def _nothing() -> None:
    """Do nothing, as `object.__init__`."""


# --- attributes that the program assigns -------------------------------------------------------


def _dynamic(c: Context, ref: ModuleRef, name: str, found: object) -> Node:
    state = state_of(c)
    state.guard("type", join_path(ref.path, name))
    type_ = _dynamic_type(c, ref, name, found)
    if t.holds_items(type_):
        state.guards[Guard("fits", join_path(ref.path, name), str(type_))] = None
    module = state.object(ref.path, ref.module)
    read = c.builder.emit("attr.get", [module], [type_], name=name).result
    state.note_dynamic(ref.module, name, read, type_)
    return c.stands_for(read, found, is_read=True)


def _dynamic_type(c: Context, ref: ModuleRef, name: str, found: object) -> t.Type:
    known = state_of(c).knowledge.attribute_types.get((id(ref.module), name))
    if known is not None:
        return known
    declared = declared_type(ref.module, name)
    actual = data_type(ref.module, name, found)
    if declared is None and found is None and name in state_of(c).knowledge.by_python:
        return t.ANY
    if declared is not None and actual is not None and t.is_subtype(actual, declared):
        return declared
    return actual or t.ANY


def store_module_attribute(
    c: Context, node: ast.AST, ref: ModuleRef, name: str, value: Node
) -> None:
    """Compile `module.name = value`."""
    state = state_of(c)
    knowledge, own = state.knowledge, vars(ref.module)
    if name in own["_modules"] or not isinstance(value, Value):
        raise c.error(
            node,
            f"{describe(value)} is assigned to {join_path(ref.path, name)!r}",
            "submodules that are made in __init__",
        )
    member = inspect.getattr_static(type(ref.module), name, None)
    if isinstance(member, property) and member.fset is not None:
        setter = unwrap(member.fset)
        if not setter.__module__.startswith("torch."):
            place = ast.copy_location(ast.Call(ast.Constant(None), [], []), node)
            CALL_OF[BoundMethod](c, BoundMethod(setter, ref), Call(node=place, args=[value]))
            return
    if name not in knowledge.dynamic:
        knowledge.dynamic.add(name)
        raise Restart(name)
    held = (own["_parameters"], own["_buffers"], own)
    before = next((h[name] for h in held if name in h), _MISSING)
    if before is _MISSING:
        before = getattr(type(ref.module), name, _MISSING)
    if before is _MISSING:
        raise _absent(c, node, ref, name, assigned=True)
    if not isinstance(before, property):
        old = _dynamic_type(c, ref, name, before)
        new = t.join(old, value.type)
        if new != old:
            knowledge.attribute_types[id(ref.module), name] = new
            raise Restart(name)
        state.note_dynamic(ref.module, name, value, old)
    c.builder.emit("attr.set", [state.object(ref.path, ref.module), value], name=name)


def module_value(c: Context, node: ast.AST, ref: ModuleRef) -> Value:
    """Return the value of a module. Only functions that Python runs take one."""
    raise c.error(node, f"{describe(ref)} cannot be used as a value", "a call of it, or @lt.ignore")


ATTRIBUTE_OF[ModuleRef] = module_attribute
ATTRIBUTE_OF[Super] = super_attribute
STORE_OF[ModuleRef] = store_module_attribute
VALUE_OF[ModuleRef] = module_value
