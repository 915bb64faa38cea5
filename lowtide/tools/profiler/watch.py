"""Finds the user's line and module that call an operator: one `Watcher` per thread.

In: every call into PyTorch that Python makes (a function mode sees them). Out: `notes`, a flat
list of (time, code, instruction, module path, end of the call before), and for large results their
address, shape, dtype. What happens between the end of a call and the next note is nobody's: code
that no mode sees, such as `torch.Tensor(…)` or a C++ extension.
Nothing here knows bytes: these are PyTorch's own events, joined with the notes by time later, on
one clock by means of `anchors`: moments that both sides have.

    y = x - 1        # train.py:12, inside Net.encoder
    notes == [..., 81_334_120, <code of train.py>, 44, "Net.encoder", 81_330_010]

This runs at every operator, so it does as little as it can: 1.5 µs, of which 1.0 are the mode.
"""

from __future__ import annotations

import os
import sysconfig
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, TypeGuard

import torch

from lowtide.cpython import frame_at
from lowtide.tools.profiler.modules import ModulePaths
from lowtide.torch_private.modes import (
    function_depth,
    function_mode_at,
    pop_function_mode,
    push_function_mode,
)
from lowtide.torch_private.profiler import RANGE_BEGINS, RANGE_ENDS, RecordFunction

NOTE_FIELDS = 5  # time, code, offset of the instruction in it, module path, end of the call before
ANCHOR = "lowtide.anchor "
OP = "lowtide.op "
ARENA = "lowtide.arena "
STEP = "lowtide.step"
INSIDE = "lowtide.inside"

