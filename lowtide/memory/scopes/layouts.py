"""Where CPython keeps things: the only place that knows.

In: the version that runs. Out: offsets in bytes, of what lies in memory as C structs, and whether
they are those of this version and build.

Source: `Include/internal/pycore_frame.h`, `pycore_dict.h` and `Include/cpython/object.h` of each
version. `operands.can_see` tries them out before they are relied on.
"""

from __future__ import annotations

import sys
import sysconfig

_VERSIONS = ((3, 11), (3, 12), (3, 13))  # what is below is the same in all of them
# PyFrameObject: its _PyInterpreterFrame. In that: an int, how high the stack is when Python was
# called from there, -1 while C works on it; locals, and the stack after them.
FRAME, TOP, LOCALS = 24, 64, 72
# PyObject, in words: the count of references, the type, and the rest.
TYPE, REST = 1, 2
# PyTypeObject, and what of it is read.
TYPE_BYTES, TYPE_CALL, TYPE_FLAGS, TYPE_BASE = 264, 128, 168, 256
IS_HEAP, IS_LIST, IS_TUPLE, IS_DICT = 1 << 9, 1 << 25, 1 << 26, 1 << 29
# PyDictKeysObject: its head, and in that: how long its index is, whether all keys are text, so that
# an entry has two words and not three, how many more there may be, and how many there are.
KEYS_BYTES, LOG_INDEX_BYTES, KEYS_KIND, USABLE_AND_COUNT = 32, 9, 10, 16
MOST_SHARED = 31  # values of dicts that share their keys, and their sizes
# PyGenObject: how far before its frame a char says whether it waits, which is below zero.
GENERATOR_STATE = 5
# A block of a deque: left, items, right.
DEQUE_ITEMS = 64


def _is_usual() -> bool:
    is_locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    is_plain = not hasattr(sys, "gettotalrefcount") and not hasattr(sys, "getobjects")
    return sys.implementation.name == "cpython" and is_locked and is_plain


HAS_LAYOUT = sys.version_info[:2] in _VERSIONS and _is_usual()
