"""The private parts of CPython that are used here: frames, threads, locks after a fork.

Functions stand under a plain name as they are: no frame lies between.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

_threads: Final[Any] = _thread
_executor: Final[Any] = concurrent.futures.thread

# The frame that is so many calls up; 0 is the caller's own.
frame_at: Final[Callable[..., FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]
# The innermost frame of each thread, by its id.
frames_of_threads: Final[Callable[[], Mapping[int, FrameType]]] = sys._current_frames  # pyright: ignore[reportPrivateUsage]
# How many threads run, those that Python started.
count_of_threads: Final[Callable[[], int]] = _threads._count
# A piece of work of a ThreadPoolExecutor.
WorkItem: Final[Any] = _executor._WorkItem
CACHED_FUNCTION: Final = "_lru_cache_wrapper"  # the class of what `functools.cache` gives


def free_after_fork(lock: Any) -> None:
    """Reset a lock in a forked child: its owner may not exist there."""
    lock._at_fork_reinit()
