"""The methods of a scope as functions of tensors, and `is_disposed`.

In: a tensor, or a list, tuple or dict of tensors. Out: the argument, so that calls can be chained.

    total = lt.move_to_outer_dispose_scope(total + loss.detach())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from lowtide.memory.scopes import disposed, torch_hooks, watch
from lowtide.memory.scopes.decorate import moving_out
from lowtide.memory.scopes.disposed import is_gone
from lowtide.memory.scopes.hidden import by_python
from lowtide.memory.scopes.ownership import (
    attach,
    checked,
    dispose_now,
    given,
    movable,
    move,
    one_tensor,
)
from lowtide.memory.scopes.scope import DisposeScope, dispose_scope, ending_here
from lowtide.memory.scopes.watch import owner_of

T = TypeVar("T")
P = ParamSpec("P")


@by_python
def move_to_outer_dispose_scope(t: T) -> T:
    """Move a tensor to the scope around the one that owns it; detach it if there is none.

    A tensor without an owner stays as it is. Raises DisposedTensorError for a disposed tensor.
    """
    for tensor in movable((t,)):
        owner = owner_of(tensor)
        if isinstance(owner, DisposeScope):
            move(tensor, owner.outer_scope, only_from=owner)
    return t


@by_python
def detach_from_dispose_scope(t: T) -> T:
    """Take a tensor from its scope: it lives as long as Python refers to it.

    Raises DisposedTensorError for a disposed tensor."""
    torch_hooks.keep(checked((t,)))
    return t


@by_python
def move_to_other_dispose_scope(t: T, other: DisposeScope | torch.Tensor | None) -> T:
    """Move a tensor to another scope, or to the scope of another tensor; detach it if None.

    A tensor without an owner is attached. Raises ScopeError if the scope has ended, TypeError for
    another kind of `other`.
    """
    if isinstance(other, torch.Tensor):
        (known,) = checked((other,))
        owner = owner_of(known)
        other = owner if isinstance(owner, DisposeScope) else None
    elif other is not None and not isinstance(other, DisposeScope):  # pyright: ignore
        kind = type(other).__name__  # its repr may be long, or raise
        raise TypeError(f"expected a dispose scope, a tensor or None, got {kind}")
    if other is None:
        torch_hooks.keep(checked((t,)))
        return t
    for tensor in checked((t,)):
        attach(tensor, other)
    return t


@by_python
def dispose(*ts: Any) -> None:
    """Dispose tensors now, whoever owns them. Disposed tensors are skipped.

    Raises TypeError for what is neither a tensor nor a nest of tensors.
    """
    found = given(ts)
    ending = ending_here("by dispose()")
    with disposed.outside_dispatch_modes():
        for tensor in found:
            if not is_gone(tensor):
                dispose_now(tensor, ending)
        disposed.release_pending()


@by_python
def is_disposed(t: torch.Tensor) -> bool:
    """Return whether the tensor was disposed. Raises TypeError for anything but a tensor."""
    return is_gone(one_tensor(t))


@by_python
def alias(t: torch.Tensor) -> torch.Tensor:
    """Return a new handle on the same memory, which is disposed on its own; gradients flow through.

    A function should return `alias(x)` instead of its argument `x`, so that the caller can dispose
    one without the other. Raises TypeError for anything but a tensor, DisposedTensorError for a
    disposed one.
    """
    (tensor,) = checked((one_tensor(t),))
    made: torch.Tensor = torch.ops.aten.alias.default(tensor)
    return made


@by_python
def current_dispose_scope() -> DisposeScope | None:
    """Return the innermost open scope of this thread and context; None if there is none."""
    place = watch.current()
    return place if isinstance(place, DisposeScope) else None


def wrapped_dispose_scope(fn: Callable[P, T]) -> Callable[P, T]:
    """Return `fn` in a new scope at each call; the tensors of its result are moved out.

    `fn`: a function, a coroutine function, or a generator function, each of whose values is moved
    out. The result may be a tensor, or a nest of lists, tuples, sets, dicts and dataclasses.
    """
    return moving_out(fn, dispose_scope)
