"""Parses a number of bytes as users write it.

In: a whole number, also NumPy's, or a string such as "512MB" (10**6) or "2GiB" (2**30). Out: an int
above zero. Everything else is an error that says what to write.

    budget_bytes("1.5 GB") == budget_bytes(1.5e9) == 1_500_000_000
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from lowtide.config import parse_bytes
from lowtide.errors import LowtideError

_WRITE = "write a number of bytes, or a string such as '512MB' or '2GiB'"


def budget_bytes(size: object, name: str = "budget") -> int:
    """Return the bytes that `size` means. `name`: the argument's name, for messages.

    Raises LowtideError for anything else: `"lots"`, 0, a negative number, NaN, True, None."""
    count: Any = size
    if isinstance(size, Real) and not isinstance(size, Integral) and float(size).is_integer():
        count = int(float(size))
    if isinstance(size, bool) or not isinstance(count, Integral | str):
        raise LowtideError(f"{name}={size!r} is not a number of bytes; {_WRITE}")
    try:
        count = parse_bytes(count.strip() if isinstance(count, str) else int(count))
    except ValueError:
        raise LowtideError(f"{name}={size!r} is not a budget; {_WRITE}") from None
    if count == 0:
        raise LowtideError(f"{name}={size!r} leaves no byte at all; {_WRITE}")
    return count
