"""Calls of compiled functions while a profile runs.

In: a compiled function and its plain Python. Out: what the one or the other returns. The profiler
is a mode of PyTorch, and under such modes compiled functions run as plain Python; they need not
under this one, which steps aside and counts the call as one operator, named after the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def call(
    name: str,
    compiled: Callable[..., Any],
    plain: Callable[..., Any],
    reason: Callable[[], str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """`compiled(…)` if the profiler was all that stood in its way, else `plain(…)`. `reason`: what
    stands in its way, "" if nothing."""
    watch = sys.modules.get("lowtide.memory.profiler.watch")
    watcher = watch.current() if watch is not None else None
    if watcher is None or watcher.is_paused:
        return plain(*args, **kwargs)
    with watcher.paused():
        if not reason():
            with watcher.op(name):
                return compiled(*args, **kwargs)
    return plain(*args, **kwargs)
