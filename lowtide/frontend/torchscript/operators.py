"""Calls of operators in an archive's code: which op of Python, or function of PyTorch, each is.

In: a dotted name (`torch.add`, `ops.prim.dtype`, `ops.torchvision.nms`) and compiled arguments, in
the order of the operator's schema. Out: ops.

    torch.add(n, 1)            of ints: py.add         of tensors: torch.add, by its record
    torch.append(xs, v)        list.append
    torch.batch_norm(x, w, …)  F.batch_norm, whose arguments have another order
    torch.zeros([2], dtype=6)  torch.zeros with torch.float32

Invariant: the meaning is that of the operator's schema. What neither Lowtide nor PyTorch has is
`missing`.
"""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.frontend import torch_schemas
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.classes import class_of
from lowtide.frontend.script.context import EXPRESSIONS, Context
from lowtide.frontend.script.nodes import Call, Node, PythonObject
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.subscripts import item_of
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.frontend.torchscript import codes, on_python, on_tensors, upgraders
from lowtide.frontend.torchscript.language import Item
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import DictType, ListType, OptionalType, TupleType, Type
from lowtide.torch_private import torch_jit

_OURS: Final = ("aten", "prim")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the archive's code, called while compiling. `version`: the format's."""

    namespace: str
    name: str
    version: int

    @property
    def path(self) -> str:
        """The name in the code."""
        root = "torch" if self.namespace == "aten" else f"ops.{self.namespace}"
        return f"{root}.{self.name}"


@functools.cache
def operator(path: str, version: int) -> Operator | None:
    """Return the operator of a name in the code; None if nobody has it."""
    parts = path.split(".")
    if parts[0] == "torch" and len(parts) == 2:
        made = Operator("aten", parts[1], version)
    elif parts[0] == "ops" and len(parts) == 3:
        made = Operator(parts[1], parts[2], version)
    else:
        return None
    if not _is_known(made):
        return None
    BUILTINS[made] = functools.partial(_compile, made)
    return made


def _is_known(made: Operator) -> bool:
    if made.namespace in _OURS and (made.name in on_python.TABLE or made.name in on_tensors.TABLE):
        return True
    if made.namespace == "prim":
        return hasattr(torch.Tensor, made.name)
    return bool(torch_jit.schemas(f"{made.namespace}::{made.name}"))


def _compile(made: Operator, c: Context, call: Call) -> Node:
    args = [c.as_value(a, call.node) for a in call.args]
    keywords = {k: c.as_value(a, call.node) for k, a in call.keywords.items()}
    return codes.encoded(c, _called(made, c, call, args, keywords))


def _called(
    made: Operator, c: Context, call: Call, args: list[Value], keywords: dict[str, Value]
) -> Node:
    ours = made.namespace in _OURS
    on_values = on_python.TABLE.get(made.name) if ours else None
    if on_values is not None and _is_on_python(args):
        return on_values(c, call, args, keywords)
    before = upgraders.before(made.name, made.version) if ours else None
    on_these = before or (on_tensors.TABLE.get(made.name) if ours else None)
    if on_these is not None:
        return on_these(c, call, args, keywords)
    if made.namespace == "prim":
        return torch_call(c, call.node, f"Tensor.{made.name}", args, keywords)
    return _by_schema(made, c, call, args, keywords)


def _is_on_python(args: Sequence[Value]) -> bool:
    """Return whether the operator is Python's: of a list, a dict or a string, or of no tensor."""
    types = [a.type.elem if isinstance(a.type, OptionalType) else a.type for a in args]
    if types and (isinstance(types[0], ListType | DictType | TupleType) or types[0] == t.STR):
        return True
    return not any(t.is_tensor(x) or (t.is_dynamic(x) and t.may_be_tensor(x)) for x in types)


