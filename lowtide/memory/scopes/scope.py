"""DisposeScope: who owns what, and when it ends.

In: tensors made while the scope is the innermost of the calling context, or attached by hand. Out:
at its end every one of them that is still its own is disposed.

    with dispose_scope() as scope:          # opens
        a = x * 2                           # the scope's
        b = scope.move_to_outer(a + 1)      # the outer scope's; nobody's if there is none
    is_disposed(a), is_disposed(b)          # True, False

Always: a tensor has at most one owner. Ends may come in any order: what an inner scope moves out
goes to the nearest outer one that is still open. An ended scope holds nothing and takes nothing.
What a scope still holds that goes itself without having ended is nobody's, as if it were detached.
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
    """Tensors that end together. Made by `dispose_scope()`, opened by `with`, or a decorator."""

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
        """As a decorator: every call of `fn` runs in a scope of its own."""
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
        """Whether it has disposed what it had, for good."""
        return self.log is None

    @property
    def disposables(self) -> tuple[torch.Tensor, ...]:
        """The tensors it owns and that are alive, oldest first; none after its end."""
        return tuple(self.live())

    @property
    def disposables_count(self) -> int:
        """How many it owns."""
        self.sweep()
        return len(self.owned)

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether it owns the tensor. Raises TypeError for all else, lists too."""
        return self.find(one_tensor(tensor)) is not None

    @overload
    def move_to_outer(self, first: T, /) -> T: ...
    @overload
    def move_to_outer(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def move_to_outer(self, *tensors: Any) -> Any:
        """Give tensors of this scope to the scope around it; to nobody if there is none.

        Tensors, or lists, tuples and dicts of them. Those that this scope does not own stay where
        they are. Raises ScopeError after the end, DisposedTensorError for a disposed tensor.
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
        """Give tensors of this scope to another one, inner or outer; to nobody if it is None.

        Raises TypeError if `scope` is anything else, ScopeError if it has ended.
        """
        check_open(self)
        if scope is not None and not isinstance(scope, DisposeScope):  # pyright: ignore
            raise TypeError(f"a dispose scope or None is expected, not {type(scope).__name__}")
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
        """Give up tensors of this scope: Python's reference counts end them, as without scopes."""
        check_open(self)
        for tensor in movable(tensors):
            torch_hooks.detach(tensor, only_from=self)
        return one_or_all(tensors)

    @overload
    def attach(self, first: T, /) -> T: ...
    @overload
    def attach(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def attach(self, *tensors: Any) -> Any:
        """Own these tensors from now on, whoever made or owned them; nothing is left alone."""
        check_open(self)
        for tensor in checked(tensors):
            attach(tensor, self)
        return one_or_all(tensors)

    def dispose_everything(self) -> None:
        """Dispose what the scope owns now, and go on."""
        check_open(self)
        self._dispose(_ending("by dispose_everything of the dispose scope", self))

    @overload
    def dispose_everything_but(self, first: T, /) -> T: ...
    @overload
    def dispose_everything_but(self, *tensors: *Ts) -> tuple[*Ts]: ...
    def dispose_everything_but(self, *tensors: Any) -> Any:
        """Dispose what the scope owns now, except these; they stay its own."""
        check_open(self)
        spared = frozenset(id(tensor) for tensor in movable(tensors))
        self._dispose(_ending("by dispose_everything_but of the dispose scope", self), spared)
        return one_or_all(tensors)

    def dispose(self) -> None:
        """End the scope now. A second time does nothing."""
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
        """Be the innermost of this thread and context, which need not be those before."""
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
        """Be no longer the innermost, though open."""
        self.thread.switch_off(self)
        watch.set_current(self.outer)

    # No frames between these and the work: near the limit of recursion an end must not need more
    # of them than the beginning did.
    def _end(self, how: str, is_block: bool = False) -> None:
        taken: Births = []
        try:
            if self.log is not None:
                self._empty(taken, _ending(how, self, is_block), _NONE, is_end=True)
            self.is_open = False
            # Also if another thread has ended it, which could not take this one's mode off.
            self.thread.switch_off(self)
        except BaseException:  # an interrupt passes once what it cut short is done
            try:
                ending = _ending(how, self, is_block)
                self._empty(taken, ending, _NONE, is_end=True, is_again=True)
            finally:
                self.is_open = False
                self.thread.switch_off(self)
            raise
        finally:
            # In another context, or out of order, somebody else is the innermost.
            if watch.is_innermost(self):
                watch.set_current(self.outer_scope)

    def _dispose(self, ending: Ending, spared: frozenset[int] = _NONE) -> None:
        taken: Births = []
        try:
            self._empty(taken, ending, spared)
        except BaseException:  # as in `_end`
            self._empty(taken, ending, spared, is_again=True)
            raise

    def _empty(
        self,
        taken: Births,
        ending: Ending,
        spared: frozenset[int],
        is_end: bool = False,
        is_again: bool = False,
    ) -> None:
        with LOCK:  # closed at once, or another thread might put a tensor in that nobody ends
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
                    twice += not is_again
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
    """A scope that no `with` has opened yet: only such a one can go while it holds something.

    A class of its own, as an interrupt at the beginning of `__del__` would be lost.
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
            loose.counts.created -= count  # as the log counts what is in it
            # The collector may call this while `owned` is gone through; a log can always take more.
            loose.log = loose.log or []
            loose.log += births


def without_collector(count: int) -> AbstractContextManager[Any]:
    """Python's collector does not run while many tensors end: it would find nothing, many times.

    Only where there is no other thread, which might turn it off for itself, or fork, meanwhile."""
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
    """An ending at the user's line that is running now."""
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
    """A scope: `with dispose_scope() as scope:`, or `async with`.

    As a decorator, `@dispose_scope()` or `@dispose_scope`: each call has a scope of its own. Raises
    TypeError for what is no function.
    """
    scope = DisposeScope()
    if fn is not None:
        return scope(fn)
    _set(scope, "__class__", _Unopened)
    return scope
