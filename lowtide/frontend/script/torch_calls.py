"""Calls into PyTorch: the record of the op if there is one, else a call as written.

In: a source name ("torch.sum", "Tensor.sum", "operator.add") and compiled arguments. Out: ops.

    x.sum(1)           →  %d: (int,) = tuple.make(%1)
                          %0: Tensor = torch.sum.dim(%x, %d, %false, %none)
    torch.cumsum(x, 1) →  %0: Tensor = call_torch(%x, %1) {target="torch.cumsum", kwnames=()}
    x.add_(y)          →  %0: Tensor = mutate(%x, %y) {target="Tensor.add_", kwnames=()}
    F.relu(x, True)    →  %0: Tensor = mutate(%x, %true) {target="F.relu", kwnames=()}

Invariant: a record's operands are all there, in canonical order, defaults as constants.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import torch

from lowtide.frontend import call_forms, torch_schemas
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.mutation import writing_op
from lowtide.frontend.script.nodes import Method, Node, PythonObject
from lowtide.frontend.script.remedies import member
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.effects import Effects
from lowtide.ir.literals import is_literal
from lowtide.ir.named_results import class_of_result
from lowtide.ir.signature import result_type
from lowtide.ops import registry
from lowtide.ops.binding import Bound, Default, Gather, Slot, bind
from lowtide.ops.library import is_left
from lowtide.ops.registry import OpRecord
from lowtide.torch_private.private_names import TENSOR_MODULE

_SHORT = (
    ("torch.nn.functional.", "F."),
    ("torch.Tensor.", "Tensor."),
    (TENSOR_MODULE, "Tensor."),
)


def source_of(found: PythonObject) -> str | None:
    """Return the source name of a PyTorch function; None for anything else."""
    path = torch_schemas.torch_paths().get(id(found.obj), found.path)
    for long, short in _SHORT:
        if path.startswith(long):
            path = short + path.removeprefix(long)
    root = path.partition(".")[0]
    if path.startswith("torch.nn.utils.rnn."):
        return None  # Python, and what it gives is no tensor
    return path if "." in path and root in ("torch", "F", "Tensor") else None


def torch_call(
    c: Context,
    node: ast.AST,
    source: str,
    args: Sequence[Node],
    keywords: Mapping[str, Node],
    *,
    unpacked: bool = False,
) -> Node:
    """Compile a call of a PyTorch function or method; see the module's text."""
    values = [_argument(c, node, a) for a in args]
    named = {k: _argument(c, node, a) for k, a in keywords.items()}
    writing = writing_op(c.builder, source, values, named)
    if writing:
        return _call(c, writing, source, values, named)
    bound = bind(registry.lookup(source), values, named)
    if bound is not None and _is_compiled(source, bound.record, values, named):
        return _record_call(c, source, bound)
    if unpacked:
        raise c.error(
            node, f"`*` in a call of {source}, which is not known to take it", "the list itself"
        )
    return _call(c, "call_torch", source, values, named)


def attribute(c: Context, node: ast.AST, receiver: Value, name: str, variable: str) -> Node:
    """Compile `x.name` of a tensor: a property's value, or a method about to be called."""
    if not hasattr(torch.Tensor, name):
        if c.may_be_skipped:
            return Method(c.unknown(receiver), name, variable)
        near = member(t.TENSOR, torch.Tensor, name)
        raise c.error(node, f"a Tensor has no attribute {name!r}", near)
    if torch_schemas.is_attribute(name):
        return torch_call(c, node, f"Tensor.{name}", [receiver], {})
    return Method(receiver, name, variable)


_CLASSES: dict[object, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _argument(c: Context, node: ast.AST, found: Node) -> Value:
    if isinstance(found, PythonObject) and isinstance(found.obj, type) and found.obj in _CLASSES:
        return c.const(_CLASSES[found.obj])
    c.check_no_iterator(found, node)  # PyTorch takes lists and tuples only
    return shown(c, c.as_value(found, node))


def _is_compiled(
    source: str, record: OpRecord, args: Sequence[Value], keywords: Mapping[str, Value]
) -> bool:
    """Return whether the record may stand for the call: PyTorch takes it, too."""
    if record.name == "getitem" or is_left(record):
        return False
    draws = not isinstance(record.effects, Effects) or bool(record.effects & Effects.DRAWS)
    if draws or source.startswith("operator."):
        return True
    types = {k: v.type for k, v in keywords.items()}
    return call_forms.is_taken(source, [a.type for a in args], types)


def _record_call(c: Context, source: str, bound: Bound) -> Node:
    record = bound.record
    operands = [_operand(c, slot) for slot in bound.slots]
    op = c.builder.emit(f"torch.{record.name}", operands, [result_type(r) for r in record.results])
    cls = class_of_result(source, record.result_names)
    return _result(c, op.results, record.result_names, cls)


def _operand(c: Context, slot: Slot) -> Value:
    match slot:
        case Gather(values):
            return c.builder.tuple_make(values)
        case Default(value):
            if not is_literal(value):
                raise TypeError(f"the default {value!r} is not a constant")
            return c.const(value)
        case _:
            return slot


def _call(
    c: Context, op_name: str, source: str, args: Sequence[Value], keywords: Mapping[str, Value]
) -> Node:
    types = [a.type for a in args]
    named = {k: v.type for k, v in keywords.items()}
    results = torch_schemas.results_of(source, types, named)
    if op_name == "mutate" and len(results.types) != 1:
        op_name = "call_torch"
    op = c.builder.emit(
        op_name,
        [*args, *keywords.values()],
        results.types,
        target=source,
        kwnames=tuple(keywords),
    )
    if results.types == (t.NONE,):
        return c.const(None)
    cls = class_of_result(source, results.names, "out" in keywords)
    return _result(c, op.results, results.names, cls)


def _result(c: Context, results: Sequence[Value], names: Sequence[str], cls: str) -> Node:
    if len(results) == 1:
        return results[0]
    for value, name in zip(results, names, strict=False):
        value.name = name
    return c.builder.tuple_make(results, names, cls)
