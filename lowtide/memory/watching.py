"""Runs compiled code while a profile runs or a dispose scope is open.

In: a compiled function, or a part of one. Out: what it returns. Both watchers are modes of PyTorch,
which see each PyTorch function that Python calls. They must not count Lowtide's own calls.

| watcher | sees |
| --- | --- |
| a profile | that the whole call is one operator, named after the function (`call`) |
| a dispose scope | what a compiled part gave, as if the user's line had made it (`told`); not what it took on the way (`aside`) |
"""  # noqa: E501

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
    """`compiled(…)` if the profiler was all that stood in its way, else `plain(…)`. `reason`: what
    stands in its way, "" if nothing."""
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
    """No dispose scope takes what this thread makes inside: it is Lowtide's own."""
    watch = sys.modules.get(_SCOPES)
    return nullcontext() if watch is None else watch.aside()


def told(made: Any) -> None:
    """These tensors, made `aside`, are the innermost scope's."""
    watch = sys.modules.get(_SCOPES)
    if watch is not None:
        watch.told(made)
