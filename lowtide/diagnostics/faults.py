"""Internal faults: raised in tests; in a user's program, one warning, and PyTorch runs that part.

`LOWTIDE_STRICT=1`, or `strict(True)`, raises them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Generator

_state = {"strict": os.environ.get("LOWTIDE_STRICT") == "1"}
_warned: set[str] = set()


@contextlib.contextmanager
def strict(on: bool = True) -> Generator[None]:
    """Internal faults are raised (or, with False, survived) inside the block."""
    before, _state["strict"] = _state["strict"], on
    try:
        yield
    finally:
        _state["strict"] = before


def survive(error: Exception, where: str, instead: str = "PyTorch runs it") -> str:
    """Raises the fault if faults are to be seen; else warns once, and says it in one line."""
    if _state["strict"]:
        raise error
    text = f"{where}: internal error, {instead} instead ({type(error).__name__}: {error})"
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return text
