"""Ops on objects and futures that need no attribute; those that do are in `interpret`.

find("future.wait").result([FutureType(TENSOR)])  ==  TENSOR
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.row import OpDef, always
from lowtide.ir.types import FutureType, Type


def _done(value: object) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def _wait(future: torch.futures.Future[Any]) -> object:
    return future.wait()


def _awaited(operands: Sequence[Type]) -> Type | None:
    return operands[0].elem if isinstance(operands[0], FutureType) else t.ANY


class Drawn:
    """Python's iterator over a value, and its current element."""

    def __init__(self, value: Any) -> None:
        self.rest: Iterator[Any] = iter(value)
        self.count = 0  # of the elements that were drawn
        self.current: Any = None
        self.has_ended = False

    def goes_on(self, index: int) -> bool:
        """Return whether there is an element at this index, and make it the current one."""
        if self.count <= index and not self.has_ended:
            try:
                self.current = next(self.rest)
                self.count += 1
            except StopIteration:
                self.has_ended = True
        return not self.has_ended


def _current(drawn: Drawn) -> object:
    return drawn.current


def _whole(value: Any) -> list[Any]:
    if isinstance(value, Iterator):
        raise TypeError("zip() of an iterator is not compiled; write `list(...)` around it")
    return list(value)


ROWS = [
    # A loop over what is no list: Python's own iterator, an element at a time.
    OpDef(name="iter.of", run=Drawn, result=always(t.ANY), effects=Effects.ALL),
    OpDef(name="iter.goes_on", run=Drawn.goes_on, result=always(t.BOOL), effects=Effects.ALL),
    OpDef(name="iter.item", run=_current, result=always(t.ANY), effects=Effects.READS),
    OpDef(name="iter.whole", run=_whole, result=always(t.ListType(t.ANY))),
    OpDef(name="future.done", run=_done, result=lambda o: FutureType(o[0])),
    OpDef(name="future.wait", run=_wait, result=_awaited),
    OpDef(name="py.iter", run=list, result=always(t.ListType(t.ANY))),
    OpDef(name="py.callable", run=callable, result=always(t.BOOL)),
    OpDef(name="py.hash", run=hash, result=always(t.INT)),
]
