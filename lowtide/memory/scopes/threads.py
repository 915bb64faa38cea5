"""Whether another thread may be using a tensor that ends.

In: the threads that run Python. Out: whether one of them may be inside PyTorch's C++ with a tensor
of this thread's. PyTorch's methods (`x.exp_()`) count no reference to their own tensor and let
other threads run while they compute, so that its memory must not go before that call returns.

    threading.Thread(target=x.exp_).start()
    may_share()                             # True, until that thread has ended

Always: True unless this is the main thread and every other one is known to compute with no tensor
of the main thread's. What a thread is doing is not looked at: one that waits counts, too. Threads
that C has started are not counted.
"""

from __future__ import annotations

import threading
from typing import Any

from lowtide.cpython import count_of_threads
from lowtide.torch_private.private_names import PIN_MEMORY_LOOP

# The class of a thread, or the function that it runs. Where these meet tensors at all, as the two
# of DataLoader do, the tensors are their own or no more is asked of them than where they lie.
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
    """Whether no other thread runs Python code."""
    return not count_of_threads() and threading.get_ident() == threading.main_thread().ident


def may_share() -> bool:
    """Whether a tensor of this thread's may be in use on another thread that runs Python."""
    try:
        return not is_alone() and _may_share()
    except Exception:  # a scope's end must not fail by it, be it for want of memory or of stack
        return True


def _may_share() -> bool:
    # One that is starting has no ident, and is not counted yet.
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
