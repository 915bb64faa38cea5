"""Puts the program of a compiled function, with its control flow, into a trace.

In: a Function, the arguments it was called with while tracing, and its result. Out: its ops, with
fresh values, in the recorder; the result, with traced numbers.

    y = scripted(x)     →     %5: Tensor = if(%4) …      y stands for %5

Invariant: a list or dict that the call changed has the same contents as in the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide.frontend.trace.encode import encode
from lowtide.frontend.trace.numbers import traced_number
from lowtide.frontend.trace.places import here
from lowtide.frontend.trace.recorder import Recorder
from lowtide.ir.core import Function, Value, clone_op


@dataclass(frozen=True, slots=True)
class Given:
    """A list or dict that a call received: the caller's own, the call's copy (if it holds traced
    numbers), and the contents before the call."""

    own: Any
    seen: Any
    before: Any

    def is_changed(self) -> bool:
        """Return whether the call changed its contents."""
        now = list(_contents(self.seen))
        return len(now) != len(self.before) or any(
            a is not b for a, b in zip(now, self.before, strict=True)
        )


def given(args: Sequence[Any], seen: Sequence[Any]) -> dict[int, Given]:
    """Return the lists and dicts among the arguments, before the call."""
    pairs = enumerate(zip(args, seen, strict=True))
    return {k: Given(a, b, list(_contents(b))) for k, (a, b) in pairs if type(a) in (list, dict)}


def _contents(x: Any) -> Iterator[object]:
    if isinstance(x, dict):
        yield from cast("dict[Any, Any]", x)
        x = cast("dict[Any, Any]", x).values()
    yield from x


def operands(recorder: Recorder, args: Sequence[Any]) -> list[Value]:
    """Return the values of a call's arguments, before it runs: it may change them."""
    recorder.builder.loc = here(recorder.stop).loc
    recorder.autocast.note(recorder.builder.block)
    return [encode(recorder, a) for a in args]


def splice(
    recorder: Recorder,
    function: Function,
    values: Sequence[Value],
    result: Any,
    held: Mapping[int, Given],
) -> Any:
    """Puts the ops of another program into the recorded one.

    `values`: one for each parameter, captured ones too. `result`: the call's result. `held`: what
    `given` returned for the arguments.
    """
    builder = recorder.builder
    builder.loc = here(recorder.stop).loc
    stand_ins = dict(zip(function.params, values, strict=True))
    for op in function.block.ops[:-1]:
        copy = clone_op(op, stand_ins)
        builder.block.ops.append(copy)
        builder.makers.update((r, copy) for r in copy.results)
    for k, one in held.items():
        if one.is_changed():
            _put_back(recorder, stand_ins[function.params[k]], one)
    returned = function.block.terminator.operands[0]
    return _remember(recorder, stand_ins.get(returned, returned), result)


def _put_back(recorder: Recorder, value: Value, changed: Given) -> None:
    found = _remember(recorder, value, changed.seen)
    changed.own.clear()
    if isinstance(found, dict):
        changed.own.update(found)
    else:
        changed.own.extend(found)


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
