"""Sees tensors as they are made: a mode on PyTorch's function stack, one for each thread.

In: every call into PyTorch on a thread that has an open scope. Out: new tensors, in the log of the
innermost scope of the calling context. A thread without open scopes has no mode on its stack.

    thread.switch_on(scope)     pushes the mode to the bottom of the stack, unless it is there
    y = x * 2                   the mode calls the function, sees that only Python's stack refers to
                                the result, and logs it
    thread.switch_off(scope)    the last scope removes the mode

Invariant: a tensor is logged only if the call made it: not an argument that an in-place op returns,
not a `.grad`, not a tensor of a class with a `__torch_dispatch__` (fake, distributed). The mode is
at the bottom of the stack, so that modes entered later can be left in any order. The innermost
scope is a context variable: each asyncio task has its own; other threads have none.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType, MethodType
from typing import Any, TypeVar

import torch
from torch.nn.parameter import Parameter

from lowtide.cpython import frame_at
from lowtide.memory.scopes.allocation_sites import USER_CODES, Births, note
from lowtide.memory.scopes.tensor_log import Bag, Counts, holder_of
from lowtide.memory.scopes.tensor_trees import is_nest, tensors_in
from lowtide.torch_private.modes import (
    DeviceContext,
    function_modes,
    insert_function_mode,
    remove_function_mode,
)
from lowtide.torch_private.tensors import GETTERS_OF_OTHERS, use_count

T = TypeVar("T")
_Tensor: Any = torch.Tensor
# The most common types of results that hold no tensor.
_PLAIN = frozenset({int, float, bool, str, torch.Size, torch.dtype, torch.device, torch.layout})
_GRAD_SETTER: Any = _Tensor.grad.__set__
_DEEPCOPY: Any = _Tensor.__deepcopy__
_TOLIST: Any = _Tensor.tolist
_NO_DISPATCH: Any = _Tensor.__torch_dispatch__


def _count_of_fresh() -> int:
    made: Any = torch.empty(0)
    return sys.getrefcount(made)


def _count_of_fresh_shared() -> int:
    made: Any = torch.empty(0)
    view = made.view(0)  # in C++ it refers to its base
    return sys.getrefcount(made) + 0 * len(view)


def _count_in_nest() -> int:
    """Count the references of a list, a loop's variable, and an argument."""
    counts: list[int] = []
    for made in [torch.empty(0)]:
        counts.append(sys.getrefcount(made))
    return counts[0]


def in_a_thread(work: Callable[[], T]) -> T:
    """Return `work()` from a new thread, where no mode is on. This module may be imported, and the
    first scope opened, under inference mode, a user's dispatch mode, or a trace."""
    given: list[T] = []
    thread = threading.Thread(target=lambda: given.append(work()))
    thread.start()
    thread.join()
    return given[0]


FRESH = in_a_thread(_count_of_fresh)
_FRESH_IN_NEST = in_a_thread(_count_in_nest)
_FRESH_ELSE = _FRESH_IN_NEST - 1  # without the reference of the list
FRESH_SHARED = in_a_thread(_count_of_fresh_shared)
_BY_CPP = FRESH_SHARED - FRESH
_MORE_IN_NEST = _FRESH_IN_NEST - FRESH
_FLAT: Any = (list, tuple)


class Place(Bag):
    """A bag in a thread: a scope, or the thread outside all scopes."""

    __slots__ = ("outer", "thread")

    def __init__(self, thread: ThreadState, counts: Counts) -> None:
        super().__init__(counts)
        self.thread = thread
        self.outer: Place | None = None


