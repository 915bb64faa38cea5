"""Recurrent layers with dropout in Python that is called without being run: see `memory/virtual`.

PyTorch makes cuDNN's state of dropout in the first such call, and keeps it for the process: of a
rehearsal it would keep what has no values. In: calls of `torch.lstm` and its kin, on tensors of a
GPU. Out: a context in which they reach cuDNN without a state; the ledger counts one, as it does
where `lt.script` rehearses.

    with without_state():
        nn.LSTM(64, 96, 2, dropout=0.3)(x)    ──►  aten._cudnn_rnn(…, dropout_state=None)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Final, cast

import torch

from lowtide.memory import cudnn
from lowtide.memory.spare_key import SpareKey

aten = torch.ops.aten
_DROPOUT: Final = {"input": 5, "data": 6}  # by overload its place, before that of `train`


def without_state() -> contextlib.AbstractContextManager[None]:
    """See the module's text; for this thread."""
    return _key().on()


@functools.cache
def _key() -> SpareKey:
    key = SpareKey("AutocastHPU", "AutocastIPU")
    for func in cudnn.MODES:
        for overload in _DROPOUT:
            key.add(getattr(getattr(aten, func.__name__), overload), _run)
    return key


def _run(op: Any, *args: Any) -> Any:
    place = _DROPOUT[op._schema.overload_name]
    is_dropped = bool(args[place] and args[place + 1])
    if not (is_dropped and args[0].is_cuda and cudnn.takes(args[0])):
        return op(*args)
    places = cudnn.Places()
    for given in args:
        for x in cast("Sequence[Any]", given) if isinstance(given, list | tuple) else [given]:
            if isinstance(x, torch.Tensor):
                places.add(x, x)
    func = getattr(torch, op._schema.name.removeprefix("aten::"))
    found = cudnn.layers(func, args, places)
    return op(*args) if found is None else found
