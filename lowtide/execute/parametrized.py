"""Reads a parametrized module (`torch.nn.utils.parametrize`) without changing it.

In: a module. Out: a context that restores the module's buffers at its end.

    with unchanged(module):
        module.layer.weight         spectral norm advances its power iteration

Some parametrizations write buffers when their weight is read. Only calls may do that, not the
compiler.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def unchanged(root: torch.nn.Module) -> Generator[None]:
    """A context that restores the buffers of parametrizations at its end."""
    found = (dict(m.named_children()).get("parametrizations") for m in root.modules())
    held = {id(b): b for made in found if made is not None for b in made.buffers()}
    before = [(b, b.detach().clone()) for b in held.values()]
    try:
        yield
    finally:
        for b, value in before:
            b.data.copy_(value)  # autograd does not count a write to `data` as a change
