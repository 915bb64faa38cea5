"""Results, on the meta device, of ops that PyTorch has there otherwise, or not at all.

In: an ATen op and its arguments, on the meta device. Out: empty results as the op's own device
makes them; None for ops that PyTorch is right about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lowtide.memory import attention, cudnn, linalg, losses, onednn, recurrent_cuda

_MAKERS: Final = (
    onednn.layer_results,
    recurrent_cuda.cell_results,
    cudnn.rnn_results,
    attention.results,
    linalg.results,
    losses.results,
)


def results(func: Any, args: Sequence[Any]) -> Any:
    """See the module's text."""
    return next((found for make in _MAKERS if (found := make(func, args)) is not None), None)
