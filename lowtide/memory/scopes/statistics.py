"""Counts of tensors made and disposed by a thread, in scopes and outside.

In: nothing. Out: counts that are exact when they are read.

    stats = lt.scope_statistics()
    stats.reset()
    with lt.dispose_scope():
        step(batch)
    stats.thread_total_live                 # what the step has left behind

Invariant: thread_total_live = created − disposed, inside and outside together. A tensor that Python
frees counts as disposed. It counts in the thread of its owner: a tensor that is moved to a scope of
another thread is created in one thread and disposed in the other.
"""

from __future__ import annotations

from lowtide.memory.scopes import torch_hooks
from lowtide.memory.scopes.hidden import by_python
from lowtide.memory.scopes.ownership import attach
from lowtide.memory.scopes.tensor_log import Counts
from lowtide.memory.scopes.watch import ThreadState, state

_FIELDS = (
    "thread_total_live", "created_in_scope", "disposed_in_scope", "created_outside_scope",
    "disposed_outside_scope", "attached_to_scope", "detached_from_scope",
)  # fmt: skip


@by_python
class ScopeStatistics:
    """The counts of one thread, read live."""

    def __init__(self, thread: ThreadState) -> None:
        self._thread = thread

    @property
    def created_in_scope(self) -> int:
        """Tensors made while a scope was open."""
        return self._inside().created

    @property
    def disposed_in_scope(self) -> int:
        """Tensors that were disposed while a scope owned them."""
        return self._inside().disposed

    @property
    def created_outside_scope(self) -> int:
        """Tensors made outside all scopes since `scope_statistics()` was first called, and earlier
        ones that were later attached or disposed."""
        return self._outside().created

    @property
    def disposed_outside_scope(self) -> int:
        """Tensors that were disposed while no scope owned them."""
        return self._outside().disposed

    @property
    def attached_to_scope(self) -> int:
        """Tensors without an owner that were attached to a scope."""
        return self._thread.attached

    @property
    def detached_from_scope(self) -> int:
        """Tensors that were detached from a scope. If every step adds some, they may be a leak."""
        return self._thread.detached

    @property
    def thread_total_live(self) -> int:
        """Tensors created and not yet disposed."""
        inside, outside = self._inside(), self._outside()
        return inside.created - inside.disposed + outside.created - outside.disposed

    def reset(self) -> None:
        """Start all counts from zero; who owns what stays."""
        for counts in (self._inside(), self._outside()):
            counts.created = counts.disposed = 0
        self._thread.attached = self._thread.detached = 0

    def stop(self) -> None:
        """Stop counting outside scopes: calls there cost no more than PyTorch's own."""
        if self._thread.is_watching:
            self._thread.is_watching = False
            self._thread.switch_off(self._thread)

    def to_dict(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in _FIELDS}

    def __repr__(self) -> str:
        return "; ".join(f"{name}: {count}" for name, count in self.to_dict().items())

    def _inside(self) -> Counts:
        for place in list(self._thread.places):
            place.sweep()
        return self._thread.inside

    def _outside(self) -> Counts:
        self._thread.loose.sweep()
        return self._thread.outside


@by_python
def scope_statistics() -> ScopeStatistics:
    """Return the statistics of the current thread.

    From the first call until `stop()`, tensors made outside scopes are counted too. That costs 1 to
    2 µs for each call into PyTorch, as in a scope.
    """
    thread = state()
    if not thread.is_watching:
        torch_hooks.install(attach)
        thread.is_watching = True
        thread.switch_on(thread)
    return ScopeStatistics(thread)
