"""PyTorch's cache of autocast's casts, for tensors without values.

In: the ops that a mode sees. Out: for the cast of a weight that was cast before in this block of
autocast, the tensor that it gave; then PyTorch's own cache is emptied, from which a later call, or
another thread, would take what has no values.

Under a mode nobody can tell a cast of autocast's from one that the program asks for in its block:
that counts as kept, too. Each use of a weight has a gradient of its own in float32 here, where in
PyTorch one is made of their sum: more is predicted than is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.memory.casts import is_weight, nesting

Tensor = torch.Tensor
_CAST: Final = torch.ops.aten._to_copy.default
_CASTS: Final = (torch.bfloat16, torch.float16)


def is_cast(func: Any) -> bool:
    """Whether the op may be one of autocast's casts."""
    return func is _CAST


class CastCache:
    """See the module's text."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Any], tuple[Tensor, Tensor]] = {}
        self._is_unclean = False

    def clean(self) -> None:
        """Between two ops: empties PyTorch's, and forgets what has ended."""
        if self._is_unclean:
            torch.clear_autocast_cache()
            self._is_unclean = False
        if self._kept and not nesting():
            self._kept.clear()

    def find(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """What such a cast gave before."""
        if not self._is_kept(func, args, kwargs):
            return None
        self._is_unclean = True
        found = self._kept.get((id(args[0]), kwargs["dtype"]))
        return None if found is None else found[1]

    def keep(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        """Of this op, if it is one."""
        if self._is_kept(func, args, kwargs):
            self._kept[id(args[0]), kwargs["dtype"]] = args[0], result

    def ended(self) -> None:
        """Autocast has, as it has where a backward pass begins."""
        self._kept.clear()

    @staticmethod
    def _is_kept(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if func is not _CAST or kwargs.get("dtype") not in _CASTS or not nesting():
            return False
        is_single = args[0].dtype is torch.float32
        return is_single and is_weight(args[0]) and torch.is_autocast_cache_enabled()
