"""Finds the entry points of a compiled object, each with its signature and its programs.

In: a ScriptFunction or ScriptModule. Out: `Entry`s.

    lt.script(f)      one entry, named f
    lt.script(Net())  forward, methods marked @lt.export, and those that were called before saving
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_method import MethodMaker, ScriptMethod
from lowtide.api.script_module import LazyMethod, ScriptModule, entry_points, make_or_get
from lowtide.deploy.class_table import container_of, may_be_method
from lowtide.deploy.fitting import Program
from lowtide.deploy.limits import is_public
from lowtide.deploy.programs import of_function, of_method
from lowtide.errors import CompileError
from lowtide.frontend.script.decorators import modifier
from lowtide.frontend.script.left_to_python import only_python
from lowtide.frontend.script.module_state import own_call, root_of
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
    reason = only_python(root) or why_not_saved(root)
    remedy = "remove the hook, or save a module whose forward calls this one"
    if own_call(root) is not None:
        reason, remedy = "its class defines __call__", "move its code to forward, then save"
    for part in root.modules():
        if modifier(getattr(type(part), "__getstate__", None)) is not None:
            reason = f"the __getstate__ of {type(part).__name__} is exported"
            remedy = "plain attributes instead of __getstate__: the file stores all of them"
    if reason:
        raise CompileError(f"{type(root).__name__} cannot be saved: {reason}", remedy=remedy)
    methods = {name: make_or_get(m, name) for name in dict.fromkeys(names_of(m, root))}
    for name, method in methods.items():
        if not may_be_method(container_of(root), name):
            raise _taken(name, method)
    return [Entry(name, root, x.signature, of_method(x)) for name, x in methods.items()]


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


def why_not_saved(module: torch.nn.Module) -> str:
    """Return why the methods of a module are not saved, "" if they are: files hold no hooks."""
    own = vars(module)
    return "it has a hook" if own["_forward_hooks"] or own["_forward_pre_hooks"] else ""


def names_of(m: ScriptModule, root: torch.nn.Module) -> Iterator[str]:
    """Return the methods that are entry points; some may occur twice. `__len__` is never one."""
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
        if isinstance(held, ScriptMethod) and held.variants():
            yield name
