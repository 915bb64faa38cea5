"""One call of a captured graph, as ops.

In: a call node, its arguments as values. Out: the value of the node; for several results a tuple.

    torch.add(x, 1)          →  torch.add                     a record
    x.cumsum(1)              →  call_torch {target="Tensor.cumsum"}
    y.add_(1), y[0] = z      →  mutate
    s77 * 2, math.sqrt(s77)  →  py.mul, math.sqrt
    mylib.op(x), cond(…)     →  py.call of the Python object

Invariant: the op computes what `gm.forward` would; whatever may change a tensor is a `mutate` or
a `py.call`, which end a region.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide.frontend.dynamo.target_names import number_op, source_of
from lowtide.frontend.script.mutation import writing_op
from lowtide.frontend.torch_schemas import is_attribute
from lowtide.frontend.trace.encode import Known, NotEncodable, encode, encode_items
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.interpret import callable_of
from lowtide.ir.types import ListType, TupleType, Type
from lowtide.ops.binding import bind, emit, records_of
from lowtide.ops.library import is_left
from lowtide.torch_private.autograd import set_grad_enabled

Result = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call node: its arguments with nodes replaced by values, and the type of the result."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Type


def call_function(known: Known, target: Any, call: Call) -> Result:
    """Return the value of a call of a Python function."""
    args = call.args
    first: Type | None = args[0].type if args and isinstance(args[0], Value) else None
    if target is operator.getitem and first is not None:
        return _getitem(known, args[0], args[1], call.result)
    if target is operator.setitem and first == t.TENSOR:
        return _setitem(known, *args)
    if target is getattr and first is not None:
        return _attribute(known, args[0], str(args[1]), call.result)
    if target is torch.Size and args and isinstance(args[0], list | tuple):
        return tuple(encode(known, a) for a in cast("Sequence[Any]", args[0]))
    number = number_op(target)
    if number is not None and not call.kwargs and not _has_tensor(args):
        found = known.builder.py(number, *(encode(known, a) for a in args))
        if found is not None:
            return found
    source = None if target is set_grad_enabled else source_of(target)
    if source is None or (source[0].startswith("operator.") and not _has_tensor(args)):
        return _object_call(known, target, call)
    name, swapped = source
    if swapped:
        args = (args[1], args[0], *args[2:])
    return torch_call(known, name, Call(args, call.kwargs, call.result))


def call_method(known: Known, name: str, call: Call) -> Result:
    """Return the value of a call of a method of the first argument."""
    receiver = call.args[0]
    if not isinstance(receiver, Value) or receiver.type != t.TENSOR:
        operands, kwnames = _operands(known, call)
        op = known.builder.emit(
            "py.call_method", operands, [call.result], name=name, kwnames=kwnames
        )
        return op.result
    source, swapped = f"Tensor.{name}", False
    if name.startswith("__"):
        source, swapped = source_of(callable_of(source)) or (source, False)
    args = call.args
    if source == "Tensor.__getitem__":
        return _getitem(known, args[0], args[1], call.result)
    if source == "Tensor.__setitem__":
        return _setitem(known, *args)
    if swapped:
        args = (args[1], args[0], *args[2:])
    return torch_call(known, source, Call(args, call.kwargs, call.result))


def torch_call(known: Known, source: str, call: Call) -> Result:
    """Return the value of a call of a PyTorch function, given by its source name."""
    builder = known.builder
    values = [encode(known, a) for a in call.args]
    named = {k: encode(known, a) for k, a in call.kwargs.items()}
    operands, kwnames = [*values, *named.values()], tuple(named)
    writing = writing_op(builder, source, values, named)
    if writing == "mutate":
        op = builder.emit("mutate", operands, [call.result], target=source, kwnames=kwnames)
        return op.result
    bound = None if writing else bind(records_of(source), values, named)
    if bound is not None and bound.record.name != "getitem" and not is_left(bound.record):
        results = tuple(emit(builder, bound))
    else:
        types = _spread(call.result)
        op = builder.emit("call_torch", operands, types, target=source, kwnames=kwnames)
        results = tuple(op.results)
    return results[0] if len(results) == 1 else results


def _spread(result: Type) -> Sequence[Type]:
    """Return a tuple of several tensors as that many results."""
    if isinstance(result, TupleType) and len(result.elems) > 1:
        return result.elems
    return [result]


def _getitem(known: Known, x: Value, index: Any, result: Type) -> Value:
    builder = known.builder
    if x.type == t.TENSOR:
        items = encode_items(known, index)
        operands = [x, *items.operands]
        return builder.emit("torch.getitem", operands, [t.TENSOR], spec=items.spec).result
    if isinstance(x.type, TupleType) and isinstance(index, int):
        return builder.tuple_get(x, index % len(x.type.elems))
    at = encode(known, index)
    found = builder.py("list.get", x, at) if isinstance(x.type, ListType) else None
    if found is not None:
        return found
    target = python_objects.name_of(operator.getitem)
    return builder.emit("py.call", [x, at], [result], target=target, kwnames=()).result


def _setitem(known: Known, x: Value, index: Any, value: Any) -> Result:
    items = encode_items(known, index)
    op = known.builder.emit(
        "mutate",
        [x, *items.operands, encode(known, value)],
        [t.TENSOR],
        target="Tensor.__setitem__",
        kwnames=(),
        spec=items.spec,
    )
    return op.result


def _attribute(known: Known, x: Value, name: str, result: Type) -> Result:
    if x.type == t.TENSOR and is_attribute(name):
        descriptor: Any = getattr(torch.Tensor, name)
        source, _ = source_of(descriptor.__get__) or (f"Tensor.{name}", False)
        return torch_call(known, source, Call((x,), {}, result))
    if isinstance(x.type, TupleType):
        raise NotEncodable(f"the field {name!r} of a tuple")
    return known.builder.emit("attr.get", [x], [result], name=name).result


def _object_call(known: Known, target: Any, call: Call) -> Value:
    operands, kwnames = _operands(known, call)
    name = python_objects.name_of(target)
    op = known.builder.emit("py.call", operands, [call.result], target=name, kwnames=kwnames)
    return op.result


def _operands(known: Known, call: Call) -> tuple[list[Value], tuple[str, ...]]:
    values = [encode(known, a) for a in (*call.args, *call.kwargs.values())]
    return values, tuple(call.kwargs)


def _has_tensor(x: Any) -> bool:
    if isinstance(x, Value):
        return t.may_be_tensor(x.type) or x.type == t.ANY
    return isinstance(x, tuple | list) and any(map(_has_tensor, cast("Sequence[Any]", x)))
