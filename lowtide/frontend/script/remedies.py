"""What an error says to write instead of a name that is not there.

alike("sine", names, "…")  →  "`sin` or `sinc`"       the names nearest to it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MEMBERS = "a method or attribute that it has"
CALLABLES = "a function, a method, a class or a module"
INDEXED = "an item of a list, a tuple, a dict, a str or a tensor"
IGNORED = "a function marked `@lt.ignore` that does it, called in its place"
_NEAR = 0.76  # `relue` is near to `relu`, `nosuch` is not near to `cosh`


def alike(name: str, names: Iterable[str], otherwise: str = MEMBERS) -> str:
    """The names that look like this one; `otherwise` if none does."""
    near = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], 3, _NEAR)
    return " or ".join(f"`{n}`" for n in near) or otherwise
