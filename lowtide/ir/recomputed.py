"""`with Recomputed(inputs…)`: ops that save only their inputs, and run again in the backward pass.

In: `inputs`, the arguments of a reentrant checkpoint; its ops are recorded only if a tensor among
them requires a gradient. For other checkpoints `inputs` is empty, and ops are recorded as usual.
Out: a context manager, which saves everything where PyTorch runs the program.

    %m: Any = call_torch() {target="lowtide.Recomputed", kwnames=()}
    %y: Tensor = with(%m)
      block(%_: Any):
        %h: Tensor = torch.tanh(%x)
        yield(%h)
"""

from __future__ import annotations

from typing import Final

import torch

TARGET: Final = "lowtide.Recomputed"


class Recomputed:
    """See the module's text."""

    def __init__(
        self, *inputs: object, reentrant: bool | None = None, early_stop: bool | None = None
    ) -> None:
        """`reentrant`: by default, whether there are `inputs`. `early_stop`: whether the block runs
        again only as far as something is saved; by default, if it is not reentrant."""
        self.inputs = inputs
        self.reentrant = bool(inputs) if reentrant is None else reentrant
        self.early_stop = not self.reentrant if early_stop is None else early_stop
        self._outer: list[bool] = []

    def records(self) -> bool:
        """Return whether gradients go through the block."""
        wanted = (x.requires_grad for x in self.inputs if isinstance(x, torch.Tensor))
        return torch.is_grad_enabled() and (not self.reentrant or any(wanted))

    def __enter__(self) -> None:
        records = self.records()
        self._outer.append(torch.is_grad_enabled())
        torch.set_grad_enabled(records)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._outer.pop())
