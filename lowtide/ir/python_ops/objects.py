"""Ops on objects and futures that need no attribute; those that do are in `interpret`.

find("future.wait").result([FutureType(TENSOR)])  ==  TENSOR
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowtide.ir import types as t
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


ROWS = [
    OpDef(name="future.done", run=_done, result=lambda o: FutureType(o[0])),
    OpDef(name="future.wait", run=_wait, result=_awaited),
    OpDef(name="py.iter", run=list, result=always(t.ListType(t.ANY))),
    OpDef(name="py.callable", run=callable, result=always(t.BOOL)),
    OpDef(name="py.hash", run=hash, result=always(t.INT)),
]
