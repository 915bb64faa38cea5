"""Python objects that programs refer to by name: classes, enums, functions left to Python.

In: an object. Out: a name that is unique in this process; `find` gives the object of a name.

    name_of(Point)           ==  "shapes.Point"
    find("shapes.Point")     is  Point

Invariant: two objects never share a name, also if they were defined at the same place.
"""

from __future__ import annotations

import threading

_names: dict[int, str] = {}
_objects: dict[str, object] = {}
_lock = threading.Lock()


def name_of(obj: object) -> str:
    """Return the name of an object, and keep the object alive."""
    known = _names.get(id(obj))
    if known is not None:
        return known
    module = getattr(obj, "__module__", None) or "builtins"
    stem = f"{module}.{getattr(obj, '__qualname__', type(obj).__name__)}".replace("<locals>.", "")
    with _lock:
        name, count = stem, 1
        while name in _objects:
            count += 1
            name = f"{stem}:{count}"
        _objects[name] = obj
        return _names.setdefault(id(obj), name)


def find(name: str) -> object:
    """Return the object of this name; raises KeyError."""
    return _objects[name]
