"""DisposeScope: owns tensors, and disposes them when it ends.

In: tensors made while the scope is the innermost of the calling context, or attached by hand. Out:
at its end the scope disposes those that it still owns.

    with dispose_scope() as scope:
        a = x * 2                           # owned by the scope
        b = scope.move_to_outer(a + 1)      # owned by the outer scope; by none if there is none
    is_disposed(a), is_disposed(b)          # True, False

Invariant: a tensor has at most one owner. Scopes may end in any order: what an inner scope moves
out goes to the nearest outer scope that is still open. An ended scope owns nothing and accepts
nothing. If a scope is garbage-collected before it has ended, its tensors are detached.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import CodeType, TracebackType
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, overload

import torch

from lowtide.cpython import frame_at
from lowtide.errors import ScopeError
from lowtide.memory.scopes import disposed, threads, torch_hooks, watch
from lowtide.memory.scopes.allocation_sites import FIELDS, Birth, Births, loc_of, user_frame
from lowtide.memory.scopes.decorate import scoped
from lowtide.memory.scopes.disposed import DisposedTensor, Ending, empty_out
from lowtide.memory.scopes.hidden import by_python
from lowtide.memory.scopes.ownership import (
    attach,
    check_open,
    checked,
    movable,
    move,
    one_or_all,
    one_tensor,
)
from lowtide.memory.scopes.tensor_log import LOCK
from lowtide.memory.scopes.watch import Place, state

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
_set: Any = object.__setattr__
_MANY = 100
_NONE: frozenset[int] = frozenset()
_NO_CONTEXT = contextlib.nullcontext()


@by_python
class DisposeScope(Place):
    """Owner of tensors until its end. Made by `dispose_scope()`; opened by `with`, or as a
    decorator."""

    __slots__ = ("_opened", "is_open")

    def __init__(self) -> None:
        thread = state()
        super().__init__(thread, thread.inside)
        thread.places.add(self)
        self.is_open = False
        self._opened: tuple[CodeType, int] | None = None

    def __enter__(self) -> DisposeScope:
        self._begin(frame_at(1))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end("by the end of the dispose scope", is_block=True)

    async def __aenter__(self) -> DisposeScope:
        self._begin(frame_at(1))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end("by the end of the dispose scope", is_block=True)

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """As a decorator: every call of `fn` runs in a new scope."""
        return scoped(fn, dispose_scope)

    @property
    def outer_scope(self) -> DisposeScope | None:
        """The nearest scope around this one that is still open."""
        place = self.outer
        while place is not None and place.log is None:
            place = place.outer
        return place if isinstance(place, DisposeScope) else None

    @property
    def is_ended(self) -> bool:
        """Return whether the scope has ended: it has disposed its tensors and cannot be opened
        again."""
        return self.log is None

    @property
    def disposables(self) -> tuple[torch.Tensor, ...]:
        """The living tensors that the scope owns, oldest first; none after its end."""
        return tuple(self.live())

    @property
    def disposables_count(self) -> int:
        """The number of tensors that the scope owns."""
        self.sweep()
        return len(self.owned)

    def contains(self, tensor: torch.Tensor) -> bool:
        """Return whether the scope owns the tensor. Raises TypeError for other values, also for
        lists."""
        return self.find(one_tensor(tensor)) is not None

    @overload
    def move_to_outer(self, first: T, /) -> T: ...
    @overload
    def move_to_outer(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def move_to_outer(self, *tensors: Any) -> Any:
        """Move tensors of this scope to the scope around it; detach them if there is none.

        `tensors`: tensors, or lists, tuples and dicts of them. Those that this scope does not own
        keep their owner. Returns the arguments. Raises ScopeError after the end of the scope,
        DisposedTensorError for a disposed tensor.
        """
        check_open(self)
        outer = self.outer_scope
        for tensor in movable(tensors):
            move(tensor, outer, only_from=self)
        return one_or_all(tensors)

    @overload
    def move_to_other(self, scope: DisposeScope | None, first: T, /) -> T: ...
    @overload
    def move_to_other(self, scope: DisposeScope | None, /, *tensors: *Ts) -> tuple[*Ts]: ...
    def move_to_other(self, scope: DisposeScope | None, /, *tensors: Any) -> Any:
        """Move tensors of this scope to another scope, inner or outer; detach them if it is None.

        Returns the tensors. Raises TypeError for another kind of `scope`, ScopeError if one of the
        scopes has ended.
        """
        check_open(self)
        if scope is not None and not isinstance(scope, DisposeScope):  # pyright: ignore
            raise TypeError(f"expected a dispose scope or None, got {type(scope).__name__}")
        if scope is not None:
            check_open(scope)
        for tensor in movable(tensors):
            move(tensor, scope, only_from=self)
        return one_or_all(tensors)

    @overload
    def detach(self, first: T, /) -> T: ...
    @overload
    def detach(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def detach(self, *tensors: Any) -> Any:
        """Take tensors from this scope: they live as long as Python refers to them, as without
        scopes. Returns the tensors."""
        check_open(self)
        for tensor in movable(tensors):
            torch_hooks.detach(tensor, only_from=self)
        return one_or_all(tensors)

    @overload
    def attach(self, first: T, /) -> T: ...
    @overload
    def attach(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def attach(self, *tensors: Any) -> Any:
        """Make this scope the owner of these tensors, whoever owned them, also of parameters and
        gradients. Returns the tensors."""
        check_open(self)
        for tensor in checked(tensors):
            attach(tensor, self)
        return one_or_all(tensors)

    def dispose_everything(self) -> None:
        """Dispose the tensors that the scope owns now; the scope stays open."""
        check_open(self)
        self._dispose(_ending("by dispose_everything of the dispose scope", self))

    @overload
    def dispose_everything_but(self, first: T, /) -> T: ...
    @overload
    def dispose_everything_but(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def dispose_everything_but(self, *tensors: Any) -> Any:
        """Dispose the tensors that the scope owns now, except these. Returns these."""
        check_open(self)
        spared = frozenset(id(tensor) for tensor in movable(tensors))
        self._dispose(_ending("by dispose_everything_but of the dispose scope", self), spared)
        return one_or_all(tensors)

    def dispose(self) -> None:
        """End the scope now. An ended scope is left alone."""
        self._end("by dispose() of the dispose scope")

    def __repr__(self) -> str:
        where = "" if self._opened is None else f" opened at {loc_of(*self._opened)}"
        if self.is_ended:
            return f"<ended dispose scope{where}>"
        return f"<dispose scope{where}, {self.disposables_count} tensors>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} can be neither copied nor pickled")

    def _begin(self, frame: Any) -> None:
        check_open(self)
        if self.is_open:
            raise ScopeError(f"{self!r} is open already: nest another dispose_scope() instead")
        torch_hooks.install(attach)
        _set(self, "__class__", DisposeScope)
        found = user_frame(frame)
        if found is not None:
            self._opened = (found.f_code, found.f_lasti)
        self.is_open = True
        try:
            self.enter_context()
        except BaseException:  # an interrupt: `with` will not call `__exit__`
            self._end("by an interrupt of the dispose scope")
            raise

    def enter_context(self) -> None:
        """Make this the innermost scope of this thread and context, which may differ from those in
        which it was opened."""
        thread = state()
        if thread is not self.thread:
            self.sweep()
            self.thread.places.discard(self)
            self.thread, self.counts = thread, thread.inside
            thread.places.add(self)
        self.outer = watch.current()
        thread.switch_on(self)
        watch.set_current(self)

    def leave_context(self) -> None:
        """Make the outer scope the innermost; this one stays open."""
        self.thread.switch_off(self)
        watch.set_current(self.outer)

    # Few nested calls: near the recursion limit, ending a scope must not need more than opening it.
    def _end(self, how: str, is_block: bool = False) -> None:
        taken: Births = []
        try:
            if self.log is not None:
                self._empty(taken, _ending(how, self, is_block), _NONE, is_end=True)
            self.is_open = False
            # Also if another thread has ended the scope: it cannot remove this thread's mode.
            self.thread.switch_off(self)
        except BaseException:  # an interrupt: finish what it cut short, then raise it
            try:
                ending = _ending(how, self, is_block)
                self._empty(taken, ending, _NONE, is_end=True, is_repeat=True)
            finally:
                self.is_open = False
                self.thread.switch_off(self)
            raise
        finally:
            # In another context, or out of order, another scope is the innermost.
            if watch.is_innermost(self):
                watch.set_current(self.outer_scope)

    def _dispose(self, ending: Ending, spared: frozenset[int] = _NONE) -> None:
        taken: Births = []
        try:
            self._empty(taken, ending, spared)
        except BaseException:  # as in `_end`
            self._empty(taken, ending, spared, is_repeat=True)
            raise

    def _empty(
        self,
        taken: Births,
        ending: Ending,
        spared: frozenset[int],
        is_end: bool = False,
        is_repeat: bool = False,
    ) -> None:
        with LOCK:  # emptied and closed at once: no thread may add a tensor in between
            self.take_all(taken, spared)
            if is_end:
                self.close()
        count = len(taken) // FIELDS
        with disposed.outside_dispatch_modes(), without_collector(count):
            twice = 0
            left: list[tuple[torch.Tensor, Birth]] = []
            for birth in empty_out(taken, ending):
                tensor = birth[0]()
                if type(tensor) is DisposedTensor:  # logged twice, or before the interrupt
                    twice += not is_repeat
                elif tensor is not None:
                    left.append((tensor, birth))
            ended = count - twice - len(left)
            del taken[:]  # counted
            self.counts.disposed += ended
            self.counts.created -= twice
            for tensor, birth in left:
                self.thread.detached += 1
                self.thread.loose.add(tensor, birth)
            disposed.release_pending()


class _Unopened(DisposeScope):
    """A scope that no `with` has opened yet. Only such a scope can be freed while it owns tensors.

    Only this class has `__del__`: Python would swallow an interrupt that comes as `__del__` begins.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        births: Births = []
        with LOCK:
            self.sweep()
            self.take_all(births, _NONE)
            count, loose = len(births) // FIELDS, self.thread.loose
            self.thread.detached += count
            loose.counts.created -= count  # processing the log will add them
            # The collector may call this during a loop over `owned`; appending to a log is safe.
            loose.log = loose.log or []
            loose.log += births


