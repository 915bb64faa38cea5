"""The table of ops that are written by other ops.

In: the name of an op. Out: a Python function with the op's parameters; see `composed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_WRITTEN: Final[dict[str, Callable[..., Any]]] = {}


def op_written(target: str) -> Callable[..., Any] | None:
    """Return the function for `torch.median`, `Tensor.median_` or `F.grid_sample`; None if there is
    none."""
    root, _, name = target.rpartition(".")
    return _WRITTEN.get(name) if root in ("torch", "Tensor", "F", "torch.linalg") else None


def written(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the function under these names."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _WRITTEN.update(dict.fromkeys(names, function))
        return function

    return add
