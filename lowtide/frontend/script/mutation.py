"""Finds the variables that a piece of source assigns or changes, and those that it reads before.

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
from typing import Final, cast

from lowtide.ir.aliases import writes_another
from lowtide.ir.builder import Builder
from lowtide.ir.core import Value
from lowtide.ops.registry import resolve

INPLACE_OPERATORS: Final = frozenset({
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
})  # fmt: skip


def stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are assigned anywhere in these nodes."""
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
    """Return the names whose value may be changed in place: `x[i] = v`, `x.add_(y)`."""
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


def is_inplace(method: str) -> bool:
    """Return whether a tensor method changes its tensor: `add_`, `zero_`; but not `__len__`."""
    return method.endswith("_") and not method.endswith("__")


def writing_op(
    builder: Builder, source: str, args: Sequence[Value], named: Mapping[str, Value]
) -> str:
    """Return the op for a call of PyTorch that may write into a tensor that it is given; "" if it
    writes into none.

        x.add_(1), x += 1, F.relu(x, True)              "mutate": its first operand
        torch.add(x, y, out=z), F.embedding(i, w, …)    "call_torch", see `aliases.writes_another`
    """
    if not _writes(builder, source, args, named):
        return ""
    return "call_torch" if writes_another(source, named) else "mutate"


def _writes(
    builder: Builder, source: str, args: Sequence[Value], named: Mapping[str, Value]
) -> bool:
    root, _, name = source.rpartition(".")
    if name.removeprefix("__").removesuffix("__") in INPLACE_OPERATORS:
        return True
    if root != "operator" and is_inplace(name):  # not `operator.and_`
        return True
    given = _given(source, args, named)
    asks = (given[k] for k in ("inplace", "max_norm", "out") if k in given)
    return any(builder.constant(v) not in (False, None) for v in asks)


def _given(source: str, args: Sequence[Value], named: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the arguments by parameter name, as far as the signature tells."""
    names = _parameters(source)
    return {**dict(zip(names, args, strict=False)), **named}


@functools.lru_cache(maxsize=1024)
def _parameters(source: str) -> Sequence[str]:
    """Return the names of a function's parameters, none for a builtin."""
    function = resolve(source) if source.partition(".")[0] in ("torch", "F", "Tensor") else None
    try:
        return tuple(inspect.signature(function).parameters) if function is not None else ()
    except (TypeError, ValueError):
        return ()


def after(loop: ast.AST, function: ast.AST) -> list[list[ast.AST]]:
    """Return what runs after a loop, body by body: the statements after it, and enclosing loops
    again."""
    return _after(loop, [function]) or []


def _after(loop: ast.AST, nodes: Sequence[ast.AST]) -> list[list[ast.AST]] | None:
    for k, node in enumerate(nodes):
        if node is loop:
            orelse: list[ast.stmt] = getattr(node, "orelse", [])
            skipped = ast.If(ast.Constant(True), orelse, [])  # after a `break`
            return [[*([skipped] if orelse else []), *nodes[k + 1 :]]]
        for field in ("body", "orelse", "finalbody"):
            body: object = getattr(node, field, None)
            inner = _after(loop, cast("list[ast.AST]", body)) if isinstance(body, list) else None
            if inner is not None:
                goes_on = isinstance(node, ast.For | ast.While) and field == "body"
                return [*inner, [node] if goes_on else [], list(nodes[k + 1 :])]
    return None


def is_read_first(name: str, bodies: Sequence[Sequence[ast.AST]]) -> bool:
    """Return whether the name may be read in these bodies before it has surely been assigned."""
    jumped = False
    for body in bodies:
        found = _first_use(name, body)
        if found or (found is False and not jumped):
            return found
        jumped = jumped or any(map(_jumps, body))
    return False


def _first_use(name: str, nodes: Sequence[ast.AST | None]) -> bool | None:
    """Return True: may be read first. False: certainly assigned first. None: neither."""
    jumped = False  # then what follows may not run
    for node in nodes:
        found = _use_in(name, node)
        if found is not None:
            return None if jumped and not found else found
        jumped = jumped or _jumps(node)
    return None


def _jumps(node: ast.AST | None) -> bool:
    """Return whether a `break` or `continue` may lead out of a statement."""
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
    """Return the result for `first`, followed by one of two alternatives."""
    found = _first_use(name, first)
    if found is not None:
        return found
    ways = _first_use(name, one), _first_use(name, other)
    return True if True in ways else False if ways == (False, False) else None


def occurrences(name: str, nodes: Sequence[ast.AST]) -> Iterator[ast.Name]:
    """Yield the uses of the name, approximately in the order of evaluation."""
    for node in nodes:
        if isinstance(node, ast.Name):
            if node.id == name:
                yield node
            continue
        yield from occurrences(name, in_order(node))


def in_order(node: ast.AST) -> list[ast.AST]:
    """Yield the parts of a node, approximately in the order of evaluation."""
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
    """Like ast.walk, but not into nodes with variables of their own."""
    yield root
    if isinstance(root, _SCOPES):
        yield from (ast.Name(name, ast.Store()) for name in named_inside(root))
        return
    for child in ast.iter_child_nodes(root):
        yield from _without_scopes(child)


def named_inside(root: ast.AST) -> set[str]:
    """Return the variables of the function that `:=` assigns in a comprehension."""
    if isinstance(root, ast.Lambda):
        return set()
    inner = (child for child in ast.iter_child_nodes(root))
    own = {root.target.id} if isinstance(root, ast.NamedExpr) else set[str]()
    return own.union(*map(named_inside, inner))


def _base(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()
