"""Tensors made by a call of their class: `torch.Tensor([1.0])`, `Subclass(x)`.

In: a tensor whose `__init__` has run. Out: the innermost scope owns it, if the call made it.

    class Image(torch.Tensor): ...

    with lt.dispose_scope():
        a = Image([1.0])                    # made
        b = Image(a)                        # may be `a` itself: `__new__` decides

Invariant: a scope owns a tensor of a subclass only if nothing but the constructor's call refers to
it. How many references such a call holds depends on the version of Python, so it is measured on a
class of Lowtide's own.
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
    """A subclass whose only tensor is made in advance: a mode may be on when references are
    counted."""

    it: Any = None

    def __new__(cls) -> Any:
        return cls.it


class _Initialized(_Plain):
    """The same with its own `__init__`."""

    def __init__(self) -> None:
        super().__init__()


for _kind in (_Plain, _Initialized):
    _kind.it = watch.in_a_thread(partial(torch.Tensor.__new__, _kind, 0))
# By class, the reference count that `constructed` sees.
_counts: dict[type, int] = {}


def constructed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Record a tensor after its `__init__`, unless `__new__` returned an existing one."""
    kind, frame, deep = type(tensor), frame_at(2), 0
    if issubclass(kind, _Plain):
        _counts[kind] = sys.getrefcount(tensor)
        return
    if not (watch.state().open and watch.is_owned_by_scopes(tensor)):
        return
    if kind is not torch.Tensor:
        while frame is not None and _is_init_of(kind, frame.f_code):
            frame, deep = frame.f_back, deep + 1
        count = sys.getrefcount(tensor)
        if deep and count > _most(deep):
            count_references()  # calls hold one more reference once Dynamo evaluates frames
        if count > _most(deep) or any(tensor is given for given in tensors_in((args, kwargs))):
            return
    watch.see(tensor, frame)


def count_references() -> None:
    """Measure the counts. Call it after `constructed` has been hooked into `__init__`."""
    for kind in (_Plain, _Initialized):
        kind()


def _most(deep: int) -> int:
    """Return the references to a new tensor below `deep` nested calls of `__init__`."""
    return _counts[_Plain] - 1 + deep * (_counts[_Initialized] - _counts[_Plain])


def _is_init_of(kind: type, code: CodeType) -> bool:
    inits = (vars(base).get("__init__") for base in kind.__mro__)
    return any(getattr(init, "__code__", None) is code for init in inits)
