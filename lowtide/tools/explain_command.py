"""`lowtide explain` and `lowtide memory`: explain a function that is given by name.

In: a target such as `pkg.mod:fn`, shapes such as `1000x4,500x4`, dtypes. Out: the result of the
compiled function's `explain()` or `memory()` for meta tensors of these shapes. Nothing is run.

    pkg.mod:fn        a function             pkg.mod:net            the forward of a module
    pkg.mod:Net       Net()                  pkg.mod:net.encode     another method of it
    pkg.mod:make()    the result of make()   pkg.mod:make().encode
    pkg.mod:Net(8, bias=False)               arguments are literals
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch

from lowtide.errors import Loc, LowtideError

SCALAR = "scalar"
_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), os.path.dirname(__file__))
_GUARD = "put what a script does under `if __name__ == '__main__':`: "
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


class ArgumentFault(Exception):
    """The command's arguments are wrong; the message says what to write instead."""


def explain(target: str, shapes: str, dtypes: str, page: str = "") -> Any:
    """Return the Explanation. `page`: where to write its stages as HTML, if anywhere. Raises
    ArgumentFault, and LowtideError if it does not compile."""
    compiled, args = _ask(target, shapes, dtypes)
    found = compiled.explain(*args)
    if page:
        from lowtide.tools.stages_page import write_page

        try:
            write_page(compiled, args, page)
        except OSError as fault:
            raise ArgumentFault(f"--html {page}: {fault.strerror}") from fault
    return found


def predict(target: str, shapes: str, dtypes: str, backward: bool = False) -> Any:
    """Return the MemoryPlan of a forward pass or, with `backward`, of a training step.

    Raises ArgumentFault, and LowtideError if it does not compile."""
    compiled, args = _ask(target, shapes, dtypes)
    with torch.set_grad_enabled(backward):
        for x in args:
            x.requires_grad_(backward and (x.is_floating_point() or x.is_complex()))
        return compiled.memory(*args)


def _ask(target: str, shapes: str, dtypes: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    compiled = scripted(target, resolve(target))
    args = make_arguments(shapes, dtypes)
    check_call(target, compiled, args)
    return compiled, args


def check_call(target: str, called: Any, args: Sequence[torch.Tensor]) -> None:
    """Raise ArgumentFault if the target does not take so many arguments."""
    function = called.forward if isinstance(called, torch.nn.Module) else called
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError as fault:
        tensors = f"--shape gives {len(args)} tensor{'s' * (len(args) != 1)}"
        raise ArgumentFault(
            f"write one shape for each tensor, such as --shape 1000x4,500x4: {target} takes "
            f"{signature}; {tensors} ({fault}).\nIf it needs other arguments, name a function that "
            "sets them: `def f(x): return …`"
        ) from fault


def scripted(target: str, found: Any) -> Any:
    """Return the object itself if it is compiled, else what `lt.script` makes of it.

    Raises ArgumentFault for objects that cannot be scripted, and CompileError."""
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
    if isinstance(found, MethodType):
        kind = type(owner).__name__
        raise ArgumentFault(
            f"write a function that calls it, and name that: {target!r} is a method of {kind}, "
            "which is no nn.Module"
        )
    if isinstance(found, type) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise ArgumentFault(f"name a function, an nn.Module or its method: {target!r} is {kind}")
    return script(found)


def _is_module_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, torch.nn.Module)


def resolve(target: str) -> Any:
    """Return the object that `pkg.mod:name` names; modules may be in the current folder, too.

    `name(8, bias=False)` is called with these literals, a module's class without arguments. Raises
    ArgumentFault, and LowtideError if the import fails."""
    module_name, colon, attribute = target.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        path = os.path.relpath(module_name) if os.path.isabs(module_name) else module_name
        name = os.path.normpath(path).removesuffix(".py").replace(os.sep, ".")
        if name.startswith(".."):
            folder, file = os.path.split(os.path.abspath(path))
            name, there = file.removesuffix(".py"), f", in the folder {folder}"
        else:
            there = ""
        raise ArgumentFault(
            f"write the file's module, {name}:{attribute or _example(path)}{there}; "
            f"{module_name!r} is a file"
        )
    if not (colon and module_name and attribute) or module_name.startswith("."):
        raise ArgumentFault(f"{_suggested(target)}{target!r} is not of the form pkg.mod:fn")
    return _value(_parsed(target, attribute), module_name, _imported(module_name))