def _by_schema(
    made: Operator, c: Context, call: Call, args: list[Value], keywords: dict[str, Value]
) -> Node:
    """Compile a call by the schema that takes arguments of these types."""
    name = f"{made.namespace}::{made.name}"
    types = [a.type for a in args]
    schema = torch_schemas.chosen(name, types, {k: v.type for k, v in keywords.items()})
    if schema is None:
        raise c.error(call.node, f"{made.path} of {', '.join(map(str, types))}", "")
    keywords = _with_reduction(c, schema, len(args), keywords)
    args, keywords = codes.decoded(c, call.node, schema, args, keywords)
    source = on_tensors.source_of(made.namespace, made.name)
    if made.namespace == "aten" and _has_several_outs(schema, keywords):
        source = f"torch.ops.aten.{made.name}"  # PyTorch's functions take them as one tuple, `out`
    if source.startswith("torch.ops."):
        source = f"{source}.{schema.overload_name or 'default'}"
    return _in_schemas_form(c, call.node, schema, torch_call(c, call.node, source, args, keywords))


def _with_reduction(
    c: Context, schema: Any, given: int, keywords: dict[str, Value]
) -> dict[str, Value]:
    """Return the keywords with the schema's default reduction; PyTorch's functions have another."""
    for k, argument in enumerate(schema.arguments):
        is_left = argument.name == "reduction" and k >= given and "reduction" not in keywords
        if is_left and argument.has_default_value():
            return keywords | {"reduction": c.const(argument.default_value)}
    return keywords


def _has_several_outs(schema: Any, keywords: Mapping[str, Value]) -> bool:
    outs = (a for a in schema.arguments if a.kwarg_only and a.alias_info is not None)
    return any(a.name != "out" and a.name in keywords for a in outs)


def _in_schemas_form(c: Context, node: ast.AST, schema: Any, found: Node) -> Node:
    """Return the result in the schema's form: a list instead of a tuple of PyTorch's functions, and
    the schema's type where less is known."""
    if len(schema.returns) != 1:
        return _several(c, node, schema, found)
    text = str(schema.returns[0].type)
    told = _TOLD.get(text)
    if text.startswith("List["):
        found = c.list_of(found, node)
    if not isinstance(found, Value) or told is None:
        return found
    is_vague = found.type in (t.ANY, ListType(t.ANY))
    return c.builder.emit("cast", [found], [told]).result if is_vague else found


def _several(c: Context, node: ast.AST, schema: Any, found: Node) -> Node:
    """Return the results, those that the schema tells to be lists as lists."""
    are_lists = [str(r.type).startswith("List[") for r in schema.returns]
    if not any(are_lists) or not isinstance(found, Value) or not isinstance(found.type, TupleType):
        return found
    parts = [c.builder.tuple_get(found, k) for k in range(len(are_lists))]
    rows = zip(parts, are_lists, strict=True)
    return c.builder.tuple_make([c.list_of(p, node) if is_list else p for p, is_list in rows])


_TOLD: Final[dict[str, Type]] = {
    "Tensor": t.TENSOR,
    "int": t.INT,
    "float": t.FLOAT,
    "bool": t.BOOL,
    "str": t.STR,
    "List[Tensor]": ListType(t.TENSOR),
    "List[int]": ListType(t.INT),
}


# ---- what is no operator --------------------------------------------------------------------


def annotate(the_type: object, the_value: object) -> object:
    """Return `annotate(T, v)` of an archive; a tensor where a number is told is that number."""
    del the_type
    return the_value


def unchecked_cast(the_type: object, the_value: object) -> object:
    """`unchecked_cast(T, v)`: the value, known to be of that type."""
    del the_type
    return the_value


def uninitialized(the_type: object) -> object:
    """`uninitialized(T)`: a value that is never read."""
    return the_type


def as_given(the_type: object, the_value: object) -> object:
    """`as_given(T, v)`: an argument as TorchScript takes it for that type."""
    del the_type
    return the_value


def as_returned(the_value: object) -> object:
    """`as_returned(v)`: a result as TorchScript gives it to Python."""
    return the_value


def printed(*values: object) -> None:
    """`print` of TorchScript's texts."""
    del values


def shown(value: object) -> str:
    """Return `str` of TorchScript."""
    del value
    raise NotImplementedError


def autocast(
    device_type: str, dtype: int | None = None, enabled: bool = True, cache: bool | None = None
) -> object:
    """Return `torch.autocast` of a dtype's code."""
    raise NotImplementedError


