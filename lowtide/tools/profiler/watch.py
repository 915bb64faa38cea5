"""Notes the user's line and module of each call into PyTorch: one `Watcher` per thread.

In: every call into PyTorch from Python, seen by a function mode. Out: `notes`, a flat list of
(time, code, instruction, module path, end of the previous call); and the address, shape and dtype
of large results. Events between the end of a call and the next note come from code that no mode
sees, such as `torch.Tensor(…)` or a C++ extension: they have no line.

Bytes are in PyTorch's own events. These are matched with the notes by time later; `anchors` are
moments recorded on both clocks.

    y = x - 1        # train.py:12, inside Net.encoder
    notes == [..., 81_334_120, <code of train.py>, 44, "Net.encoder", 81_330_010]

This runs at every operator, so it does little: it takes 1.5 µs, of which the mode takes 1.0.
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
    function_modes,
    insert_function_mode,
    push_function_mode,
    remove_function_mode,
)
from lowtide.torch_private.profiler import RANGE_BEGINS, RANGE_ENDS, RecordFunction

NOTE_FIELDS = 5  # time, code, offset of the instruction, module path, end of the previous call
ANCHOR = "lowtide.anchor "
OP = "lowtide.op "
ARENA = "lowtide.arena "
STEP = "lowtide.step"
INSIDE = "lowtide.inside"

_ANCHOR_EVERY_NS = 10_000_000
_LARGE_ELEMENTS = 1024  # results of at least this size are noted with their shape
_clock_ns: Callable[[], int] = time.perf_counter_ns
_Tensor = torch.Tensor

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SITE_PACKAGES = tuple(filter(None, (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))
_LIBRARY_FOLDERS = tuple(
    folder + os.sep
    for folder in (os.path.dirname(torch.__file__), _PACKAGE, sysconfig.get_path("stdlib"))
)
# Whether a source file is the user's, not a library's.
_is_users: dict[str, bool] = {}
_local = threading.local()


def current() -> Watcher | None:
    """Return this thread's watcher; None if no profile follows the thread."""
    return getattr(_local, "watcher", None)


def _nothing() -> None:
    pass


