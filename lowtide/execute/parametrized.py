"""Reading a module that computes its weights, as `torch.nn.utils.parametrize` has it.

In: a module. Out: the same module, whose buffers are as they were: what a parametrization writes
when its weight is read (spectral norm, in training, goes on with its power iteration) belongs to
calls, not to a compiler that looks at what there is.

    with unchanged(module):
        ...        module.layer.weight has been read
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def unchanged(root: torch.nn.Module) -> Generator[None]:
    """At the end, buffers of parametrizations have the values that they had."""
    found = (dict(m.named_children()).get("parametrizations") for m in root.modules())
    held = {id(b): b for made in found if made is not None for b in made.buffers()}
    before = [(b, b.detach().clone()) for b in held.values()]
    try:
        yield
    finally:
        for b, value in before:
            b.data.copy_(value)  # as if nothing had been written: autograd does not count it
