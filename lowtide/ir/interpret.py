"""The reference interpreter: what a Function means, op by op, on real tensors.

In: a Function and the caller's arguments. Out: what the Python function would have returned. The
pipeline also runs single ops and blocks through it: whatever it does not compile, PyTorch computes
here.

    run(fn, x, 3)                     a whole function
    run_op(op, env)                   reads operands from env, writes results into it
    run_block(block, env) -> list     the operands of the terminator

Invariant: an exception raised by an op keeps its type; its attribute `LOC` says where in the
user's file the op stands.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional

from lowtide.ir import object_ops, opdefs, python_objects, recomputed, structured
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.named_results import build
from lowtide.ir.python_ops.numbers import UNBOUND

Env = MutableMapping[Value, Any]

LOC = "__lowtide_loc__"


def run(fn: Function, *args: object) -> object:
    """Calls the function; arguments left out at the end take their defaults."""
    values = list(args)
    for param in fn.params[len(args) :]:
        if param.name not in fn.defaults:
            raise TypeError(f"{fn.name}() missing argument: {param.name!r}")
        values.append(fn.defaults[param.name])
    if len(values) > len(fn.params):
        raise TypeError(f"{fn.name}() takes {len(fn.params)} arguments, {len(values)} were given")
    env: dict[Value, Any] = dict(zip(fn.params, values, strict=True))
    (result,) = run_block(fn.block, env)
    return result


def run_block(block: Block, env: Env) -> list[Any]:
    """Runs every op; gives the operands of the terminator. The block's arguments are in `env`."""
    for op in block.ops[:-1]:
        run_op(op, env)
    return [env[v] for v in block.terminator.operands]


def run_op(op: Op, env: Env) -> None:
    """Runs one op: operands come from `env`, results go there."""
    try:
        results = _STRUCTURED.get(op.name, _run_plain)(op, env)
    except Exception as error:
        located(error, op)
        raise
    if len(results) != len(op.results):
        raise ValueError(f"{op.name} gave {len(results)} results instead of {len(op.results)}")
    env.update(zip(op.results, results, strict=True))


def located(error: Exception, op: Op) -> None:
    """Says where the op stands, if the error does not know better."""
    if op.loc.line and not hasattr(error, LOC):
        setattr(error, LOC, op.loc)


def is_plain(op: Op) -> bool:
    """Return whether the op is one call of a function with its operands."""
    return op.name not in _STRUCTURED


def callable_of(target: str) -> Callable[..., Any]:
    """Return the Python function behind the target of `call_torch` or `mutate`; properties
    included."""
    owner, name = owner_of(target)
    found = getattr(owner, name)
    # a property of tensors has no call
    return cast("Callable[..., Any]", found if callable(found) else found.__get__)


def owner_of(target: str) -> tuple[Any, str]:
    """Return the owner of the target of `call_torch` or `mutate`, a module or a class, and the name
    there."""
    root, *path, name = target.split(".")
    owner: Any = _ROOTS[root]
    for part in path:
        owner = getattr(owner, part)
    return owner, name


_ROOTS: dict[str, object] = {
    "torch": torch,
    "F": torch.nn.functional,
    "Tensor": torch.Tensor,
    "operator": operator,
    "lowtide": recomputed,
}


def call_with_keywords(op: Op, operands: Sequence[Any]) -> Any:
    """Calls the target of a `call_torch` or `mutate`; the last operands go by `kwnames`."""
    return object_ops.call_with_keywords(callable_of(str(op.attrs["target"])), op, operands)


def _run_plain(op: Op, env: Env) -> list[Any]:
    operands = [env[v] for v in op.operands]
    definition = opdefs.find(op.name)
    if definition is not None:
        return [definition.run(*operands)]
    return _spread(op, opdefs.torch_record(op.name).eager(*operands))


def _spread(op: Op, result: Any) -> list[Any]:
    return [result] if len(op.results) == 1 else list(result)


def _const(op: Op, env: Env) -> list[Any]:
    return [op.attrs["value"]]


def _undef(op: Op, env: Env) -> list[Any]:
    return [UNBOUND]


def _tuple_make(op: Op, env: Env) -> list[Any]:
    elems = tuple(env[v] for v in op.operands)
    cls = op.attrs.get("cls")
    return [build(cast("type", python_objects.find(str(cls))), elems) if cls else elems]


