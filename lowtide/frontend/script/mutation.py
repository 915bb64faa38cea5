"""Which variables a piece of source assigns or changes, and which are read before that.

In: AST nodes. Out: names.

    stored_names([x = y])               {"x"}
    changed_names([x[0] = y; z.add_(1)])  {"x", "z"}      in place
    is_read_first("x", [[x = x + 1]])   True: Python computes the right side first
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch.nn.functional

from lowtide.ir.core import Value


def stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that are assigned anywhere in these nodes."""
    found: set[str] = set()
    for root in nodes:
        for node in _without_scopes(root):
            match node:
                case ast.Name(id, ast.Store() | ast.Del()):
                    found.add(id)
                case ast.FunctionDef(name):
                    found.add(name)
                case _:
                    pass
    return found


def changed_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The names whose value may be changed in place: `x[i] = v`, `x.add_(y)`."""
    found: set[str] = set()
    for root in nodes:
        for node in ast.walk(root):
            match node:
                case ast.Subscript(value, _, ast.Store()):
                    found |= _base(value)
                case ast.Call(ast.Attribute(ast.Name(id), attr)) if is_inplace(attr):
                    found.add(id)
                case _:
                    pass
    return found


@functools.lru_cache(maxsize=256)
def read_names(function: ast.AST) -> frozenset[str]:
    """The variables that are read anywhere in a function, or in one inside it."""
    found: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.Name(id, ast.Load()) | ast.AugAssign(target=ast.Name(id)):
                found.add(id)
            case _:
                pass
    return frozenset(found)


def is_inplace(method: str) -> bool:
    """Whether a tensor's method changes it: `add_`, `zero_`; but not `__len__`."""
    return method.endswith("_") and not method.endswith("__")


def flag_of(source: str, args: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    """What a call of PyTorch says of `inplace`: `F.relu(x, True)`; None if nothing."""
    position = _flag_position(source)
    by_position = args[position] if position is not None and position < len(args) else None
    return named.get("inplace", by_position)


@functools.lru_cache(maxsize=256)
def _flag_position(source: str) -> int | None:
    root, _, name = source.partition(".")
    function = getattr(torch.nn.functional, name, None)
    if root != "F" or not inspect.isfunction(function):
        return None
    names = list(inspect.signature(function).parameters)
    return names.index("inplace") if "inplace" in names else None


def after(loop: ast.AST, function: ast.AST) -> list[list[ast.AST]]:
    """What runs after a loop, body by body: the statements behind it, and loops around it again."""
    return _after(loop, [function]) or []


def _after(loop: ast.AST, nodes: Sequence[ast.AST]) -> list[list[ast.AST]] | None:
    for k, node in enumerate(nodes):
        if node is loop:
            return [list(nodes[k + 1 :])]
        for field in ("body", "orelse", "finalbody"):
            body: object = getattr(node, field, None)
            inner = _after(loop, cast("list[ast.AST]", body)) if isinstance(body, list) else None
            if inner is not None:
                goes_on = isinstance(node, ast.For | ast.While) and field == "body"
                return [*inner, [node] if goes_on else [], list(nodes[k + 1 :])]
    return None


def is_read_first(name: str, bodies: Sequence[Sequence[ast.AST]]) -> bool:
    """Whether the name may be read in these bodies before it has surely been assigned."""
    jumped = False
    for body in bodies:
        found = _first_use(name, body)
        if found or (found is False and not jumped):
            return found
        jumped = jumped or any(map(_jumps, body))
    return False


def _first_use(name: str, nodes: Sequence[ast.AST | None]) -> bool | None:
    """True: may be read first; False: surely assigned first; None: neither, as far as known."""
    jumped = False  # then what follows may not run
    for node in nodes:
        found = _use_in(name, node)
        if found is not None:
            return None if jumped and not found else found
        jumped = jumped or _jumps(node)
    return None


def _jumps(node: ast.AST | None) -> bool:
    """Whether a `break` or `continue` may lead out of a statement."""
    match node:
        case ast.Break() | ast.Continue():
            return True
        case ast.For() | ast.While():
            return any(map(_jumps, node.orelse))
        case ast.stmt() if not isinstance(node, ast.FunctionDef):
            return any(map(_jumps, ast.iter_child_nodes(node)))
        case _:
            return False


def _use_in(name: str, node: ast.AST | None) -> bool | None:
    match node:
        case None:
            return None
        case ast.Name(id, context):
            return isinstance(context, ast.Load) if id == name else None
        case ast.If(test, body, orelse):
            return _either(name, [test], body, orelse)
        case ast.IfExp(test, body, orelse):
            return _either(name, [test], [body], [orelse])
        case ast.For(target, iter, body, orelse):
            return _either(name, [iter], [target, *body, *orelse], orelse)
        case ast.While(test, body, orelse):
            return _either(name, [test], [*body, *orelse], orelse)
        case ast.BoolOp(_, [first, *rest]):
            return _either(name, [first], rest, [])
        case ast.Lambda() | ast.FunctionDef():
            reads = (found.ctx for found in occurrences(name, [node]))
            return True if any(isinstance(context, ast.Load) for context in reads) else None
        case _:
            return _first_use(name, in_order(node))


def _either(
    name: str, first: Sequence[ast.AST], one: Sequence[ast.AST], other: Sequence[ast.AST]
) -> bool | None:
    """After `first`, one of two ways."""
    found = _first_use(name, first)
    if found is not None:
        return found
    ways = _first_use(name, one), _first_use(name, other)
    return True if True in ways else False if ways == (False, False) else None


def occurrences(name: str, nodes: Sequence[ast.AST]) -> Iterator[ast.Name]:
    """Where the name stands, about in the order in which Python gets there."""
    for node in nodes:
        if isinstance(node, ast.Name):
            if node.id == name:
                yield node
            continue
        yield from occurrences(name, in_order(node))


def in_order(node: ast.AST) -> list[ast.AST]:
    """The parts of a node, about in the order in which Python gets there."""
    match node:
        case ast.Assign(targets, value):
            return [value, *targets]
        case ast.AugAssign(ast.Name(id) as target, _, value):
            return [value, ast.copy_location(ast.Name(id, ast.Load()), target), target]
        case ast.AnnAssign(target, _, value):
            return [*([value] if value else []), target]
        case ast.For(target, iter, body, orelse):
            return [iter, target, *body, *orelse]
        case ast.ListComp(elt, generators) | ast.GeneratorExp(elt, generators):
            return [*generators, elt]
        case ast.comprehension(target, iter, ifs):
            return [iter, target, *ifs]
        case _:
            return list(ast.iter_child_nodes(node))


_SCOPES = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp, ast.Lambda)


def _without_scopes(root: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk, but not into what has variables of its own."""
    yield root
    if isinstance(root, _SCOPES):
        yield from (ast.Name(name, ast.Store()) for name in named_inside(root))
        return
    for child in ast.iter_child_nodes(root):
        yield from _without_scopes(child)


def named_inside(root: ast.AST) -> set[str]:
    """The variables of the function that `:=` assigns in a comprehension."""
    if isinstance(root, ast.Lambda):
        return set()
    inner = (child for child in ast.iter_child_nodes(root))
    own = {root.target.id} if isinstance(root, ast.NamedExpr) else set[str]()
    return own.union(*map(named_inside, inner))


def _base(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()
