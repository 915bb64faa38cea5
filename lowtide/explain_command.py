"""`lowtide explain` and `lowtide memory` of `pkg.mod:fn --shape 1000x4,500x4`: asked by name.

In: three texts. Out: what `explain()` and `memory()` of the compiled function say for tensors of
those shapes. Nothing is run: the tensors are never written, so they take no memory.

    pkg.mod:fn        a function          pkg.mod:net            a module: its forward
    pkg.mod:Net       Net()               pkg.mod:net.encode     another method of it
    pkg.mod:make()    what make() gives   pkg.mod:make().encode
"""

from __future__ import annotations

import importlib
import os
import sys
from types import MethodType
from typing import Any

import torch

SCALAR = "scalar"


class ArgumentFault(Exception):
    """The command's arguments make no sense; the text says what to write instead."""


def explain(target: str, shapes: str, dtypes: str) -> Any:
    """The Explanation. Raises ArgumentFault, and LowtideError if it does not compile."""
    compiled, args = _ask(target, shapes, dtypes)
    return compiled.explain(*args)


def predict(target: str, shapes: str, dtypes: str, backward: bool = False) -> Any:
    """The MemoryPlan, of a forward pass alone or, with `backward`, of a step of training.

    Raises ArgumentFault, and LowtideError if it does not compile."""
    compiled, args = _ask(target, shapes, dtypes)
    with torch.set_grad_enabled(backward):
        for x in args:
            x.requires_grad_(backward and (x.is_floating_point() or x.is_complex()))
        return compiled.memory(*args)


def _ask(target: str, shapes: str, dtypes: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    compiled = scripted(target, resolve(target))
    args = make_arguments(shapes, dtypes)
    bind = getattr(compiled, "bind", None)
    try:
        if bind is not None:
            bind(args, {})
    except TypeError as fault:
        tensors = f"--shape gives {len(args)} tensor{'s' * (len(args) != 1)}"
        raise ArgumentFault(f"{fault}; {tensors}") from fault
    return compiled, args


def scripted(target: str, found: Any) -> Any:
    """What explains the object: itself if it is compiled, else what `lt.script` makes of it.

    Raises ArgumentFault for what has no program, and CompileError."""
    import lowtide as lt

    script: Any = lt.script
    owner = getattr(found, "__self__", None)
    if isinstance(found, MethodType) and isinstance(owner, torch.nn.Module):
        try:
            return getattr(script(owner), found.__name__)
        except AttributeError as fault:
            raise ArgumentFault(str(fault)) from fault
    if isinstance(found, torch.nn.Module):
        return script(found).forward
    if hasattr(found, "explain"):
        return found
    if isinstance(found, type | MethodType) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise ArgumentFault(f"{target!r} is {kind}; name a function, an nn.Module or its method")
    return script(found)


def _is_module_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, torch.nn.Module)


def resolve(target: str) -> Any:
    """The object that `pkg.mod:name` names; modules are looked for in the current folder too.

    `name()` is called without arguments, and so is a class of modules. Raises ArgumentFault."""
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise ArgumentFault(f"{target!r} is not of the form pkg.mod:fn")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as fault:
        raise ArgumentFault(
            f"module {fault.name!r} was not found; run it from the folder that holds it"
        ) from fault
    for part in attribute.split("."):
        name = part.removesuffix("()")
        if not hasattr(found, name):
            raise ArgumentFault(f"{module_name} has no {attribute!r}")
        found = getattr(found, name)
        is_class = _is_module_class(found)
        found = _called(module_name, found) if name != part or is_class else found
    return found


def _called(module_name: str, found: Any) -> Any:
    try:
        return found()
    except TypeError as fault:
        remedy = f"write a function without arguments that makes it, and {module_name}:make()"
        raise ArgumentFault(f"{fault}; {remedy}") from fault


def make_arguments(shapes: str, dtypes: str) -> tuple[torch.Tensor, ...]:
    """Uninitialised tensors for `"1000x4,500x4"` and `"float32"` or `"float32,int64"`."""
    sizes = [parse_shape(text) for text in shapes.split(",")]
    kinds = [parse_dtype(text) for text in dtypes.split(",")]
    if len(kinds) == 1:
        kinds *= len(sizes)
    if len(kinds) != len(sizes):
        raise ArgumentFault(f"{len(sizes)} shapes and {len(kinds)} dtypes; give one dtype or all")
    return tuple(torch.empty(size, dtype=kind) for size, kind in zip(sizes, kinds, strict=True))


def parse_shape(text: str) -> tuple[int, ...]:
    """`"1000x4"` → `(1000, 4)`, `"scalar"` → `()`."""
    text = text.strip().lower()
    if text == SCALAR:
        return ()
    extents = text.split("x")
    if not all(extent.isdecimal() for extent in extents):
        raise ArgumentFault(f"{text!r} is not a shape; write 1000x4, or {SCALAR}")
    return tuple(int(extent) for extent in extents)


def parse_dtype(text: str) -> torch.dtype:
    """`"float32"` or `"torch.float32"` → `torch.float32`."""
    found: object = getattr(torch, text.strip().removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ArgumentFault(f"{text!r} is not a dtype; write float32, int64, bfloat16, …")
    return found
