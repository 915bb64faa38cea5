"""Modes that look at what Python runs in a call of something compiled.

Captured code runs under them as ever.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class LooksOn(TorchDispatchMode):
    """See the module's text."""

    looks_on = True  # by which `plain` knows it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it PyTorch would import it, which takes seconds

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Captured code runs under this mode."""
        return True