def without_collector(count: int) -> AbstractContextManager[Any]:
    """Return a context without garbage collection if many tensors are disposed: it would find
    nothing.

    Only if no other thread runs: it might disable the collector for itself, or fork.
    """
    may_pause = count >= _MANY and gc.isenabled() and threads.is_alone()
    return _collector_paused() if may_pause else _NO_CONTEXT


@contextlib.contextmanager
def _collector_paused() -> Generator[None]:
    try:
        gc.disable()
        yield
    finally:
        gc.enable()


def ending_here(how: str) -> Ending:
    """Return an ending at the user's current line."""
    return _ending(how, None)


def _ending(how: str, scope: DisposeScope | None, is_block: bool = False) -> Ending:
    frame = user_frame(frame_at(2))
    opened = None if scope is None else scope._opened  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return Ending(None, 0, how, opened)
    is_same = opened is not None and frame.f_code is opened[0]
    return Ending(frame.f_code, frame.f_lasti, how, opened, is_block and is_same)


@overload
def dispose_scope() -> DisposeScope: ...
@overload
def dispose_scope(fn: Callable[P, T], /) -> Callable[P, T]: ...
@by_python
def dispose_scope(fn: Any = None, /) -> Any:
    """Return a scope, for `with dispose_scope() as scope:` or `async with`.

    As a decorator, `@dispose_scope()` or `@dispose_scope`, each call of the function runs in a new
    scope. Raises TypeError if it decorates anything but a function.
    """
    scope = DisposeScope()
    if fn is not None:
        return scope(fn)
    _set(scope, "__class__", _Unopened)
    return scope
