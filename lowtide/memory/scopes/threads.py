"""Decides whether another thread may be using a tensor that is disposed.

In: the threads that run Python. Out: whether one of them may be inside PyTorch's C++ with a tensor
of this thread. PyTorch's methods (`x.exp_()`) hold no reference to `x` and release the GIL while
they compute. The memory of `x` must not be freed before such a call returns.

    threading.Thread(target=x.exp_).start()
    may_share()                             # True, until that thread has ended

Invariant: True unless this is the main thread and every other thread is known not to compute with
its tensors. A thread that waits counts, too: stacks are not inspected. Threads started by C are not
counted.
"""

from __future__ import annotations

import threading
from typing import Any

from lowtide.cpython import count_of_threads
from lowtide.torch_private.private_names import PIN_MEMORY_LOOP

# Classes of threads, or functions that they run, which compute with no tensor of the main thread.
# Those of DataLoader use only their own tensors, or read where a tensor is stored.
_SERVANTS = frozenset({
    "tqdm._monitor.TMonitor",
    "multiprocessing.queues.Queue._feed",
    PIN_MEMORY_LOOP,
    "IPython.core.history.HistorySavingThread",
    "ipykernel.control.ControlThread",
    "ipykernel.heartbeat.Heartbeat",
    "ipykernel.iostream.IOPubThread._thread_main",
})  # fmt: skip


def is_alone() -> bool:
    """Return whether no other thread runs Python code."""
    return not count_of_threads() and threading.get_ident() == threading.main_thread().ident


def may_share() -> bool:
    """Return whether a tensor of this thread may be in use on another thread that runs Python."""
    try:
        return not is_alone() and _may_share()
    except Exception:  # such as MemoryError or RecursionError: a scope's end must not fail
        return True


def _may_share() -> bool:
    # A thread that is starting has no ident, and is not counted yet.
    servants = sum(
        thread.ident is not None and _work_of(thread) in _SERVANTS
        for thread in threading.enumerate()
    )
    is_main = threading.get_ident() == threading.main_thread().ident
    return not is_main or servants < count_of_threads()


def _work_of(thread: threading.Thread) -> str:
    work: Any = type(thread)
    if work is threading.Thread:
        work = getattr(thread, "_target", None)
    return f"{getattr(work, '__module__', '')}.{getattr(work, '__qualname__', '')}"
