"""Abstract evaluation of ops on dicts whose keys are known.

In: an op of the `dict` family and abstract operands. Out: its result, and the dict afterwards.

    dict.item({"a": t0, "b": t1}, "b")   ->  t1
    dict.set({"a": t0}, "b", t1)         ->  {"a": t0, "b": t1}

The op's own Python function is run on a dict of abstract values. `written` changes lists, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.ir import opdefs
from lowtide.ir.core import Op
from lowtide.specialise import scalars
from lowtide.specialise.abstract import Abs, Map, Pending, Seq, concrete, is_constant, wrapped
from lowtide.specialise.lifting import rows
from lowtide.specialise.region_boundaries import Stop
from lowtide.texpr.build import Unsupported


def make(operands: Sequence[Abs]) -> Abs:
    """Return `{key: value}` of alternating keys and values."""
    entries = {_key(k): v for k, v in zip(operands[::2], operands[1::2], strict=True)}
    return wrapped(entries)


def evaluate(op_name: str, operands: Sequence[Abs]) -> tuple[Abs, Map]:
    """Return the op's result, and the dict after it."""
    definition = opdefs.find(op_name)
    found = operands[0].value if operands else None
    if definition is None or not isinstance(found, Map):
        raise Unsupported("a dict that is known only at run time")
    entries = found.entries()
    args: list[Any] = [_argument(op_name, k, x) for k, x in enumerate(operands[1:])]
    try:
        result = definition.run(entries, *args)
    except (KeyError, TypeError, ValueError) as error:
        raise Unsupported(f"raises {type(error).__name__}") from error
    return wrapped(result), Map(tuple(entries), tuple(entries.values()))


def _argument(op_name: str, position: int, x: Abs) -> Any:
    if op_name == "dict.update":
        if not isinstance(x.value, Map):
            raise Unsupported("a dict that is known only at run time")
        return x.value.entries()
    return _key(x) if position == 0 else x


def _key(x: Abs) -> Any:
    if not is_constant(x):
        raise Unsupported("a key that is known only at run time")
    return concrete(x)


def written(run: Any, op: Op, operands: list[Abs]) -> Abs:
    """Note a change of a list or dict made in this region; the old value is saved for a retreat."""
    xs = operands[0]
    before = xs.value
    if any(isinstance(x.value, Pending) for x in operands) and xs.origin is None:
        run.change(xs, rows.changed(run, op, operands))
        return Abs(None)
    if xs.origin is not None or not isinstance(before, Seq | Map):
        raise Stop("changes what was made before")
    if isinstance(before, Map):
        result, after = evaluate(op.name, operands)
    else:
        elems, result = scalars.changed_list(op.name, operands)
        after = Seq(list, tuple(elems))
    run.change(xs, after)
    return result
