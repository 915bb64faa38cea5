"""Finds referrers of objects, in few passes over the heap.

In: objects. Out: `Above`: their referrers, the referrers of those, and so on. `gc.get_referrers`
visits every object of the process, so it is called once for all objects of a level. Referrers of
objects with a name are not searched.

    above = Above([x]); above.of(x)      [the list that holds x]
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from typing import Any

from lowtide.cpython import frame_at

_MAX_LEVELS = 12
_MAX_OBJECTS = 20_000
_open: set[int] = set()  # ids of the containers of running searches
_OWN = __name__.rpartition(".")[0]
# Objects with a name, whose referrers are of no interest.
_ENDS = (types.ModuleType, types.BuiltinFunctionType, type)


class Above:
    """The referrers of objects, level by level, up to objects that have a name."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._parents: dict[int, list[Any]] = {}
        self._keep: list[Any] = []  # so that ids are not reused
        self.module_dicts = {
            id(vars(module)): module
            for module in list(sys.modules.values())
            if isinstance(module, types.ModuleType)  # pyright: ignore[reportUnnecessaryIsInstance]
        }
        own = (self.__dict__, self._parents, self._keep, self.module_dicts)
        self._ours = {id(one) for one in own}
        _open.update(self._ours)
        level = list(roots)
        for _ in range(_MAX_LEVELS):
            if not level or len(self._parents) > _MAX_OBJECTS:
                break
            level = self._expand(level)

    def of(self, thing: Any) -> list[Any]:
        """Return the referrers of `thing` that were found."""
        return self._parents.get(id(thing), [])

    def close(self) -> None:
        """Drop all references: the objects found may refer to this one, in a cycle."""
        self._parents.clear()
        self._keep.clear()
        _open.difference_update(self._ours)

    def _expand(self, level: list[Any]) -> list[Any]:
        self._ours |= {id(level), id(frame_at()), id(frame_at(1))}
        wanted: dict[int, list[Any]] = {id(thing): [] for thing in level}
        self._keep += level
        self._parents.update(wanted)
        referrers = gc.get_referrers(*level)
        self._ours |= {id(wanted), id(referrers)}
        self._ours |= {id(parents) for parents in wanted.values()}
        _open.update(self._ours)
        following: dict[int, Any] = {}
        for referrer in referrers:
            if id(referrer) in _open or is_profiler_frame(referrer):
                continue
            for thing in gc.get_referents(referrer):
                parents = wanted.get(id(thing))
                if parents is not None and not any(one is referrer for one in parents):
                    parents.append(referrer)
            if id(referrer) not in self._parents and not self._is_end(referrer):
                following[id(referrer)] = referrer
        del referrers
        return list(following.values())

    def _is_end(self, thing: Any) -> bool:
        if isinstance(thing, _ENDS) or id(thing) in self.module_dicts:
            return True
        if isinstance(thing, types.FunctionType):
            return not is_made_anew(thing)
        return isinstance(thing, dict) and "__builtins__" in thing


def is_made_anew(function: types.FunctionType) -> bool:
    """Return whether there may be many such functions, so that the name does not tell which one it
    is."""
    return "<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__


def is_profiler_frame(thing: Any) -> bool:
    """Return whether `thing` is a frame of the profiler."""
    if isinstance(thing, types.FrameType):
        return str(thing.f_globals.get("__name__", "")).startswith(_OWN)
    return False
