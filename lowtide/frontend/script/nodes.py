"""Nodes are the values of expressions while compiling: an SSA value, or something known only to the
compiler.

In: the results of compiling expressions. Out: records that calls, attributes and loops take apart.

    x.sum        →  Method(receiver=%x, name="sum")
    torch.sum    →  PythonObject(torch.sum, "torch.sum")
    range(n)     →  Range(0, n, 1)

Invariant: nothing of these but `Value` ever stands in IR.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import get_args

import torch

from lowtide.errors import Loc
from lowtide.ir.core import Value


@dataclass(frozen=True, slots=True, eq=False)
class PythonObject:
    """A module, function or class; `path` is how the user reached it ("torch.sum"), or ""."""

    obj: object
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """`receiver.name`, about to be called. `variable`: the receiver's name if it is a variable."""

    receiver: Value
    name: str
    variable: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """`range(start, stop, step)`."""

    start: Value
    stop: Value
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class Enumerate:
    """`enumerate(inner, start)`."""

    inner: Node
    start: Value


@dataclass(frozen=True, slots=True, eq=False)
class Zip:
    """`zip(*inners, strict=strict)`."""

    inners: tuple[Node, ...]
    strict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reversed:
    """`reversed(inner)`."""

    inner: Node


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """`slice(start, stop, step)`, or `a:b:c` in a subscript."""

    start: Value
    stop: Value
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class LocalFunction:
    """A `def` or a lambda inside the function being compiled. `frame`: where it is defined.
    `defaults`: the values of its parameters' defaults there."""

    node: ast.FunctionDef | ast.Lambda
    frame: object
    defaults: Mapping[str, Node]


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """`functools.partial(callee, *args, **keywords)`."""

    callee: Node
    args: tuple[Node, ...]
    keywords: Mapping[str, Node]


@dataclass(frozen=True, slots=True, eq=False)
class Poison:
    """A variable that must not be used: why, and since which line."""

    why: str
    remedy: str
    loc: Loc


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRef:
    """An nn.Module that is known while compiling. `path`: from the root, which is "".
    `runs_forward`: a call runs its forward, whatever `__call__` its class has."""

    module: torch.nn.Module
    path: str
    runs_forward: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FinishedMethod:
    """A method of a traced or loaded module, which has a program already."""

    ref: ModuleRef
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """A sequence of what is known while compiling: the modules of a list, pairs of a dict.

    `chained`: calling it calls one after the other, as a slice of nn.Sequential does."""

    nodes: tuple[Node, ...]
    chained: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """One of several compile-time objects, chosen at run time by an index, a key, or a bool (True:
    the first)."""

    index: Value
    nodes: tuple[Node, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BoundMethod:
    """A Python method of a module, a class or an object, about to be called."""

    fn: FunctionType
    owner: ModuleRef | PythonObject | Value


@dataclass(frozen=True, slots=True, eq=False)
class Super:
    """`super()` of a module or an object: attributes are looked up after `cls` in its MRO."""

    owner: ModuleRef | Value
    cls: type


Node = (
    Value
    | PythonObject
    | Method
    | Range
    | Enumerate
    | Zip
    | Reversed
    | Slice
    | LocalFunction
    | Partial
    | ModuleRef
    | FinishedMethod
    | Members
    | Chosen
    | BoundMethod
    | Super
)
NODES = get_args(Node)
ITERATORS = (Enumerate, Zip, Reversed)  # in Python, objects that can be read only once


def read_once(name: str, loc: Loc) -> Poison:
    """Return the poison of a variable that held an iterator, after that was consumed."""
    return Poison(
        f"{name!r} is an iterator, which can be read only once", "`list(…)` around it", loc
    )


@dataclass(slots=True, kw_only=True)
class Call:
    """A call whose arguments have been compiled."""

    node: ast.Call
    args: list[Node]
    keywords: dict[str, Node] = field(default_factory=dict[str, Node])
    unpacked: bool = False  # the only argument is a list of all, their number being unknown


def is_choosable(node: Node | Poison | None) -> bool:
    """Return whether it may be chosen among others at run time: a module, a method, a function or a
    class."""
    if isinstance(node, PythonObject):
        return callable(node.obj)
    if isinstance(node, LocalFunction):
        return not node.defaults  # they may have been computed on one way only
    return isinstance(node, ModuleRef | BoundMethod | Chosen)


def is_data(node: Node | Poison | None) -> bool:
    """Return whether Python has an object for it that is data: a slice, a range, a dtype's
    limits."""
    is_limits = isinstance(node, PythonObject) and isinstance(node.obj, torch.finfo | torch.iinfo)
    return is_limits or isinstance(node, Slice | Range)


def describe(node: Node) -> str:
    """Return a description for error messages."""
    match node:
        case Value(type=type_):
            return f"a value of type {type_}"
        case PythonObject(ModuleType() as module):
            return f"the module {module.__name__}"
        case PythonObject(obj, path):
            name = path or getattr(obj, "__name__", None)
            return f"the Python object {name or repr(obj)[:60]}"
        case Method(_, name):
            return f"the method {name!r}"
        case ModuleRef(module):
            return f"a module ({type(module).__name__})"
        case Members():
            return "a tuple or list of compile-time objects, such as modules,"
        case FinishedMethod(ref, name):
            return f"the method {name!r} of {describe(ref)}"
        case _:
            return f"a {type(node).__name__.lower()}"