def _type_of(c: Context, found: Node) -> Type | None:
    told = found.obj if isinstance(found, PythonObject) else c.constant(found)
    return type_from_annotation(told, c.frame.names)


_NUMBERS: Final = (t.INT, t.FLOAT, t.BOOL, t.COMPLEX)


def _annotate(c: Context, call: Call) -> Node:
    type_ = _type_of(c, call.args[0])
    value = call.args[1]
    if isinstance(value, Value) and t.is_tensor(value.type) and type_ in _NUMBERS:
        item = torch_call(c, call.node, "Tensor.item", [value], {})
        return c.builder.emit("cast", [c.as_value(item, call.node)], [type_]).result
    return as_declared(c, value, type_)


def _unchecked_cast(c: Context, call: Call) -> Node:
    type_ = _type_of(c, call.args[0])
    value = call.args[1]
    if not isinstance(value, Value) or type_ is None or value.type == type_:
        return value
    return c.builder.emit("cast", [value], [type_]).result


def _as_given(c: Context, call: Call) -> Node:
    told, found = call.args
    value = c.as_value(found, call.node)
    type_ = _type_of(c, told)
    plain = type_.elem if isinstance(type_, OptionalType) else type_
    cls = None if plain is None else class_of(plain)
    if cls is not None:
        return _member(c, call.node, cls, value)
    other = None if type_ is None else next(iter(_enums(value.type) - _enums(type_)), None)
    if other is not None:
        problem = f"a container of members of {other.__name__}, which is not the archive's own"
        raise c.error(call.node, problem, "members that the module returned")
    if plain == t.INT:
        return codes.encoded(c, value)
    if c.frame.caller is None and _holds_container(value.type):
        return _copied(c, call.node, value)
    if plain == t.FLOAT and value.type in (t.INT, t.BOOL):
        return c.py(call.node, "py.float", value)
    if plain == t.COMPLEX and value.type in (t.INT, t.BOOL, t.FLOAT):
        return c.call_function(call.node, PythonObject(complex), [value])
    return value


def _as_returned(c: Context, call: Call) -> Node:
    found = call.args[0]
    if c.frame.caller is not None or not isinstance(found, Value):
        return found
    found = _own(c, call.node, found)
    if not _may_leave(found.type) or isinstance(c.constant(found), str | int):
        return found
    return c.py(call.node, "torchscript.result", found)


def _may_leave(type_: Type) -> bool:
    """Return whether it may hold a string that ends within a character, or an int beyond 64
    bits."""
    match type_:
        case t.STR | t.INT:
            return True
        case ListType(elem) | OptionalType(elem):
            return elem != t.INT and _may_leave(elem)
        case DictType(key, value):
            return t.STR in (key, value)
        case TupleType(elems):
            return any(map(_may_leave, elems))
        case _:
            return False


_NEW: Final = ("list.", "dict.make", "dict.copy", "torch.", "call_torch", "torchscript.")


def _own(c: Context, node: ast.AST, value: Value) -> Value:
    """Return the result with copies of the lists and dicts that are not its own."""
    if not _holds_container(value.type):
        return value
    maker = c.builder.makers.get(value)
    if maker is not None and maker.name == "tuple.make" and not maker.attrs:
        return c.builder.tuple_make([_own(c, node, v) for v in maker.operands])
    if maker is not None and maker.name.startswith(_NEW):
        elem = value.type.elem if isinstance(value.type, ListType) else None
        if elem is not None and not _holds_container(elem):
            return value
    return _copied(c, node, value)


def _copied(c: Context, node: ast.AST, value: Value) -> Value:
    is_flat = isinstance(value.type, ListType) and not _holds_container(value.type.elem)
    return c.py(node, "list.of" if is_flat else "torchscript.copied", value)


def _holds_container(type_: Type) -> bool:
    match type_:
        case ListType() | DictType():
            return True
        case OptionalType(elem):
            return _holds_container(elem)
        case TupleType(elems):
            return any(map(_holds_container, elems))
        case _:
            return False


