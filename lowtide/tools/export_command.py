"""`lowtide export`: writes a function, a module or a file as a C library.

In: a target such as `pkg.mod:fn`, or a file of `lt.save` or `torch.jit.save`; a folder, shapes.
Out: an `Export`. The example's numbers are random in [0, 1); integers are 0.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from lowtide.c_library.export import Export, export_c
from lowtide.deploy.load import load
from lowtide.tools.explain_command import (
    ArgumentFault,
    check_call,
    filled,
    make_arguments,
    resolve,
    scripted,
)


def export(
    target: str, directory: str, shapes: str, dtypes: str, name: str, weights: str
) -> Export:
    """Write the library. Raises ArgumentFault, OSError and LowtideError."""
    compiled: Any = _of_file(target) if os.path.exists(target) else None
    if compiled is None and ":" not in target:
        raise ArgumentFault(f"{target!r} is no file, and no name such as pkg.mod:fn")
    if compiled is None:
        compiled = scripted(target, resolve(target))
    like = make_arguments(shapes, dtypes)
    check_call(target, compiled, like)
    torch.manual_seed(0)
    args = tuple(map(filled, like))
    return export_c(compiled, directory, args, name=name, weights=weights)


def _of_file(path: str) -> Any:
    found: Any = load(path)
    return found.eval() if isinstance(found, torch.nn.Module) else found