_ANCHOR_EVERY_NS = 10_000_000
_LARGE_ELEMENTS = 1024  # results from here on are noted with their shape
_clock_ns: Callable[[], int] = time.perf_counter_ns
_Tensor = torch.Tensor

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SITE_PACKAGES = tuple(filter(None, (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))
_LIBRARY_FOLDERS = tuple(
    folder + os.sep
    for folder in (os.path.dirname(torch.__file__), _PACKAGE, sysconfig.get_path("stdlib"))
)
# Whether a source file is the user's, or a library's, whose lines say nothing to the user.
_is_users: dict[str, bool] = {}
_local = threading.local()


def current() -> Watcher | None:
    """This thread's watcher, None where no profile follows it."""
    return getattr(_local, "watcher", None)


def _nothing() -> None:
    pass


def user_place(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The innermost frame that is not a library's: its code, and where in it; None if all are."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_users = _is_users.get(file)
        if is_users is None:
            is_users = _is_users[file] = not _belongs_to_library(file)
        if is_users:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def _belongs_to_library(file: str) -> bool:
    if file.startswith(("<frozen", "<eval_with_key>", "<__array_function__", "<lowtide ")):
        return True
    if "torchinductor_" in file:  # what torch.compile wrote
        return True
    path = os.path.abspath(file)
    # Packages of users may lie below the standard library's folder.
    if path.startswith(_SITE_PACKAGES):
        return path.startswith(_LIBRARY_FOLDERS[:2])
    return path.startswith(_LIBRARY_FOLDERS)


class Watcher:
    """The notes of one thread; see the module's text. Not a TorchFunctionMode: PyTorch asks for its
    method twice a call, and would have it bound anew each time."""

    def __init__(self, index: int) -> None:
        self.__torch_function__: Callable[..., Any] = self._called
        self.index = index
        self.thread_name = threading.current_thread().name
        self.notes: list[Any] = []
        self.note: Callable[[tuple[int, CodeType | None, int, str, int]], None] = self.notes.extend
        self.code: CodeType | None = None  # the user's that called last
        self.ended_ns = 0
        self.made: list[tuple[int, int, tuple[int, ...], str]] = []  # time, address, shape, dtype
        self.anchors: list[int] = []
        self.next_anchor_ns = 0
        self.module = ""
        self.paths = ModulePaths()
        self.is_paused = False
        self.has_stopped = False
        self.has_ended = False  # the profile's end, which may come before the thread's
        self.depth = 0  # of what is recorded: calls, and calls inside them as in a backward pass
        self.on_end: Callable[[], None] = _nothing
        self._compiled_frame: FrameType | None = None
        self._above_compiled = 0
        self._anchor = RecordFunction(f"{ANCHOR}{index}")

    def _called(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        frame = frame_at(1)
        code = frame.f_code
        if code is self.code:
            at = frame.f_lasti  # which line that is takes longer to find: it is done later
        elif _is_users.get(code.co_filename):
            self.code, at = code, frame.f_lasti
        else:  # a library's, or not seen before
            code, at = user_place(frame)
        now_ns = _clock_ns()
        self.note((now_ns, code, at, self.module, self.ended_ns))
        if now_ns > self.next_anchor_ns:
            self.anchor()
        result = func(*args, **kwargs) if kwargs else func(*args)
        self.ended_ns = _clock_ns()
        if type(result) is _Tensor and result.numel() >= _LARGE_ELEMENTS:
            self._note_result(result)
        return result

    def _note_result(self, result: torch.Tensor) -> None:
        with suppress(Exception):  # no storage of its own: sparse, inside vmap, …
            address = result.untyped_storage().data_ptr()
            dtype = str(result.dtype).removeprefix("torch.")
            self.made.append((time.perf_counter_ns(), address, tuple(result.shape), dtype))

    def anchor(self, count: int = 2) -> None:
        """Moments that both clocks have; more than one, since any may be delayed."""
        for _ in range(count):
            self.anchors.append(time.perf_counter_ns())
            with self._anchor:
                pass
        self.next_anchor_ns = time.perf_counter_ns() + _ANCHOR_EVERY_NS

    def note_place(self, frame: FrameType | None) -> None:
        """A note for what is about to run and is no call that a mode sees."""
        code, at = user_place(frame)
        self.note((time.perf_counter_ns(), code, at, self.module, self.ended_ns))

    # -- on and off --

    def start(self) -> None:
        """Follow this thread from here on."""
        _local.watcher = self
        self.anchor(8)  # the first are slow
        push_function_mode(self)

    def stop(self) -> None:
        """No longer: the last anchors are set."""
        self.anchor(4)
        remove(self)
        _local.watcher = None
        self.has_stopped = True

    @contextmanager
    def on(self) -> Generator[None]:
        """Watching inside, also where PyTorch has put the mode aside, as in a call's own code."""
        is_added = not is_on(self)
        if is_added:
            push_function_mode(self)
        try:
            yield
        finally:
            if is_added:
                remove(self)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Not watching inside: compiled code runs as it would without a profile."""
        above, was_paused = remove(self), self.is_paused
        self.is_paused = True
        try:
            with self.busy():
                yield
        finally:
            self.is_paused = was_paused
            if above is not None:
                put_back(self, above)

    def enter_compiled(self, frame: FrameType) -> None:
        """torch.compile's code begins, called from `frame`."""
        if not self.is_paused and is_on(self):
            self.note_place(frame)
            self.begin()
            self._above_compiled = remove(self) or 0
            self.is_paused = True
            self._compiled_frame = frame

    def leave_compiled(self, frame: FrameType) -> None:
        """torch.compile's code ends, if it is `frame` that called it."""
        if self._compiled_frame is frame:
            self.is_paused = False
            self._compiled_frame = None
            self.depth -= 1
            put_back(self, self._above_compiled)

    @contextmanager
    def busy(self) -> Generator[None]:
        """Around what PyTorch records and no mode sees: the profile does not end meanwhile."""
        self.begin()
        try:
            yield
        finally:
            self.depth -= 1

    def begin(self) -> None:
        """One more call that the profile's end has to wait for, if it has not come yet."""
        self.depth += 1  # before the look at `has_ended`: the end does it the other way about
        if self.has_ended and self.depth == 1:
            self.leave()

    def leave(self) -> None:
        """On this thread: its recording ends, if it has not."""
        self.has_stopped = True
        if current() is self:
            _local.watcher = None
            self.on_end()

    @contextmanager
    def op(self, name: str) -> Generator[None]:
        """What happens inside counts as one operator of this name, called at the user's line."""
        self.note_place(frame_at(2))
        with self.busy(), RecordFunction(OP + name):
            yield

    def mark(self, name: str) -> None:
        """Puts an event of no length into PyTorch's recording of this thread."""
        with self.busy(), RecordFunction(name):
            pass

    def call_module(
        self, call: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """`call(module, …)`, whose operators are the module's."""
        before = self.module
        self.module = self.paths.path(before, module)
        try:
            return call(module, *args, **kwargs)
        finally:
            self.module = before


class ThreadWatcher(Watcher):
    """The watcher of a thread that may run on when the profile has ended. The end waits until the
    thread `is_busy` no more: PyTorch frees what an event that has begun will write to."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._ranges = 0  # of record_function, as an optimizer's step: they count as calls

    @property
    def is_busy(self) -> bool:
        """Whether an event of this thread has begun, and not ended."""
        return self.depth > 0 and not self.has_stopped

    def end(self) -> None:
        """The profile ends: at its next call the thread does `on_end`, and is watched no more. It
        stays on the stack, as a call cannot take off the mode that it is in: see `let_go`."""
        self.has_ended = True

    def _called(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.begin()
        try:
            if self.has_stopped:
                return func(*args, **(kwargs or {}))
            code, at = user_place(frame_at(1))
            now_ns = time.perf_counter_ns()
            self.note((now_ns, code, at, self.module, self.ended_ns))
            if now_ns > self.next_anchor_ns:
                self.anchor()
            result = func(*args, **(kwargs or {}))
            self.ended_ns = time.perf_counter_ns()
            if func is RANGE_BEGINS:
                self.depth += 1
                self._ranges += 1
            elif func is RANGE_ENDS and self._ranges:
                self.depth -= 1
                self._ranges -= 1
            if isinstance(result, torch.Tensor) and result.numel() >= _LARGE_ELEMENTS:
                self._note_result(result)
            return result
        finally:
            self.depth -= 1


def inside() -> Any:
    """An event for all that this thread does between its `__enter__` and `__exit__`: what a GPU's
    allocator tells outside of events is not in PyTorch's tree, as where Python lets go of tensors.
    """
    return RecordFunction(INSIDE)


def let_go() -> None:
    """Takes off this thread all watchers whose profile has ended; not inside a call of theirs.

    A thread must not end with one: PyTorch would let go of it when Python may be gone."""
    watcher = current()
    if _has_ended(watcher):
        watcher.leave()
    for mode in [function_mode_at(index) for index in range(function_depth())]:
        if _has_ended(mode):
            remove(mode)


def _has_ended(mode: object) -> TypeGuard[ThreadWatcher]:
    return isinstance(mode, ThreadWatcher) and mode.has_ended


def is_on(mode: object) -> bool:
    """Whether `mode` is on this thread's stack of function modes."""
    return any(function_mode_at(index) is mode for index in range(function_depth()))


def remove(mode: object) -> int | None:
    """Takes `mode` off the stack: how many modes lie above it, None if it is not on the stack."""
    if not is_on(mode):
        return None
    above: list[Any] = []
    while (top := pop_function_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        push_function_mode(other)
    return len(above)


def put_back(mode: object, above: int) -> None:
    """Puts `mode` where it was: whoever put the `above` modes on top of it takes them off by
    popping, and must not meet another."""
    others = [pop_function_mode() for _ in range(min(above, function_depth()))]
    for one in (mode, *reversed(others)):
        push_function_mode(one)
