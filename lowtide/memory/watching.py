"""Runs compiled code while a profile runs or a dispose scope is open.

In: a compiled function, or a part of one. Out: its result. Both watchers are PyTorch function
modes, which see every PyTorch function that Python calls. They must not see Lowtide's own calls.

    a profile          records the whole call as one operator, named after the function (`call`)
    a dispose scope    owns the results of a compiled part (`register_results`), not its
                       temporaries (`aside`)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_SCOPES = "lowtide.memory.scopes.watch"
_PROFILER = "lowtide.tools.profiler.watch"


def call(
    name: str,
    compiled: Callable[..., Any],
    plain: Callable[..., Any],
    reason: Callable[[], str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call `compiled` with the profiler paused if nothing else prevents compiled code; else call
    `plain`. `reason()`: what prevents it, "" if nothing."""
    watch = sys.modules.get(_PROFILER)
    watcher = watch.current() if watch is not None else None
    if watcher is None or watcher.is_paused:
        return plain(*args, **kwargs)
    with watcher.paused():
        if not reason():
            with watcher.op(name):
                return compiled(*args, **kwargs)
    return plain(*args, **kwargs)


def aside() -> AbstractContextManager[None]:
    """Return a context in which no dispose scope owns what this thread makes: it is Lowtide's
    own."""
    watch = sys.modules.get(_SCOPES)
    return nullcontext() if watch is None else watch.aside()


def register_results(made: Any) -> None:
    """Give these tensors, which were made `aside`, to the innermost scope."""
    watch = sys.modules.get(_SCOPES)
    if watch is not None:
        watch.register_results(made)
