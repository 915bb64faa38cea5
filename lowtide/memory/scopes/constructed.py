"""Tensors made by a call of their class: `torch.Tensor([1.0])`, `Subclass(x)`.

In: a tensor whose `__init__` has run. Out: the scope owns it, if the call made it.

    class Image(torch.Tensor): ...

    with lt.dispose_scope():
        a = Image([1.0])                    # made
        b = Image(a)                        # `__new__` may give back `a`, or one that it keeps

Invariant: a tensor of a subclass is taken only if nothing but the call that constructs it refers
to it. The number of references of such a call depends on the version of Python, and is measured on
a class of Lowtide's own.
"""

from __future__ import annotations

import sys
from functools import partial
from types import CodeType
from typing import Any

import torch

from lowtide.cpython import frame_at
from lowtide.memory.scopes import watch
from lowtide.memory.scopes.tensor_trees import tensors_in


class _Plain(torch.Tensor):
    """A class of a user's, whose one tensor is made once: a mode may be on when it is called."""

    it: Any = None

    def __new__(cls) -> Any:
        return cls.it


class _Initialized(_Plain):
    """One with an `__init__` of its own."""

    def __init__(self) -> None:
        super().__init__()


for _kind in (_Plain, _Initialized):
    _kind.it = watch.in_a_thread(partial(torch.Tensor.__new__, _kind, 0))
# References to the tensor of each where `constructed` counts them.
_counts: dict[type, int] = {}


def constructed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """A tensor made by a call of its class; of a subclass, `__new__` may hand out an old one."""
    kind, frame, deep = type(tensor), frame_at(2), 0
    if issubclass(kind, _Plain):
        _counts[kind] = sys.getrefcount(tensor)
        return
    if not (watch.state().open and watch.is_ours(tensor)):
        return
    if kind is not torch.Tensor:
        while frame is not None and _is_init_of(kind, frame.f_code):
            frame, deep = frame.f_back, deep + 1
        count = sys.getrefcount(tensor)
        if deep and count > _most(deep):
            count_references()  # calls have a reference more once Dynamo runs Python's frames
        if count > _most(deep) or any(tensor is given for given in tensors_in((args, kwargs))):
            return
    watch.see(tensor, frame)


def count_references() -> None:
    """Count anew. Call it once `constructed` is called by `__init__`."""
    for kind in (_Plain, _Initialized):
        kind()


def _most(deep: int) -> int:
    """References to a fresh tensor in the constructor below so many `__init__`."""
    return _counts[_Plain] - 1 + deep * (_counts[_Initialized] - _counts[_Plain])


def _is_init_of(kind: type, code: CodeType) -> bool:
    inits = (vars(base).get("__init__") for base in kind.__mro__)
    return any(getattr(init, "__code__", None) is code for init in inits)
