"""Recursive calls: Python runs the inner ones, uncompiled, also where they meet the compiled name.

@lt.script
def count(n: int) -> int:
    return 0 if n == 0 else 1 + count(n - 1)

count(3)    the program of `count` calls `uncompiled(count)`, whose body finds the compiled
            `count`, which asks `is_inside` and calls the Python function
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from types import FunctionType
from typing import Any

# Functions whose recursive calls Python runs now, by thread. A compiled function looks here first.
running: set[tuple[int, object]] = set()


def is_inside(fn: object) -> bool:
    """Return whether this thread is in a recursive call of the function."""
    return (get_ident(), fn) in running


@functools.cache
def uncompiled(fn: FunctionType) -> Callable[..., Any]:
    """Return the function with its recursive calls left to Python."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = get_ident(), fn
        if key in running:
            return fn(*args, **kwargs)
        running.add(key)
        try:
            return fn(*args, **kwargs)
        finally:
            running.discard(key)

    return call