def _imported(module_name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as fault:
        if not isinstance(fault, ModuleNotFoundError) or fault.name is None:
            said = described(fault)
            remedy = _GUARD if isinstance(fault, SystemExit) else ""
            raise LowtideError(f"{remedy}{module_name} cannot be imported: {said}") from fault
        if not f"{module_name}.".startswith(f"{fault.name}."):
            raise ArgumentFault(
                f"install {fault.name!r}, or run this from the folder that holds it: "
                f"{module_name} imports it, and it was not found"
            ) from fault
        names = [found.name for found in pkgutil.iter_modules([os.getcwd()])]
        raise ArgumentFault(
            f"run this from the folder that holds it: module {fault.name!r} was not found in "
            f"{os.getcwd()}, nor among the installed ones{_near(fault.name, names)}"
        ) from fault


def _suggested(target: str) -> str:
    """Return the target that was probably meant, as the start of a message; else "".

    `pkg.mod.fn` and `pkg.mod` lack the colon. Nothing is imported."""
    if ":" in target:
        return ""
    name, bracket, rest = target.partition("(")
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        for folder in (os.getcwd(), *sys.path):
            path = f"{os.path.join(folder, *parts[:count])}.py"
            if os.path.isfile(path):
                attribute = ".".join(parts[count:]) or _example(path)
                return f"write {'.'.join(parts[:count])}:{attribute}{bracket}{rest}; "
    return ""


def _example(path: str) -> str:
    """Return the name of the first function or class of a file, `fn` if there is none."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        body = []
    return next((x.name for x in body if isinstance(x, ast.FunctionDef | ast.ClassDef)), "fn")


def _near(name: str, names: Sequence[str]) -> str:
    """Return the nearest of the names as a question, "" if none is near."""
    found = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def described(fault: BaseException) -> str:
    """Return the exception's text and its line, if possible the last one outside of libraries."""
    said = traceback.format_exception_only(fault)[-1].strip()
    if isinstance(fault, SyntaxError) and fault.filename:
        return f"{Loc(fault.filename, fault.lineno or 0).shown()}: {said}"
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if os.path.isfile(f.filename)]
    frames = frames[1:]  # without this file; importlib's frames have no file
    users = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    last = (users or frames)[-1:]
    return "".join(f"{Loc(f.filename, f.lineno or 0).shown()}: " for f in last) + said


def _parsed(target: str, attribute: str) -> ast.expr:
    try:
        return ast.parse(attribute, mode="eval").body
    except (SyntaxError, ValueError) as fault:
        raise ArgumentFault(f"{target!r} is not of the form pkg.mod:fn") from fault


def _value(node: ast.expr, module_name: str, module: Any) -> Any:
    """Evaluate `a.b(1).c` in a module. A module's class is called without arguments."""
    if isinstance(node, ast.Call):
        return _called(node, module_name, _looked_up(node.func, module_name, module))
    found = _looked_up(node, module_name, module)
    return _called(None, module_name, found) if _is_module_class(found) else found


def _looked_up(node: ast.expr, module_name: str, module: Any) -> Any:
    if isinstance(node, ast.Call):
        return _value(node, module_name, module)
    if isinstance(node, ast.Attribute):
        owner, name = _value(node.value, module_name, module), node.attr
    elif isinstance(node, ast.Name):
        owner, name = module, node.id
    else:
        raise ArgumentFault(f"{ast.unparse(node)!r} is not a name; write a function or a module")
    if not hasattr(owner, name):
        names = [n for n in dir(owner) if not n.startswith("__")]
        raise ArgumentFault(f"{module_name} has no {ast.unparse(node)!r}{_near(name, names)}")
    return getattr(owner, name)


