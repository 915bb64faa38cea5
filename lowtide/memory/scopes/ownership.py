"""Moves tensors from one owner to another, or disposes them.

In: a tensor and two owners. Out: the tensor, owned by at most one of them.

    attach(t, scope)                            # from any owner
    move(t, outer, only_from=inner)             # only if `inner` owns it
    dispose_now(t, ending)                      # from any owner

Invariant: the counts of created and disposed tensors stay exact; a move between scopes changes no
count.
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.errors import ScopeError
from lowtide.memory.scopes import torch_hooks
from lowtide.memory.scopes.allocation_sites import given_away
from lowtide.memory.scopes.disposed import Ending, empty_out, error_of, is_gone
from lowtide.memory.scopes.tensor_log import LOCK
from lowtide.memory.scopes.tensor_trees import is_nest, tensors_in, with_parts
from lowtide.memory.scopes.watch import Place


def check_open(place: Place) -> None:
    """Raise ScopeError if the scope has ended."""
    if place.log is None:
        raise ScopeError(
            f"{place!r} can no longer be used: it has disposed its tensors\n"
            "write instead: another `dispose_scope()`, or do this before its end"
        )


def checked(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors of the arguments. Raises TypeError for other values, DisposedTensorError
    for a disposed tensor."""
    found = given(tensors)
    for tensor in found:
        if is_gone(tensor):
            raise error_of(tensor)
    return found


def given(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors of the arguments, disposed ones too. Raises TypeError for other values."""
    for value in tensors:
        if not isinstance(value, torch.Tensor) and not is_nest(value):
            kind = type(value).__name__  # its repr may be long, or raise
            raise TypeError(f"expected a tensor or a nest of tensors, got {kind}")
    return list(tensors_in(tensors))


def movable(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """As `checked`, with the inner tensors of subclasses that have a `__torch_dispatch__`."""
    return list(with_parts(checked(tensors)))


def one_tensor(value: Any) -> torch.Tensor:
    """Return the value if it is a tensor, disposed or not. Raises TypeError otherwise."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(value).__name__}")
    return value


def one_or_all(tensors: tuple[Any, ...]) -> Any:
    """Return what a method returns for its arguments: the only one, or the tuple of all."""
    return tensors[0] if len(tensors) == 1 else tensors


def move(tensor: torch.Tensor, to: Place | None, *, only_from: Place) -> None:
    """Move the tensor to another scope if `only_from` owns it; detach it if `to` is None."""
    if to is None:
        torch_hooks.detach(tensor, only_from)
        return
    with LOCK:
        check_open(to)
        birth = None if to is only_from else only_from.take(tensor)
        if birth is not None:
            to.add(tensor, given_away(birth))


def attach(tensor: torch.Tensor, to: Place) -> None:
    """Make `to` the tensor's owner; counted as attached if no scope owned it. Raises ScopeError if
    the scope has ended."""
    with LOCK:
        check_open(to)
        place = torch_hooks.meet(tensor)
        birth = place.find(tensor)
        # `to` may hold a tensor that its maker stores, which it would not dispose at its end.
        if birth is not None and (place is not to or birth != given_away(birth)):
            place.take(tensor)
            to.add(tensor, given_away(birth))
            if place is place.thread.loose:
                to.thread.attached += 1


def dispose_now(tensor: torch.Tensor, ending: Ending) -> None:
    """Dispose one tensor, whoever owns it. Raises TypeError if its class has `__slots__`."""
    with LOCK:
        place = torch_hooks.meet(tensor)
        birth = place.take(tensor)
    if birth is not None:
        # unless another thread has disposed it meanwhile
        if empty_out([*given_away(birth)], ending) and not is_gone(tensor):
            place.add(tensor, birth)
            name = type(tensor).__name__
            raise TypeError(f"a {name} cannot be disposed: its class has __slots__; use `del`")
        place.counts.disposed += 1
