"""PyTorch's profiler from within: marks, the recording of operators and allocations.

PyTorch records a thread if the thread's local state says so, and hands that state on to the
threads of autograd, not to those of Python. `Following` carries it over: the callbacks of
operators and the receiver of allocations, by functions that libtorch exports. Where it does not
(Windows), threads that Python starts are not followed.

    start_recording()
    following = Following()
    before = following.enter()          # in another thread
    leave(before)                       # in that thread
    events = stop_recording()           # in the first one: PyTorch's tree of events
    following.close()
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import torch

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_ranges: Final[Any] = torch.ops.profiler

# A mark: a context with a name.
RecordFunction: Final[Any] = _C._profiler._RecordFunctionFast
# What a mode sees of `record_function`: its event is open between the two.
RANGE_BEGINS: Final[Any] = _ranges._record_function_enter_new
RANGE_ENDS: Final[Any] = _ranges._record_function_exit._RecordFunction
# Of `torch.autograd.profiler`: what starts one.
STARTERS: Final = ("_prepare_profiler", "_enable_profiler")

_GET_CALLBACKS = "_ZN2at24get_record_function_tls_Ev"
_SET_CALLBACKS = "_ZN2at24set_record_function_tls_ERKNS_17RecordFunctionTLSE"
_CLEAR_CALLBACKS = "_ZN2at25clearThreadLocalCallbacksEv"
_GET_RECEIVER = "_ZN3c1020ThreadLocalDebugInfo7currentEv"
_SET_RECEIVER = "_ZN3c1020ThreadLocalDebugInfo22_forceCurrentDebugInfoESt10shared_ptrIS0_E"
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def start_recording() -> None:
    """Begin to record this thread. Raises RuntimeError if PyTorch's profiler is on already."""
    if _C._autograd._profiler_enabled():
        raise RuntimeError("PyTorch's profiler is on already")
    kinds = _C._profiler
    activities = {kinds.ProfilerActivity.CPU}
    config = kinds.ProfilerConfig(
        kinds.ProfilerState.KINETO,
        False,  # shapes: three times the cost
        True,  # memory
        False,  # stacks: they know functions, not lines
        False,
        False,
        kinds._ExperimentalConfig(),
    )
    with quiet_kineto():
        _C._autograd._prepare_profiler(config, activities)
        _C._autograd._enable_profiler(config, activities)


def stop_recording() -> list[Any]:
    """End it. The outermost events of all threads, with those inside them as children."""
    return _C._autograd._disable_profiler().experimental_event_tree()


@contextmanager
def quiet_kineto() -> Generator[None]:
    """PyTorch's profiler starts without a line on stderr: libkineto reads the level that it prints
    at once, when it is first used."""
    is_ours = _LOG_LEVEL not in os.environ
    if is_ours:
        os.environ[_LOG_LEVEL] = "6"
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_LOG_LEVEL]


class Following:
    """Carries the recording of the thread that this was made on into others, until it is closed.

    before = following.enter()      # in another thread, at the end leave(before)
    """

    def __init__(self) -> None:
        functions = _functions()
        self.can_follow = functions is not None
        # In this thread's local memory: it must live as long as threads enter.
        self._callbacks = functions.get_callbacks() if functions is not None else 0
        self._receiver = _receiver()
        self._lock = threading.Lock()

    def enter(self) -> Any:
        """Record this thread as well. Returns what received its allocations before."""
        functions = _functions()
        if functions is None:
            return None
        before = _receiver()
        with self._lock:
            functions.set_receiver(self._receiver)  # which takes the reference over
            self._receiver = _receiver()
        functions.set_callbacks(self._callbacks)
        return before

    def close(self) -> None:
        """Lets go of the receiver; on a thread that is not recorded (any more)."""
        functions = _functions()
        if functions is not None:
            before = _receiver()
            functions.set_receiver(self._receiver)
            functions.set_receiver(before)


def leave(before: Any) -> None:
    """No longer record this thread, which some `Following` entered."""
    functions = _functions()
    if functions is not None:
        functions.clear_callbacks()
        functions.set_receiver(before)


def _receiver() -> Any:
    """Return the receiver of this thread's allocations: one reference, which the caller owns."""
    functions = _functions()
    if functions is None:
        return None
    # A std::shared_ptr: two pointers, the second to the count of references.
    held = (ctypes.c_void_p * 2)()
    functions.get_receiver(held)
    return held


class _Functions:
    """libtorch's functions on the state of the calling thread, by their C++ names."""

    def __init__(self, torch_library: ctypes.CDLL, c10: ctypes.CDLL) -> None:
        """Raises AttributeError if this build does not export them by these names."""
        self.get_callbacks = torch_library[_GET_CALLBACKS]
        self.get_callbacks.restype = ctypes.c_void_p
        self.set_callbacks = torch_library[_SET_CALLBACKS]
        self.set_callbacks.argtypes = (ctypes.c_void_p,)
        self.clear_callbacks = torch_library[_CLEAR_CALLBACKS]
        self.get_receiver = c10[_GET_RECEIVER]  # returns through its hidden first argument
        self.set_receiver = c10[_SET_RECEIVER]
        for function in (self.set_callbacks, self.clear_callbacks, self.get_receiver):
            function.restype = None
        self.set_receiver.restype = None


@functools.cache
def _functions() -> _Functions | None:
    if sys.platform not in ("linux", "darwin"):
        return None
    suffix = "dylib" if sys.platform == "darwin" else "so"
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        return _Functions(
            ctypes.CDLL(os.path.join(folder, f"libtorch_cpu.{suffix}")),
            ctypes.CDLL(os.path.join(folder, f"libc10.{suffix}")),
        )
    except (OSError, AttributeError):
        return None