def _item(c: Context, node: ast.Subscript) -> Node:
    """Return `x[i]`; of a string, a byte of it."""
    base = c.expr(node.value)
    if isinstance(base, Value) and base.type == t.STR:
        return c.py(node, "torchscript.getitem", base, c.as_value(c.expr(node.slice), node))
    return item_of(c, node, base)


def _member(c: Context, node: ast.AST, cls: type[Any], value: Value) -> Node:
    """Return the archive's member for one of the author's own enum of that name."""
    given = class_of(value.type)
    if given is None or given is cls:
        return value
    if not issubclass(given, enum.Enum) or given.__name__ != cls.__name__:
        raise c.error(node, f"a {given.__name__} for the archive's {cls.__name__}", "a member")
    name = python_objects.name_of(cls)
    word = c.by_getattr(value, "value")
    return c.builder.emit("enum.get", [word], [t.ClassType(name)], enum=name, by="value").result


def _enums(type_: Type | None) -> set[type[Any]]:
    """Return the enums in a type."""
    match type_:
        case ListType(elem) | OptionalType(elem):
            return _enums(elem)
        case DictType(key, value):
            return _enums(key) | _enums(value)
        case TupleType(elems):
            return set[type[Any]]().union(*map(_enums, elems))
        case t.ClassType():
            cls = class_of(type_)
            return {cls} if cls is not None and issubclass(cls, enum.Enum) else set()
        case _:
            return set()


def _autocast(c: Context, call: Call) -> Node:
    args = [c.as_value(a, call.node) for a in call.args]
    if len(args) > 1:
        args[1] = codes.decode(c, call.node, "ScalarType", args[1])
    named = {
        k: codes.decode_named(c, call.node, k, c.as_value(v, call.node))
        for k, v in call.keywords.items()
    }
    return c.call_function(call.node, PythonObject(torch.autocast), args, named)


def _printed(c: Context, call: Call) -> Node:
    values = [c.as_value(a, call.node) for a in call.args]
    texts = [on_python.text_of(c, call.node, v) for v in values]
    c.builder.emit("print", texts, kwnames=())
    return c.const(None)


def _shown(c: Context, call: Call) -> Node:
    return on_python.text_of(c, call.node, c.as_value(call.args[0], call.node))


def _uninitialized(c: Context, call: Call) -> Node:
    return c.builder.undef()


def missing(path: str) -> object:
    """Return an object whose call does not compile: an operator that nobody has."""

    def absent(*args: object) -> object:
        raise NotImplementedError(path)

    def compile_call(c: Context, call: Call) -> Node:
        raise c.error(call.node, f"the operator {path} is missing", _package_of(path))

    BUILTINS[absent] = compile_call
    return absent


_PACKAGES: Final = {
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "image": "torchvision",
    "torch_scatter": "torch-scatter",
    "torch_sparse": "torch-sparse",
    "torch_cluster": "torch-cluster",
    "torch_spline_conv": "torch-spline-conv",
    "fbgemm": "fbgemm-gpu",
    "torchtext": "torchtext",
}


def _package_of(path: str) -> str:
    if path.startswith("__torch__.torch.classes."):
        return "a class of C++, such as the packed weights of quantised layers, which are not read"
    namespace = path.split(".")[1] if path.startswith("ops.") else ""
    name = _PACKAGES.get(namespace, "")
    if name:
        return f"`import {name.replace('-', '_')}` before, from the package {name}"
    return f"the package that brings {namespace or 'it'}, imported before"


def remedy(path: str) -> str:
    """Return what brings a missing operator."""
    return _package_of(path)


EXPRESSIONS[Item] = cast("Any", _item)
BUILTINS[annotate] = _annotate
BUILTINS[as_given] = _as_given
BUILTINS[as_returned] = _as_returned
BUILTINS[autocast] = _autocast
BUILTINS[printed] = _printed
BUILTINS[shown] = _shown
BUILTINS[unchecked_cast] = _unchecked_cast
BUILTINS[uninitialized] = _uninitialized

__all__ = [
    "Operator",
    "annotate",
    "as_given",
    "as_returned",
    "autocast",
    "missing",
    "operator",
    "printed",
    "remedy",
    "shown",
]