def _tuple_get(op: Op, env: Env) -> list[Any]:
    return [env[op.operands[0]][op.attrs["index"]]]


def _list_make(op: Op, env: Env) -> list[Any]:
    return [[env[v] for v in op.operands]]


def _dict_make(op: Op, env: Env) -> list[Any]:
    values = [env[v] for v in op.operands]
    return [dict(zip(values[::2], values[1::2], strict=True))]


def _set_make(op: Op, env: Env) -> list[Any]:
    return [{env[v] for v in op.operands}]


def _unpack(op: Op, env: Env) -> list[Any]:
    found = env[op.operands[0]]
    kind = cast("type[Any]", type(found))
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise TypeError(f"cannot unpack non-iterable {kind.__name__} object")
    values = list(found)
    count = len(op.results)
    if len(values) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(values)})")
    if len(values) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    return values


def _cast(op: Op, env: Env) -> list[Any]:
    return [env[op.operands[0]]]


def _format(op: Op, env: Env) -> list[Any]:
    return [str(op.attrs["template"]).format(*(env[v] for v in op.operands))]


def _getitem(op: Op, env: Env) -> list[Any]:
    x, *items = (env[v] for v in op.operands)
    spec = cast("tuple[str, ...]", op.attrs["spec"])
    try:
        if "unbound" in op.attrs and x.requires_grad and torch.is_grad_enabled():
            return [x.unbind(0)[items[0]]]
        return [x[opdefs.Indexing.index(spec, items)]]
    except IndexError as error:
        if "rows" in op.attrs:
            raise IndexError("tuple index out of range") from error
        raise


def _call_torch(op: Op, env: Env) -> list[Any]:
    return _spread(op, call_with_keywords(op, [env[v] for v in op.operands]))


def _mutate(op: Op, env: Env) -> list[Any]:
    operands = [env[v] for v in op.operands]
    spec = cast("tuple[str, ...] | None", op.attrs.get("spec"))
    if spec is None:
        return [call_with_keywords(op, operands)]
    x, *items, value = operands
    x[opdefs.Indexing.index(spec, items)] = value
    return [x]


def _enter(env: Env, blocks: Sequence[Block]) -> list[structured.RunBlock]:
    return [functools.partial(_run, block, env) for block in blocks]


def _run(block: Block, env: Env, values: Sequence[Any]) -> list[Any]:
    env.update(zip(block.args, values, strict=True))
    return run_block(block, env)


def _if(op: Op, env: Env) -> list[Any]:
    return run_block(structured.taken(op, env), env)


def _loop(op: Op, env: Env) -> list[Any]:
    return structured.loop(op, env, functools.partial(_enter, env))


def _with(op: Op, env: Env) -> list[Any]:
    return structured.context(op, env, functools.partial(_enter, env))


def _assert(op: Op, env: Env) -> list[Any]:
    condition, *message = (env[v] for v in op.operands)
    if not condition:
        raise AssertionError(*message)
    return []


def _raise(op: Op, env: Env) -> list[Any]:
    name = str(op.attrs["exception"])
    operands = [env[v] for v in op.operands]
    if not name:  # an exception object
        raise operands[0]
    exception: Any = getattr(builtins, name, None) or python_objects.find(name)
    raise object_ops.call_with_keywords(exception, op, operands)


def _print(op: Op, env: Env) -> list[Any]:
    object_ops.call_with_keywords(print, op, [env[v] for v in op.operands])
    return []


_STRUCTURED: dict[str, Callable[[Op, Env], list[Any]]] = {
    "const": _const,
    "undef": _undef,
    "cast": _cast,
    "tuple.make": _tuple_make,
    "tuple.get": _tuple_get,
    "list.make": _list_make,
    "unpack": _unpack,
    "py.format": _format,
    "dict.make": _dict_make,
    "set.make": _set_make,
    "with": _with,
    "torch.getitem": _getitem,
    "call_torch": _call_torch,
    "mutate": _mutate,
    "if": _if,
    "loop": _loop,
    "assert": _assert,
    "raise": _raise,
    "print": _print,
    "use": lambda op, env: [],
    **object_ops.RUN,
}
