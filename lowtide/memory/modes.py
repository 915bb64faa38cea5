"""The base of Lowtide's own dispatch modes.

    class Counts(OwnMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None): ...

PyTorch notes in one variable of the process whether a mode is on that captured code must not run
under. Each mode saves it on entry and restores it on exit. If two threads leave their modes in
another order than they entered them, the variable stays set: `torch.compile` then captures nothing,
and the guards of what it has captured fail. So an `OwnMode` sets the variable on exit to what this
thread's modes say.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.utils._python_dispatch as dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_FLAG: Final = "_is_in_any_mode_without_ignore_compile_internals"  # torch 2.11 may lack it
_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]


class OwnMode(TorchDispatchMode):
    """Captured code runs under it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it PyTorch would import it, which takes seconds

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Guards of captured code pass over this mode."""
        return True

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if getattr(dispatch, _FLAG, False):
            stack = map(_C._get_dispatch_stack_at, range(_C._len_torch_dispatch_stack()))
            is_on = not all(mode.ignore_compile_internals() for mode in stack)
            setattr(dispatch, _FLAG, is_on)
            _C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals(is_on)
