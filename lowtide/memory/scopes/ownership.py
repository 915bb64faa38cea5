"""Moves tensors from one owner to another, or ends them.

In: a tensor and two places. Out: the tensor, in at most one of them.

    attach(t, scope)                            # from wherever it was
    move(t, outer, only_from=inner)             # only if it is inner's
    dispose_now(t, ending)                      # from wherever it is

Always: counts of tensors created and disposed stay exact; a move between scopes counts nothing.
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
    """Raises ScopeError if the scope has ended."""
    if place.log is None:
        raise ScopeError(
            f"{place!r} can no longer be used: it has disposed what it had\n"
            "write instead: another `dispose_scope()`, or do this before its end"
        )


def checked(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors of the arguments. Raises TypeError for other things, and if one is disposed."""
    found = given(tensors)
    for tensor in found:
        if is_gone(tensor):
            raise error_of(tensor)
    return found


def given(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors of the arguments, disposed ones too. Raises TypeError for other things."""
    for value in tensors:
        if not isinstance(value, torch.Tensor) and not is_nest(value):
            kind = type(value).__name__  # its repr may be long, or raise
            raise TypeError(f"a tensor or a nest of tensors is expected, not {kind}")
    return list(tensors_in(tensors))


def movable(tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    """As `checked`, and what tensors with a dispatch of their own are made of."""
    return list(with_parts(checked(tensors)))


def one_tensor(value: Any) -> torch.Tensor:
    """A tensor, disposed or not. Raises TypeError for all else."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a tensor is expected, not {type(value).__name__}")
    return value


def one_or_all(tensors: tuple[Any, ...]) -> Any:
    """What a method was given, as it gives it back."""
    return tensors[0] if len(tensors) == 1 else tensors


def move(tensor: torch.Tensor, to: Place | None, *, only_from: Place) -> None:
    """Move it from its owner to another scope, or detach it; the counts stay as they are."""
    if to is None:
        torch_hooks.detach(tensor, only_from)
        return
    with LOCK:
        check_open(to)
        birth = None if to is only_from else only_from.take(tensor)
        if birth is not None:
            to.add(tensor, given_away(birth))


def attach(tensor: torch.Tensor, to: Place) -> None:
    """Make `to` its owner; counted as attached if no scope owned it."""
    with LOCK:
        check_open(to)
        place = torch_hooks.meet(tensor)
        birth = place.find(tensor)
        # One that its maker keeps may be in the scope already, to be left alone at its end.
        if birth is not None and (place is not to or birth != given_away(birth)):
            place.take(tensor)
            to.add(tensor, given_away(birth))
            if place is place.thread.loose:
                to.thread.attached += 1


def dispose_now(tensor: torch.Tensor, ending: Ending) -> None:
    """Dispose one tensor, wherever it is. Raises TypeError if its class has slots of its own."""
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
