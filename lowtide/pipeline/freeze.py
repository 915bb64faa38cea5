"""`lt.freeze`: a compiled module for inference, with a private copy of all it reads.

In: a module. Out: a compiled one in eval mode. Its numbers, bools and strings are constants of the
program, its tensors are copies that no optimizer sees; the original may change as it likes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from lowtide.frontend.script.module_state import root_of
from lowtide.pipeline.script_module import ScriptModule, entry_points, make_or_get, wrap


def freeze(
    mod: torch.nn.Module,
    preserved_attrs: Sequence[str] | None = None,
    optimize_numerics: bool = True,
) -> ScriptModule:
    """A copy of the module in eval mode, without parameters, compiled for what its attributes are.

    `preserved_attrs`: attributes that stay changeable, and methods to compile beside forward.
    Raises CompileError."""
    del optimize_numerics  # kernels give what eager PyTorch gives, rounding aside, in any case
    root = copy.deepcopy(root_of(mod)).eval()
    for module in root.modules():
        own = vars(module)
        for name, parameter in own["_parameters"].items():
            own["_buffers"][name] = None if parameter is None else parameter.detach()
            own["_non_persistent_buffers_set"].add(name)
        own["_parameters"].clear()
    preserved = frozenset(preserved_attrs or ())
    made = wrap(root, frozen=True, preserved=preserved)
    methods = [n for n in preserved if callable(getattr(type(root), n, None))]
    for name in dict.fromkeys((*entry_points(root), *methods)):
        make_or_get(made, name).compile()
    return made
