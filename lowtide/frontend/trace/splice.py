"""Programs inside a traced one: what a compiled function is made of, its control flow too.

In: a Function, the arguments it was called with while tracing, and what it gave. Out: its ops, with
fresh values, in the recorder; the result, with a memory for numbers.

    y = scripted(x)     →     %5: Tensor = if(%4) …      y stands for %5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from lowtide.frontend.trace.encode import encode
from lowtide.frontend.trace.numbers import traced_number
from lowtide.frontend.trace.places import here
from lowtide.frontend.trace.recorder import Recorder
from lowtide.ir.core import Function, Value, clone_op


def splice(recorder: Recorder, function: Function, args: Sequence[Any], result: Any) -> Any:
    """Puts the ops of another program into the recorded one.

    `args`: one for each parameter, captured ones too; `result`: what it gave for them."""
    builder = recorder.builder
    builder.loc = here(recorder.stop).loc
    stand_ins = dict(zip(function.params, (encode(recorder, a) for a in args), strict=True))
    for op in function.block.ops[:-1]:
        copy = clone_op(op, stand_ins)
        builder.block.ops.append(copy)
        builder.makers.update((r, copy) for r in copy.results)
    returned = function.block.terminator.operands[0]
    return _remember(recorder, stand_ins.get(returned, returned), result)


def _remember(recorder: Recorder, value: Value, result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        recorder.bind_tensor(result, value)
        return result
    if isinstance(result, tuple | list):
        whole = cast("Sequence[Any]", result)
        parts = recorder.parts(value, len(whole)) if whole else []
        elems = [_remember(recorder, p, e) for p, e in zip(parts, whole, strict=True)]
        make: Any = getattr(type(whole), "_make", type(whole))
        return make(elems)
    if isinstance(result, dict):
        entries = cast("dict[Any, Any]", result)
        items = ((k, _item(recorder, value, k), e) for k, e in entries.items())
        return type(entries)((k, _remember(recorder, item, e)) for k, item, e in items)
    if type(result) in (int, float):
        return traced_number(result, recorder, value)
    if isinstance(result, bool) and recorder.builder.constant(value) is not result:
        what = f"the bool that a compiled function gave is frozen as {result}"
        recorder.warn_frozen(what, here(recorder.stop))
    return result


def _item(recorder: Recorder, entries: Value, key: object) -> Value:
    found = recorder.builder.py("dict.item", entries, recorder.builder.const(key))
    assert found is not None
    return found
