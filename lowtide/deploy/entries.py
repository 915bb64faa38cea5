"""Finds the entry points of a compiled object, each with its signature and its programs.

In: a ScriptFunction or ScriptModule. Out: `Entry`s.

    lt.script(f)      one entry, named f
    lt.script(Net())  forward, methods marked @lt.export, and those that were called before saving

`forward` in a file is what a call of the module runs, the hooks and a `__call__` of its class
included.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_method import MethodMaker, ScriptMethod
from lowtide.api.script_module import (
    LazyMethod,
    ScriptModule,
    entry_points,
    make_method,
    make_or_get,
    method_source,
)
from lowtide.deploy.class_table import container_of, may_be_method
from lowtide.deploy.fitting import Program
from lowtide.deploy.limits import is_public
from lowtide.deploy.programs import of_function, of_method
from lowtide.errors import CompileError
from lowtide.frontend.script.decorators import modifier
from lowtide.frontend.script.left_to_python import only_python
from lowtide.frontend.script.module_state import Guard, own_call, root_of
from lowtide.frontend.script.source import read_source
from lowtide.ir.core import Function


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry point; all programs take the parameters of the signature. `module`: the owner of a
    method, None for a function."""

    name: str
    module: torch.nn.Module | None
    signature: inspect.Signature
    programs: list[Program]


def entries_of(m: ScriptFunction | ScriptModule) -> list[Entry]:
    """Return the entry points of the compiled object. Raises CompileError."""
    if isinstance(m, ScriptMethod):
        raise CompileError("a method alone is not saved", remedy="lt.save of its module")
    if isinstance(m, ScriptFunction):
        return [Entry(m.__name__, None, m.signature, of_function(m))]
    root = root_of(m)
    reason, remedy = only_python(root), "remove the hook, or save a module whose forward calls this"
    if "__call__" in reason:
        remedy = "move its code to forward, then save"
    for part in root.modules():
        if modifier(getattr(type(part), "__getstate__", None)) is not None:
            reason = f"the __getstate__ of {type(part).__name__} is exported"
            remedy = "plain attributes instead of __getstate__: the file stores all of them"
    if reason:
        raise CompileError(f"{type(root).__name__} cannot be saved: {reason}", remedy=remedy)
    names = dict.fromkeys(names_of(m, root))
    if own_call(root) is not None:  # the class may have no forward at all
        names.pop("forward", None)
    methods = {name: make_or_get(m, name) for name in names}
    for name, method in methods.items():
        if not may_be_method(container_of(root), name):
            raise _taken(name, method)
    found = [Entry(name, root, x.signature, of_method(x)) for name, x in methods.items()]
    if own_call(root) is not None:
        call: ScriptMethod = vars(m).get("_lowtide_call") or make_method(m, "__call__")
        return [_as_forward(call, of_method(call)), *found]
    return [_with_hooks(e) if e.name == "forward" else e for e in found]


def _with_hooks(forward: Entry) -> Entry:
    """Return the entry with the module's hooks in its programs, since a file has no hooks."""
    root = forward.module
    if root is None or not has_hooks(root):
        return forward
    method = ScriptMethod(root, "__call__", method_source(root, "forward"))
    called = [tuple(v.type for v in p.function.arguments) for p in forward.programs]
    found = _as_forward(method, of_method(method, called))
    if vars(root)["_forward_pre_hooks"]:
        found = replace(found, signature=_by_position(found.signature))
    return found


def _by_position(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature without keywords: Python shows a pre-hook the positional arguments only,
    and the program was made for such a call."""
    either, by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
    return signature.replace(
        parameters=[
            p.replace(kind=by_position) if p.kind is either else p
            for p in signature.parameters.values()
        ]
    )


def _as_forward(call: ScriptMethod, programs: Iterable[Program]) -> Entry:
    """Return the entry for what a call of the module runs, under the name that a file has for it.
    Hooks that are registered after loading run around the program."""
    own = Guard("hooks", "")
    made = [
        replace(
            p,
            function=replace(p.function, name="forward"),
            guards=tuple(g for g in p.guards if g != own),
        )
        for p in programs
    ]
    return Entry("forward", call.root, call.signature, made)


def _taken(name: str, method: ScriptMethod) -> CompileError:
    source = method.source
    if isinstance(source, Function):
        loc = source.loc
    else:
        found = read_source(source)
        loc = found.loc(found.node)
    return CompileError(
        f"the method {name}() cannot be saved: PyTorch or Lowtide uses the name {name!r}",
        loc,
        remedy="another name for the method",
    )


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether a call of the module runs hooks around its forward."""
    own = vars(module)
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"])


def names_of(m: ScriptModule, root: torch.nn.Module) -> Iterator[str]:
    """Yield the methods that are entry points; some may occur twice. `__len__` is never one."""
    yield from filter(is_public, _names_of(m, root))


def _names_of(m: ScriptModule, root: torch.nn.Module) -> Iterator[str]:
    given: dict[str, Function | MethodMaker] = vars(m).get("_lowtide_given", {})
    if given:
        yield from given
        return
    yield from entry_points(root)
    for name in dir(type(root)):
        if isinstance(inspect.getattr_static(type(root), name), LazyMethod):
            yield name
    for name, held in vars(m).items():
        if isinstance(held, ScriptMethod) and name != "_lowtide_call" and held.variants():
            yield name
