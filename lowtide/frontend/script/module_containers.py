"""ModuleList, ModuleDict, Sequential, ParameterList, ParameterDict: taken apart while compiling.

In: a ModuleRef to a container. Out: its elements, an element, how many there are.

    for name, layer in self.layers.items(): x = layer(x)      unrolled
    self.layers[-1](x)  self.blocks["a"]  self.layers[1:]     found while compiling
    self.layers[i](x)  self.blocks[name](x)                   an `if` for each layer (`chosen`)
    name in self.blocks, self.blocks.keys()                   a comparison with the keys
    self.named_children(), self.parameters()                  known too, as of any module

Invariant: elements of module containers are ModuleRefs, of parameter containers tensors.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn

from lowtide.frontend.script.context import Context, NotKnown
from lowtide.frontend.script.module_protocols import call_own
from lowtide.frontend.script.module_state import child, follow, join_path
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, ELEMENTS_OF, ITEM_OF, VALUE_OF
from lowtide.frontend.script.nodes import (
    BoundMethod,
    Call,
    Chosen,
    LocalFunction,
    Members,
    ModuleRef,
    Node,
    PythonObject,
    Slice,
    describe,
    is_choosable,
)
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value

_LISTS = (nn.ModuleList, nn.Sequential, nn.ParameterList)
_DICTS = (nn.ModuleDict, nn.ParameterDict)


def _keys(c: Context, ref: ModuleRef) -> list[str]:
    """Return the attribute names of the elements, in order. Those of modules are checked at each
    call."""
    if isinstance(ref.module, nn.ParameterList | nn.ParameterDict | nn.ModuleDict):
        c.assumed.note_answer(ref.module, "keys", functools.partial(_keys_of, ref.module))
    return _keys_of(ref.module)


def _keys_of(module: Any) -> list[str]:
    match module:
        case nn.ParameterList():
            return [str(i) for i in range(len(module))]
        case nn.ParameterDict():
            return [str(k) for k in module.keys()]  # noqa: SIM118 (not a dict)
        case _:
            return list(cast("dict[str, object]", vars(cast("nn.Module", module))["_modules"]))


def _element(c: Context, node: ast.AST, ref: ModuleRef, key: str) -> Node:
    return ATTRIBUTE_OF[ModuleRef](c, node, ref, key)


def elements(c: Context, node: ast.AST, ref: ModuleRef) -> Sequence[Node]:
    """Return the elements of a loop over the container: modules, or the keys of a dict."""
    if isinstance(ref.module, _DICTS):
        return [c.const(k) for k in _keys(c, ref)]
    if isinstance(ref.module, _LISTS):
        return [_element(c, node, ref, k) for k in _keys(c, ref)]
    raise c.error(
        node,
        f"{describe(ref)} cannot be run over",
        "nn.ModuleList, nn.ModuleDict or nn.Sequential, or an `__iter__` of its class",
    )


def item(c: Context, node: ast.Subscript, ref: ModuleRef) -> Node:
    """Compile `container[index]`."""
    own = call_own(c, node, ref, "__getitem__", [_key(c, node.slice)])
    if own is not None:
        return own
    index = _index(c, node.slice)
    keys = _keys(c, ref)
    if isinstance(index, slice) and isinstance(ref.module, _LISTS):
        picked = tuple(_element(c, node, ref, k) for k in keys[index])
        return Members(picked, isinstance(ref.module, nn.Sequential))
    if isinstance(index, int) and isinstance(ref.module, _LISTS):
        if not -len(keys) <= index < len(keys):
            raise c.error(
                node,
                f"index {index} of {len(keys)} modules in {ref.path!r}",
                f"at most {len(keys) - 1}",
            )
        return _element(c, node, ref, keys[index])
    if isinstance(index, str) and isinstance(ref.module, _DICTS):
        if index not in keys:
            raise c.error(node, f"{describe(ref)} has no {index!r}", " or ".join(map(repr, keys)))
        return _element(c, node, ref, index)
    if not isinstance(ref.module, (*_LISTS, *_DICTS)):
        raise c.error(node, f"{describe(ref)} has no items", "a `__getitem__` of its class")
    found = c.expr(node.slice)
    if isinstance(found, Value) and keys:
        nodes = tuple(_element(c, node, ref, k) for k in keys)
        if isinstance(ref.module, _DICTS):
            return Chosen(found, nodes, tuple(keys))
        return Chosen(_position(c, node, ref, found), nodes)
    loop = f"`for i, module in enumerate({ast.unparse(node.value)})` with an `if` on i"
    raise c.error(node, "the index into a container of modules must be a constant", loop)


def _position(c: Context, node: ast.Subscript, ref: Node, index: Value) -> Value:
    """Return the index of an element, as an int."""
    if index.type in (t.FLOAT, t.STR, t.COMPLEX, t.NONE):
        problem = f"{describe(ref)} is indexed by a value of type {index.type}"
        raise c.error(node.slice, problem, "an int")
    return index if index.type == t.INT else c.py(node, "py.index", index)


def _key(c: Context, node: ast.expr) -> Node:
    found = c.expr(node)
    return c.as_value(found, node) if isinstance(found, Slice) else found


def _index(c: Context, node: ast.expr) -> object:
    found = c.expr(node)
    if isinstance(found, Slice):
        parts = [c.builder.constant(p) for p in (found.start, found.stop, found.step)]
        return UNKNOWN if UNKNOWN in parts else slice(*parts)
    return c.constant(found)


def member_item(c: Context, node: ast.Subscript, members: Members) -> Node:
    """Compile `members[index]`."""
    index = _index(c, node.slice)
    if isinstance(index, slice):
        return Members(members.nodes[index], members.chained)
    count = len(members.nodes)
    if isinstance(index, int) and not -count <= index < count:
        raise c.error(node, f"index {index} of {count} elements", f"at most {count - 1}")
    if isinstance(index, int):
        return members.nodes[index]
    found = c.expr(node.slice)
    if isinstance(found, Value) and count and all(map(is_choosable, members.nodes)):
        return Chosen(_position(c, node, members, found), members.nodes)
    problem = "the index into a container of modules must be a constant"
    raise NotKnown(problem, c.frame.source.loc(node), "a constant")


def members_value(c: Context, node: ast.AST, members: Members) -> Value:
    """Return a sequence of values as a tuple."""
    return c.builder.tuple_make([c.as_value(n, node) for n in members.nodes])


def compare_nodes(
    c: Context, node: ast.AST, op: ast.cmpop, left: Node, right: Node
) -> Value | None:
    """Compile `module is None`, `callback is None`, `"key" in self.layers`; return None for other
    comparisons."""
    if isinstance(op, ast.In | ast.NotIn):
        own = call_own(c, node, right, "__contains__", [left])
        if own is not None:
            held = c.truth(c.as_value(own, node))
            return c.py(node, "py.not", held) if isinstance(op, ast.NotIn) else held
    if isinstance(op, ast.In | ast.NotIn) and type(right) in ELEMENTS_OF:
        found = _is_among(c, node, left, ELEMENTS_OF[type(right)](c, node, right))
        return c.py(node, "py.not", found) if isinstance(op, ast.NotIn) else found
    if not isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        return None
    if not any(isinstance(n, _KNOWN) for n in (left, right)):
        return None
    objects = [_object(c, n) for n in (left, right)]
    if UNKNOWN in objects:
        return None
    return c.const((objects[0] is objects[1]) != isinstance(op, ast.IsNot | ast.NotEq))


def _is_among(c: Context, node: ast.AST, sought: Node, members: Sequence[Node]) -> Value:
    """Compile `sought in members`. A value known at run time is compared with each member then."""
    known, objects = _object(c, sought), [_object(c, m) for m in members]
    if known is not UNKNOWN and UNKNOWN not in objects:
        return c.const(known in objects)
    values = [m for m in members if isinstance(m, Value)]
    if isinstance(sought, Value) and len(values) == len(members):
        return c.py(node, "py.contains", c.builder.tuple_make(values), sought)
    problem = f"{describe(sought)} is compared with modules, which only exist while compiling"
    raise c.error(node, problem, "a str, looked up among the keys of an nn.ModuleDict")


def _object(c: Context, node: Node) -> object:
    if isinstance(node, ModuleRef):
        return node.module
    if isinstance(node, LocalFunction | BoundMethod):
        return node
    return node.obj if isinstance(node, PythonObject) else c.constant(node)


_KNOWN = (ModuleRef, PythonObject, LocalFunction, BoundMethod)


# --- methods of nn.Module that list what it has --------------------------------------------------

Method = Callable[[Context, ModuleRef, Call], Node]


def _items(c: Context, ref: ModuleRef, call: Call) -> Node:
    pairs = [Members((c.const(k), _element(c, call.node, ref, k))) for k in _keys(c, ref)]
    return Members(tuple(pairs))


def _values(c: Context, ref: ModuleRef, call: Call) -> Node:
    return Members(tuple(_element(c, call.node, ref, k) for k in _keys(c, ref)))


def _only_keys(c: Context, ref: ModuleRef, call: Call) -> Node:
    return Members(tuple(c.const(k) for k in _keys(c, ref)))


def _len(c: Context, ref: ModuleRef, call: Call) -> Node:
    return c.const(len(_keys(c, ref)))


def _children(ref: ModuleRef) -> Iterable[tuple[str, ModuleRef]]:
    for name in vars(ref.module)["_modules"]:
        found = child(ref.module, name)
        if found is not None:
            yield name, ModuleRef(found, join_path(ref.path, name))


def _all_modules(ref: ModuleRef, seen: set[int], prefix: str) -> Iterable[tuple[str, ModuleRef]]:
    if id(ref.module) in seen:
        return
    seen.add(id(ref.module))
    yield prefix, ref
    for name, inner in _children(ref):
        yield from _all_modules(inner, seen, join_path(prefix, name))


def _listed(find: Callable[[ModuleRef], Iterable[tuple[str, ModuleRef]]], named: bool) -> Method:
    def method(c: Context, ref: ModuleRef, call: Call) -> Node:
        found = list(find(ref))
        if named:
            rows = functools.partial(_names_listed, find, ref)
            c.assumed.note_answer(ref.module, "names of modules", rows)
            return Members(tuple(Members((c.const(n), m)) for n, m in found))
        return Members(tuple(m for _, m in found))

    return method


def _names_listed(
    find: Callable[[ModuleRef], Iterable[tuple[str, ModuleRef]]], ref: ModuleRef
) -> list[str]:
    return [name for name, _ in find(ref)]


def _tensors(kind: str, named: bool) -> Method:
    """Return the tensors of `parameters()`, `named_buffers()`, …, each once."""

    def method(c: Context, ref: ModuleRef, call: Call) -> Node:
        assert c.modules is not None
        flag = c.constant(
            call.keywords.get("recurse", call.args[-1] if call.args else c.const(True))
        )
        list_all = getattr(torch.nn.Module, f"named_{kind}")
        find = functools.partial(list_all, ref.module, recurse=flag is not False)
        found = cast("list[tuple[str, torch.Tensor]]", list(find()))
        question = f"{kind} {flag is not False}"
        c.assumed.note_answer(ref.module, question, lambda: [name for name, _ in find()])
        nodes: list[Node] = []
        for name, tensor in found:
            owner, last = follow(ref.module, name)
            prefix = name.rpartition(".")[0]
            inner = ModuleRef(owner, join_path(ref.path, prefix) if prefix else ref.path)
            value = _element(c, call.node, inner, last)
            assert isinstance(value, Value)
            assert value.type == t.TENSOR, tensor
            nodes.append(Members((c.const(name), value)) if named else value)
        return Members(tuple(nodes))

    return method


def _everything(ref: ModuleRef) -> Iterable[tuple[str, ModuleRef]]:
    return _all_modules(ref, set(), "")


METHODS: dict[str, Method] = {
    "items": _items,
    "values": _values,
    "keys": _only_keys,
    "__len__": _len,
    "children": _listed(_children, False),
    "named_children": _listed(_children, True),
    "modules": _listed(_everything, False),
    "named_modules": _listed(_everything, True),
    "parameters": _tensors("parameters", False),
    "named_parameters": _tensors("parameters", True),
    "buffers": _tensors("buffers", False),
    "named_buffers": _tensors("buffers", True),
}


def _member_nodes(c: Context, node: ast.AST, members: Members) -> Sequence[Node]:
    return members.nodes


ELEMENTS_OF[ModuleRef] = elements
ELEMENTS_OF[Members] = _member_nodes
ITEM_OF[ModuleRef] = item
ITEM_OF[Members] = member_item
VALUE_OF[Members] = members_value
