"""One op as a Python function: `interpret.run_op`, with its lookups done in advance.

In: an op. Out: a function of the environment. The driver runs the ops of a loop's step this way.

    step = prepared(op)
    step(env)               reads operands from env, writes results into it

Invariant: the function does what `run_op` does, and raises what it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value
from lowtide.ir.interpret import Env, is_plain, located, owner_of, run_op

Step: TypeAlias = Callable[[Env], None]


def prepared(op: Op) -> Step:
    """See the module's text."""
    if op.name == "const":
        return _constant(op.result, op.attrs["value"])
    fn = _function(op)
    if fn is None or len(op.results) != 1:
        return functools.partial(run_op, op)
    return _call(op, fn, op.operands, op.result)


def _function(op: Op) -> Callable[..., Any] | None:
    """Return a function from the op's operands to its only result, or None if only `run_op` can run
    it."""
    if op.name == "torch.getitem" and op.attrs.keys().isdisjoint(("rows", "unbound")):
        return _item(cast("Sequence[str]", op.attrs["spec"]))
    if op.name in ("call_torch", "mutate") and "spec" not in op.attrs:
        called = _called(str(op.attrs["target"]))
        names = cast("tuple[str, ...]", op.attrs["kwnames"])
        return _with_keywords(called, names) if names else called
    if not is_plain(op):
        return None
    definition = opdefs.find(op.name)
    return opdefs.torch_record(op.name).eager if definition is None else definition.run


def _item(spec: Sequence[str]) -> Callable[..., Any]:
    def one(x: Any, i: Any) -> Any:
        return x[i]

    def several(x: Any, *items: Any) -> Any:
        return x[opdefs.Indexing.index(spec, items)]

    return one if tuple(spec) == ("int",) else several


def _called(target: str) -> Callable[..., Any]:
    owner, name = owner_of(target)

    def call(*operands: Any, **keywords: Any) -> Any:
        found = getattr(owner, name)  # which a mode or a user may have put in place since
        return (found if callable(found) else found.__get__)(*operands, **keywords)

    return call


def _with_keywords(called: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    first = -len(names)

    def call(*operands: Any) -> Any:
        return called(*operands[:first], **dict(zip(names, operands[first:], strict=True)))

    return call


def _constant(result: Value, value: object) -> Step:
    def run(env: Env) -> None:
        env[result] = value

    return run


def _call(op: Op, fn: Callable[..., Any], operands: Sequence[Value], result: Value) -> Step:
    def run(env: Env) -> None:
        try:
            env[result] = fn(*[env[v] for v in operands])
        except Exception as error:
            located(error, op)
            raise

    return run