def user_place(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Return the code and instruction of the innermost frame of the user's code; None, 0 if there
    is none."""
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
    # site-packages is below the standard library's folder.
    if path.startswith(_SITE_PACKAGES):
        return path.startswith(_LIBRARY_FOLDERS[:2])
    return path.startswith(_LIBRARY_FOLDERS)


class Watcher:
    """The notes of one thread; see the module's text. Not a TorchFunctionMode: PyTorch reads the
    method twice a call, and would bind it each time."""

    def __init__(self, index: int) -> None:
        self.__torch_function__: Callable[..., Any] = self._called
        self.index = index
        self.thread_name = threading.current_thread().name
        self.notes: list[Any] = []
        self.note: Callable[[tuple[int, CodeType | None, int, str, int]], None] = self.notes.extend
        self.code: CodeType | None = None  # the user's code that called last
        self.ended_ns = 0
        self.made: list[tuple[int, int, tuple[int, ...], str]] = []  # time, address, shape, dtype
        self.anchors: list[int] = []
        self.next_anchor_ns = 0
        self.module = ""
        self.paths = ModulePaths()
        self.is_paused = False
        self.has_stopped = False
        self.has_ended = False  # whether the profile has ended, while the thread may run on
        self.depth = 0  # of nested recorded calls, such as those of hooks in a backward pass
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
            at = frame.f_lasti  # its line is found later, since that takes longer
        elif _is_users.get(code.co_filename):
            self.code, at = code, frame.f_lasti
        else:  # a library's code, or not seen before
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
        with suppress(Exception):  # without a storage: sparse, inside vmap, …
            address = result.untyped_storage().data_ptr()
            dtype = str(result.dtype).removeprefix("torch.")
            self.made.append((time.perf_counter_ns(), address, tuple(result.shape), dtype))

    def anchor(self, count: int = 2) -> None:
        """Record moments on both clocks; several, since any may be delayed."""
        for _ in range(count):
            self.anchors.append(time.perf_counter_ns())
            with self._anchor:
                pass
        self.next_anchor_ns = time.perf_counter_ns() + _ANCHOR_EVERY_NS

    def note_place(self, frame: FrameType | None) -> None:
        """Make a note for a call that no mode sees."""
        code, at = user_place(frame)
        self.note((time.perf_counter_ns(), code, at, self.module, self.ended_ns))

    # -- on and off --

    def start(self) -> None:
        """Follow this thread from here on."""
        _local.watcher = self
        self.anchor(8)  # the first are slow
        push_function_mode(self)

    def stop(self) -> None:
        """Stop following this thread."""
        self.anchor(4)
        remove_function_mode(self)
        _local.watcher = None
        self.has_stopped = True

    @contextmanager
    def on(self) -> Generator[None]:
        """A context with the mode on, also inside a call, where PyTorch has removed it."""
        is_added = not is_on(self)
        if is_added:
            push_function_mode(self)
        try:
            yield
        finally:
            if is_added:
                remove_function_mode(self)

    @contextmanager
    def paused(self) -> Generator[None]:
        """A context with the mode off: compiled code runs as without a profile."""
        above, was_paused = remove_function_mode(self), self.is_paused
        self.is_paused = True
        try:
            with self.busy():
                yield
        finally:
            self.is_paused = was_paused
            if above is not None:
                insert_function_mode(self, above)

    def enter_compiled(self, frame: FrameType) -> None:
        """Remove the mode: code of torch.compile begins, called from `frame`."""
        if not self.is_paused and is_on(self):
            self.note_place(frame)
            self.begin()
            self._above_compiled = remove_function_mode(self) or 0
            self.is_paused = True
            self._compiled_frame = frame

    def leave_compiled(self, frame: FrameType) -> None:
        """Put the mode back, if it was `frame` that called the compiled code."""
        if self._compiled_frame is frame:
            self.is_paused = False
            self._compiled_frame = None
            self.depth -= 1
            insert_function_mode(self, self._above_compiled)

    @contextmanager
    def busy(self) -> Generator[None]:
        """A context for calls that PyTorch records and no mode sees: the profile's end waits."""
        self.begin()
        try:
            yield
        finally:
            self.depth -= 1

    def begin(self) -> None:
        """Count one more call for which the profile's end must wait."""
        self.depth += 1  # before reading `has_ended`: the end sets that before reading `depth`
        if self.has_ended and self.depth == 1:
            self.leave()

    def leave(self) -> None:
        """End the recording of this thread, on which it is called."""
        self.has_stopped = True
        if current() is self:
            _local.watcher = None
            self.on_end()

    @contextmanager
    def op(self, name: str) -> Generator[None]:
        """A context that is recorded as one operator of this name, at the user's line."""
        self.note_place(frame_at(2))
        with self.busy(), RecordFunction(OP + name):
            yield

    def mark(self, name: str) -> None:
        """Record an event without duration on this thread."""
        with self.busy(), RecordFunction(name):
            pass

    def call_module(
        self, call: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Return `call(module, …)`; notes inside have the module's path."""
        before = self.module
        self.module = self.paths.path(before, module)
        try:
            return call(module, *args, **kwargs)
        finally:
            self.module = before


class ThreadWatcher(Watcher):
    """The watcher of a thread that may outlive the profile. The profile's end waits while the
    thread `is_busy`: an event that has begun writes into memory that PyTorch frees at the end."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._ranges = 0  # of record_function, such as an optimizer's step: they count as calls

    @property
    def is_busy(self) -> bool:
        """Return whether an event of this thread has begun and not ended."""
        return self.depth > 0 and not self.has_stopped

    def end(self) -> None:
        """Note the profile's end: at its next call the thread calls `on_end`, and its recording
        ends. The mode stays on the stack, since a call cannot remove the mode it is in: see
        `let_go`."""
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
            result = super()._called(func, types, args, kwargs)
            if func is RANGE_BEGINS:
                self.depth += 1
                self._ranges += 1
            elif func is RANGE_ENDS and self._ranges:
                self.depth -= 1
                self._ranges -= 1
            return result
        finally:
            self.depth -= 1


def inside() -> Any:
    """Return an event around everything that this thread does between its `__enter__` and
    `__exit__`. Outside of all events PyTorch would not record a GPU's frees, such as those when
    Python frees tensors."""
    return RecordFunction(INSIDE)


def let_go() -> None:
    """Remove from this thread all watchers whose profile has ended. Not to be called within a mode.

    A thread must not end with one: PyTorch would free it when the interpreter may be gone."""
    watcher = current()
    if _has_ended(watcher):
        watcher.leave()
    for mode in function_modes():
        if _has_ended(mode):
            remove_function_mode(mode)


def _has_ended(mode: object) -> TypeGuard[ThreadWatcher]:
    return isinstance(mode, ThreadWatcher) and mode.has_ended


def is_on(mode: object) -> bool:
    """Return whether `mode` is on this thread's stack of function modes."""
    return any(other is mode for other in function_modes())
