"""Warnings that point at the user's line, past the frames of Lowtide and PyTorch.

warn("f: the budget is not enforced: …")        train.py:12: RuntimeWarning: f: its budget is …
"""

from __future__ import annotations

import sys
import warnings

from lowtide.cpython import frame_at
from lowtide.memory.scopes.allocation_sites import user_frame
from lowtide.memory.scopes.hidden import hide


def warn(text: str) -> None:
    """Show a RuntimeWarning at the innermost of the user's lines on the stack."""
    here = frame_at(1)
    frame, level = user_frame(here), 2
    while frame is not None and here is not frame and here.f_back is not None:
        level, here = level + 1, here.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


hide(sys.modules[__name__])