class ThreadState:
    """The state of one thread: its counts, its open scopes, and its mode."""

    def __init__(self) -> None:
        self.inside = Counts()
        self.outside = Counts()
        self.attached = 0
        self.detached = 0
        self.is_watching = False  # outside scopes too
        self.places: weakref.WeakSet[Place] = weakref.WeakSet()
        self.loose = Place(self, self.outside)
        self.mode = _Mode(self)
        self.open: list[object] = []
        self.pushed: list[object] = []
        self.lent: Place | None = None  # for autograd's threads, while this one waits for them

    def switch_on(self, holder: object) -> None:
        """Log tensors of this thread until `switch_off(holder)`. Call it on this thread."""
        if not _is_on_stack(self.mode):
            _insert(self.mode)
            self.pushed.append(holder)
        self.open.append(holder)

    def switch_off(self, holder: object) -> None:
        """Undo `switch_on`, in any order of holders. On another thread the mode stays on the stack
        until this thread calls it, too."""
        at = next((i for i, other in enumerate(self.open) if other is holder), len(self.open))
        earlier, later = self.open[:at], self.open[at + 1 :]
        pushed = [other for other in self.pushed if other is not holder]
        if self is state():
            self._take_off(holder, earlier, later, pushed)
        self.open, self.pushed = earlier + later, pushed

    def _take_off(
        self, holder: object, earlier: list[object], later: list[object], pushed: list[object]
    ) -> None:
        """Remove the mode if `holder` has pushed it and no later holder needs it."""
        was_pushed = any(other is holder for other in self.pushed)
        # While a function of PyTorch's runs, its mode is off the stack and will be put back. If it
        # were pushed for an heir as well, each tensor would be seen twice.
        is_aside = any(other in pushed for other in earlier)
        heir = None if is_aside else next((o for o in later if o not in pushed), None)
        if not (earlier or later):
            pushed.clear()
            remove_function_mode(self.mode)
        elif was_pushed and heir is not None:
            pushed.append(heir)
        elif was_pushed:
            remove_function_mode(self.mode)


class _Mode:
    """The function mode. Not a TorchFunctionMode: that can be pushed and popped only by `with`."""

    # `__torch_function__` is bound once, since PyTorch reads it twice a call.
    __slots__ = ("__torch_function__", "code", "thread")
    takes_results = True  # by `register_results`: compiled code may run `aside`

    def __init__(self, thread: ThreadState) -> None:
        self.thread = thread
        self.code: CodeType | None = None  # the user's code that called last
        self.__torch_function__ = MethodType(_call, self)