def _called(call: ast.Call | None, module_name: str, found: Any) -> Any:
    remedy = f"write its arguments, as in Net(8), or a function that makes it, {module_name}:make()"
    try:
        args = [ast.literal_eval(one) for one in call.args] if call else []
        named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords} if call else {}
    except ValueError as fault:
        raise ArgumentFault(
            "write literals, as in Net(8, bias=False), or a function without arguments that makes "
            f"it, and {module_name}:make()"
        ) from fault
    try:
        return found(*args, **named)
    except TypeError as fault:
        raise ArgumentFault(f"{remedy}: {fault}") from fault


def make_arguments(shapes: str, dtypes: str) -> tuple[torch.Tensor, ...]:
    """Return meta tensors for `"1000x4,500x4"` and `"float32"` or `"float32,int64"`."""
    if found := re.findall(r"[(\[]([^)\]]*)", shapes):
        meant = ",".join("x".join(re.findall(r"\d+", text)) or SCALAR for text in found)
        raise ArgumentFault(f"write --shape {meant}: {shapes!r} is not a list of shapes")
    sizes = [parse_shape(text) for text in shapes.split(",")] if shapes else []
    kinds = [parse_dtype(text) for text in dtypes.split(",")]
    if len(kinds) == 1:
        kinds *= len(sizes)  # none, if there is no shape
    if len(kinds) != len(sizes):
        raise ArgumentFault(
            f"{len(sizes)} shapes and {len(kinds)} dtypes; give one dtype, or one for each shape"
        )
    return tuple(_tensor(size, kind) for size, kind in zip(sizes, kinds, strict=True))


def filled(like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this shape and dtype with random numbers in [0, 1), or integers 0. Raises
    ArgumentFault if there is no memory for it."""
    try:
        if like.dtype == torch.bool:
            return torch.rand(like.shape) < 0.5
        if like.is_floating_point() or like.is_complex():
            return torch.rand(like.shape, dtype=like.dtype)
        return torch.zeros(like.shape, dtype=like.dtype)
    except (RuntimeError, MemoryError) as fault:
        shape = "x".join(map(str, like.shape))
        raise ArgumentFault(f"there is no memory for an argument of shape {shape}") from fault


def _tensor(size: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=kind, device="meta")
    except (RuntimeError, TypeError, OverflowError) as fault:  # more elements than 64 bits count
        shape = "x".join(map(str, size))
        raise ArgumentFault(f"there is no {kind} tensor of shape {shape}") from fault


def parse_shape(text: str) -> tuple[int, ...]:
    """Return `(1000, 4)` for `"1000x4"`, `()` for `"scalar"`. Raises ArgumentFault."""
    text = text.strip().lower()
    if text == SCALAR:
        return ()
    extents = text.split("x")
    if not all(extent.isdecimal() for extent in extents):
        is_near = re.fullmatch(r"\d+(\s*[*×]\s*\d+)+", text)
        sizes = "x".join(re.findall(r"\d+", text)) if is_near else "1000x4"
        raise ArgumentFault(f"write {sizes}, or {SCALAR}: {text!r} is not a shape")
    return tuple(int(extent) for extent in extents)


def parse_dtype(text: str) -> torch.dtype:
    """Return `torch.float32` for `"float32"` or `"torch.float32"`. Raises ArgumentFault."""
    found: object = getattr(torch, text.strip().removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or found in _QUANTIZED:
        near = difflib.get_close_matches(text.strip().removeprefix("torch."), _DTYPES, n=1)
        remedy = near[0] if near else "float32, int64, bfloat16, …"
        raise ArgumentFault(f"write {remedy}: {text!r} is not a dtype")
    return found
