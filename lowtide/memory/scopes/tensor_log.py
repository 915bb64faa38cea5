"""A `Bag` holds the tensors of one owner, weakly, and counts those made and disposed.

In: births, in order. Out: the tensors that are alive, and the counts. A new tensor costs one
`log += birth`. The log is processed when it is read, or when it is much longer than the number of
live tensors, so that a tensor costs constant time.

    bag.log += birth                    # made
    bag.find(t)                         # its birth, or None; processes the log
    bag.take(t)                         # removed from the bag, alive

Invariant: `owned` maps `id(t)` to the birth of t; a dead entry stays until a sweep or until its
id is reused. A tensor that Python frees counts as disposed by the bag that held it. An interrupt
(Ctrl-C) loses neither births nor counts. Python checks for interrupts after a call, at the start of
a function and at the end of a loop's body. Code that must not be interrupted has none of these.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from lowtide.cpython import free_after_fork
from lowtide.memory.scopes.allocation_sites import FIELDS, Birth, Births, each

# Held while tensors move between bags. Never held while user code runs, except by finalizers, which
# may take it again: hence an RLock.
LOCK = threading.RLock()
_FIRST_SWEEP = 1024 * FIELDS

_bags: weakref.WeakSet[Bag] = weakref.WeakSet()
_FORK_WAITS_S = 1.0  # for moves; two threads that wait for each other would wait for ever


def _before_fork() -> None:
    LOCK.acquire(timeout=_FORK_WAITS_S)


def _after_fork() -> None:
    with contextlib.suppress(RuntimeError):  # not held: the wait was too long
        LOCK.release()


def _after_fork_in_child() -> None:
    """A thread that held the lock does not exist in the child."""
    free_after_fork(LOCK)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )


@dataclass(slots=True)
class Counts:
    """Tensors made and disposed: inside scopes, or outside all."""

    created: int = 0
    disposed: int = 0


class Bag:
    """The tensors of one owner: a scope, or a thread outside all scopes."""

    __slots__ = ("__weakref__", "counts", "limit", "log", "owned")

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.log: Births | None = []  # flat; None once the owner has ended
        self.owned: dict[int, Birth] = {}
        self.limit = _FIRST_SWEEP
        with LOCK:
            _bags.add(self)

    def close(self) -> None:
        """Accept no more tensors. The bag must be empty."""
        with LOCK:
            self.settle()
            self.log = None
            _bags.discard(self)

    def add(self, tensor: torch.Tensor, birth: Birth) -> None:
        """Add a tensor that was counted when it was made."""
        with LOCK:
            self.settle()
            self._put(tensor, birth)

    def settle(self) -> None:
        """Process the births logged since the last call."""
        with LOCK:
            if not self.log:
                return
            # In place and by count, since another thread may append meanwhile.
            births = self.log[:]
            count, done = len(births), 0
            del self.log[:count]
            self.counts.created += count // FIELDS
            try:
                for birth in each(births):
                    tensor = birth[0]()
                    if tensor is None:
                        self.counts.disposed += 1
                    else:
                        self._put(tensor, birth)
                    done += FIELDS
            finally:
                if done < count:  # an interrupt
                    self.log[:0] = births[done:]
                    self.counts.created -= (count - done) // FIELDS

    def sweep(self) -> None:
        """Process the log, and drop dead tensors."""
        with LOCK:
            self.settle()
            self._forget()
            self.limit = _FIRST_SWEEP + FIELDS * len(self.owned)

    def shorten(self) -> None:
        """Drop dead tensors, as `sweep` does, but leave living ones in the log.

        To be called when the log is longer than `limit`.
        """
        with LOCK:
            if self.log is None:
                return
            births = self.log[:]
            alive = [field for birth in each(births) if birth[0]() is not None for field in birth]
            count = len(births)
            dead = (count - len(alive)) // FIELDS
            self.log[:count] = alive
            self.counts.created += dead
            self.counts.disposed += dead
            self._forget()
            self.limit = _FIRST_SWEEP + 2 * len(alive) + FIELDS * len(self.owned)

    def find(self, tensor: torch.Tensor) -> Birth | None:
        """Return the birth of `tensor` if it is in the bag."""
        with LOCK:
            self.settle()
            birth = self.owned.get(id(tensor))
            return birth if birth is not None and birth[0]() is tensor else None

    def take(self, tensor: torch.Tensor) -> Birth | None:
        """Remove the tensor and return its birth; None if it was not in the bag."""
        with LOCK:
            birth = self.find(tensor)
            if birth is not None:
                del self.owned[id(tensor)]
            return birth

    def take_all(self, into: Births, spared: frozenset[int]) -> None:
        """Move all births to `into`, except those of the ids `spared`. The last ones may be dead,
        or occur twice."""
        with LOCK:
            if spared:
                self.sweep()
            taken = (birth for key, birth in self.owned.items() if key not in spared)
            births = [field for birth in taken for field in birth]
            left = {key: birth for key, birth in self.owned.items() if key in spared}
            logged = self.log[:] if self.log else []  # `settle` would take as long again
            count = len(logged)
            self.owned = left
            into += births
            if self.log:
                del self.log[:count]
                self.counts.created += count // FIELDS
                into += logged

    def live(self) -> list[torch.Tensor]:
        """Return the living tensors, oldest first."""
        with LOCK:
            self.sweep()
            found = (birth[0]() for birth in self.owned.values())
            return [tensor for tensor in found if tensor is not None]

    def _forget(self) -> None:
        dead = [key for key, birth in self.owned.items() if birth[0]() is None]
        for key in dead:
            del self.owned[key]
            self.counts.disposed += 1

    def _put(self, tensor: torch.Tensor, birth: Birth) -> None:
        key = id(tensor)
        before = self.owned.get(key)
        if before is not None:
            if before[0]() is tensor:  # logged twice
                self.counts.created -= 1
                return
            self.counts.disposed += 1  # a dead tensor, whose id is reused
            del self.owned[key]  # so that the new entry is the last
        self.owned[key] = birth


def holder_of(tensor: torch.Tensor, likely: Iterable[Bag]) -> Bag | None:
    """Return the bag that holds `tensor`, or None; the `likely` ones are searched first."""
    # Bags share the weak reference without a callback; weak sets and dicts have others.
    if not any(_is_plain(ref) for ref in weakref.getweakrefs(tensor)):
        return None
    with LOCK:
        for bag in likely:
            if bag.find(tensor) is not None:
                return bag
        key = id(tensor)
        maybe = (bag for bag in list(_bags) if bag.log or key in bag.owned)
        return next((bag for bag in maybe if bag.find(tensor) is not None), None)


def _is_plain(ref: weakref.ref[torch.Tensor]) -> bool:
    return type(ref) is weakref.ref and ref.__callback__ is None