def _call(self: _Mode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call the function, and log the tensor that it made."""
    # Dynamo traces this as True, and nothing below.
    if _is_dynamo_compiling():
        return func(*args, **(kwargs or {}))
    made = func(*args) if kwargs is None else func(*args, **kwargs)
    if type(made) is _Tensor and _getrefcount(made) == FRESH:
        place = _innermost.get()
        if place is None or place.thread is not self.thread or (log := place.log) is None:
            _record(self.thread, made, frame_at(1))
            return made
        frame = frame_at(1)
        code = frame.f_code
        if code is self.code or id(code) in USER_CODES:
            self.code = code
            log += (_ref(made), code, frame.f_lasti)
        else:
            log += note(made, frame)
        if len(log) > place.limit:
            place.shorten()
    elif type(made) not in _PLAIN:
        _look(self.thread, func, args, kwargs, _getrefcount(made), made, frame_at(1))
    return made


_ref = weakref.ref
_is_dynamo_compiling: Any = torch.compiler.is_dynamo_compiling
_getrefcount = sys.getrefcount
_innermost: ContextVar[Place | None] = ContextVar("lowtide_innermost_scope", default=None)
_threads = threading.local()


def state() -> ThreadState:
    """Return the state of the current thread."""
    try:
        return _threads.state
    except AttributeError:
        made = _threads.state = ThreadState()
        if threading.get_ident() != threading.main_thread().ident:
            _threads.until_its_end = _UntilItsEnd(made.mode)
        return made


class _UntilItsEnd:
    """A thread-local object that removes the mode when its thread ends. PyTorch frees a thread's
    modes later, and aborts the process if the interpreter is finalizing by then."""

    __slots__ = ("_ident", "_mode")

    def __init__(self, mode: _Mode) -> None:
        self._mode = mode
        self._ident = threading.get_ident()

    def __del__(self) -> None:
        if threading.get_ident() == self._ident:
            remove_function_mode(self._mode)


def current() -> Place | None:
    """Return the innermost open scope of this context, if it is this thread's."""
    place = _innermost.get()
    while place is not None and place.log is None:
        place = place.outer
    return place if place is not None and place.thread is state() else None


def owner_of(tensor: torch.Tensor) -> Bag | None:
    """Return the bag that holds `tensor`: a scope's, a thread's outside all scopes, or None."""
    return holder_of(tensor, _near())


def _near() -> Iterator[Place]:
    """Yield the places that most likely hold a tensor of this context: thousands of other scopes
    may exist."""
    place = _innermost.get()
    while place is not None:
        yield place
        place = place.outer
    yield state().loose


def set_current(place: Place | None) -> None:
    """Make `place` the innermost of this context; None: no scope is."""
    _innermost.set(place)


def is_innermost(place: Place) -> bool:
    """Return whether `place` is the innermost of this context, ended or not."""
    return _innermost.get() is place


def _watcher() -> ThreadState | None:
    """Return the thread that owns what this thread makes: itself, or the thread that waits for this
    one in a backward pass. None if this thread is not watched."""
    thread: ThreadState | None = getattr(_threads, "state", None)
    if thread is not None and thread.open:
        return thread
    return next((mode.thread for mode in _modes()), None)


def see(made: Any, frame: FrameType | None) -> None:
    """Record tensors that no mode has seen, if this thread is watched."""
    thread = _watcher()
    if thread is not None:
        for tensor in tensors_in(made):
            if is_owned_by_scopes(tensor):
                _record(thread, tensor, frame)


@contextmanager
def aside() -> Generator[None]:
    """A context in which no tensor that this thread makes is logged."""
    thread: ThreadState | None = getattr(_threads, "state", None)
    modes = _modes()
    holders: list[object] = []
    if thread is not None and thread.open:
        holders, thread.open = thread.open, []
    for mode in modes:
        remove_function_mode(mode)
    try:
        yield
    finally:
        if thread is not None and holders:
            thread.open = holders
        for mode in modes:
            _insert(mode)


def register_results(made: Any) -> None:
    """Record tensors that were made `aside` and are returned now. A tensor with other references
    existed before."""
    thread = _watcher()
    if thread is None:
        return
    found = list(tensors_in(made))
    times = Counter(map(id, found))
    for tensor in found:
        twice = 2 * times[id(tensor)]  # by the nest and by `found`
        most = _FRESH_ELSE + _BY_CPP * (use_count(tensor) > 1)  # as the base of a view
        if sys.getrefcount(tensor) - twice <= most and is_owned_by_scopes(tensor):
            _record(thread, tensor, frame_at(1))


def _record(thread: ThreadState, made: torch.Tensor, frame: FrameType | None) -> None:
    place = _place_of(thread)
    if place is not None and place.log is not None:
        place.log += note(made, frame)
        if len(place.log) > place.limit:
            place.shorten()


def _place_of(thread: ThreadState) -> Place | None:
    """Return the place that owns what the thread makes now. The GPU part of a backward pass runs on
    a thread of autograd's engine, with the modes of the thread that waits for it."""
    place = current()
    if place is None and thread is not getattr(_threads, "state", None):
        place = thread.lent
    return thread.loose if place is None and thread.is_watching else place


def _look(
    thread: ThreadState,
    func: Any,
    args: Any,
    kwargs: Any,
    count: int,
    made: Any,
    frame: FrameType | None,
) -> None:
    """Record the new tensors of a result that is not a plain new tensor: a nest, a tensor of a
    subclass, one that existed before.

    `count`: the references to `made` where it was returned; here their number is another.
    """
    if made is None:
        if func == _GRAD_SETTER:
            on_grad_set(args[1])
        return
    # The memo of `deepcopy` refers to the copy.
    is_copied = func is _DEEPCOPY
    if isinstance(made, torch.Tensor):
        if (
            args and made is args[0]
        ) or func in GETTERS_OF_OTHERS:  # in place, or it existed before
            return
        if is_owned_by_scopes(made):  # a returned argument has one more reference
            if _is_fresh(made, count - is_copied):
                _record(thread, made, frame)
            return
        found = [(count, made)]
    elif count == FRESH and isinstance(made, _FLAT) and _are_recorded(thread, made, frame):
        return
    elif is_nest(made) and func is not _TOLIST:
        if args and made is args[0]:  # a list whose tensors were changed in place
            return
        # Without the references of the list and of the loop.
        found = [(sys.getrefcount(tensor) - 2, tensor) for tensor in list(tensors_in(made))]
    else:
        return
    given = {id(tensor) for tensor in tensors_in(args[0] if is_copied else (args, kwargs))}
    for references, tensor in found:
        if id(tensor) in given:
            continue
        if not is_owned_by_scopes(tensor):
            on_foreign(tensor, given)
        elif _is_fresh(tensor, references):
            _record(thread, tensor, frame)


def _are_recorded(thread: ThreadState, made: Any, frame: FrameType | None) -> bool:
    """Record the tensors of a list or tuple of new tensors and plain values. Returns False, and
    records nothing, if it holds anything else.

    A returned argument has one more reference. So the arguments, of which there may be thousands,
    need not be compared.
    """
    births: Births = []
    code, instruction = None, 0
    for tensor in made:
        if type(tensor) is _Tensor:
            count = _getrefcount(tensor)
            if count != _FRESH_IN_NEST and not _is_fresh(tensor, count - _MORE_IN_NEST):
                return False
            if code is None:
                _, code, instruction = note(tensor, frame)
            births += (_ref(tensor), code, instruction)
        elif tensor is not None and type(tensor) not in _PLAIN:
            return False
    place = _place_of(thread) if births else None
    if place is not None and place.log is not None:
        place.log += births
        if len(place.log) > place.limit:
            place.shorten()
    return True


def _is_fresh(tensor: torch.Tensor, references: int) -> bool:
    """Return whether the tensor is new: nothing refers to it but the call that returned it and
    C++."""
    return references <= FRESH + _BY_CPP * (use_count(tensor) > 1)


def on_grad_set(value: Any) -> None:
    """Called when a tensor becomes the `.grad` of another; replaced by `torch_hooks`."""


def on_foreign(tensor: torch.Tensor, given: set[int]) -> None:
    """Called for a result that scopes do not own; replaced by `torch_hooks`."""


def is_owned_by_scopes(tensor: torch.Tensor) -> bool:
    """Return whether scopes own tensors of its class: no parameters, no class with a
    `__torch_dispatch__`."""
    kind: Any = type(tensor)
    if kind is _Tensor:
        return True
    return kind.__torch_dispatch__ is _NO_DISPATCH and not issubclass(kind, Parameter)


def _modes() -> list[_Mode]:
    """Return the modes of dispose scopes on the stack."""
    return [mode for mode in function_modes() if type(mode) is _Mode]


def _is_on_stack(mode: _Mode) -> bool:
    return any(other is mode for other in _modes())


def _insert(mode: _Mode) -> None:
    modes = function_modes()
    # PyTorch requires the mode of `set_default_device` to be at the very bottom. `with
    # torch.device(…)` instead pops the top of the stack when it ends: the mode goes below it.
    bottom = modes[0] if modes else None
    is_default = isinstance(bottom, DeviceContext) and hasattr(bottom, "old_device")
    insert_function_mode(mode, len(modes) - is_default)


def _forget_after_fork() -> None:
    """A worker process starts without its parent's scopes."""
    thread: ThreadState | None = getattr(_threads, "state", None)
    if thread is not None:
        remove_function_mode(thread.mode)
        del _threads.state
    _innermost.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
