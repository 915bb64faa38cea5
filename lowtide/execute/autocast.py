"""Saves the state of autocast in the forward pass, for recomputation in the backward pass.

In: the state of this thread. Out: a context that restores it.

    saved = Autocast.now()          with saved.restored(): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import torch

from lowtide.torch_private import torch_state

_DEVICES: Final = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Autocast:
    """The state by device type: whether autocast is on, and its dtype. Empty if it is off
    everywhere."""

    states: tuple[tuple[str, bool, torch.dtype], ...] = ()

    @staticmethod
    def now() -> Autocast:
        """Return the state of this thread."""
        if not torch_state.autocast_on():
            return Autocast()
        rows = ((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
        return Autocast(tuple(rows))

    @contextlib.contextmanager
    def restored(self) -> Generator[None]:
        """A context in which autocast has the saved state."""
        with contextlib.ExitStack() as stack:
            if self != Autocast.now():
                off = tuple((d, False, torch.get_autocast_dtype(d)) for d in _DEVICES)
                for device, is_on, dtype in self.states or off:
                    stack.enter_context(torch.autocast(device, dtype, enabled=is_on))
            yield
