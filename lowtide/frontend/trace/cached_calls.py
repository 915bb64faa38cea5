"""Calls of cached functions while a trace runs.

In: the frame in which Python computes a hash. Out: whether it did so to look into a cache of
`functools.lru_cache`, which it does not tell: C code calls `__hash__`, whose caller is that frame.

    shape = (x.shape[0], 3)
    plan = _plan(shape)         @lru_cache: what it gave for 4 does not hold for the size
    if (4, 3) in table:         a lookup like any other, for which a size is its number

Invariant: where the source of the call is not at hand, the answer is no.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import types
from typing import Final

from lowtide.cpython import CACHED_FUNCTION

_MISSING: Final = object()


def is_cached_call(frame: types.FrameType) -> bool:
    """Return whether the frame is about to call a function of `functools.lru_cache`."""
    callee = _callee(frame.f_code, frame.f_lasti)
    if callee is None:
        return False
    found = _named(callee, frame)
    found = getattr(found, "__func__", found)  # a static method, or a class's
    return type(found).__name__ == CACHED_FUNCTION


@functools.lru_cache(maxsize=1024)
def _callee(code: types.CodeType, instruction: int) -> ast.expr | None:
    """Return the expression in the source that the instruction calls; None if it is no call."""
    places = code.co_positions()
    first, last, begin, end = next(itertools.islice(places, instruction // 2, None))
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        tree = ast.parse(b"(" + b"".join(lines) + b")", mode="eval")
    except SyntaxError:
        return None
    return tree.body.func if isinstance(tree.body, ast.Call) else None


def _named(node: ast.expr, frame: types.FrameType) -> object:
    """Return the value of `name` or `base.name` in the frame, without running code."""
    if isinstance(node, ast.Attribute):
        base = _named(node.value, frame)
        return _MISSING if base is _MISSING else inspect.getattr_static(base, node.attr, _MISSING)
    if not isinstance(node, ast.Name):
        return _MISSING
    scopes = (frame.f_locals, frame.f_globals, frame.f_builtins)
    return next((s[node.id] for s in scopes if node.id in s), _MISSING)
