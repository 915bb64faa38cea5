"""Functions of the language itself, which compiled code may call: `lt.is_scripting`, `lt.annotate`.

In plain Python they do next to nothing; `builtin_calls` says what they mean in compiled code.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def is_scripting() -> bool:
    """True in compiled code, False in Python."""
    return False


def annotate(the_type: Any, the_value: T) -> T:
    """`the_value`, declared to be of `the_type`, for an empty list or a None."""
    del the_type
    return the_value
