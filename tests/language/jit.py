"""The names that programs take from `torch.jit`, found in Lowtide, or in plain Python until then.

    from tests.language import jit

    @jit.export
    def encode(self, x): ...

Each name is `lowtide.NAME` where Lowtide has it, so that the compiler meets its own objects. The
stand-ins below do what the names do when nothing is compiled. `LANGUAGE_JIT=torch` takes all names
from `torch.jit`, to ask whether TorchScript takes the same program.
"""

from __future__ import annotations

import os
from typing import Any

import torch.jit
import typing_extensions

WITH_TORCH = os.environ.get("LANGUAGE_JIT") == "torch"

if WITH_TORCH:
    source = torch.jit
else:
    import lowtide as source


class _Attribute:
    """`Attribute(value, type)` in `__init__` is the value, as in `torch.jit`."""

    def __new__(cls, value: Any, type: Any) -> Any:
        return value


STAND_INS: dict[str, Any] = {
    "annotate": lambda kind, value: value,
    "isinstance": torch.jit.isinstance,
    "is_scripting": lambda: False,
    "export": lambda function: function,
    "ignore": lambda function: function,
    "unused": lambda function: function,
    "interface": lambda cls: cls,
    "fork": torch.jit.fork,
    "wait": torch.jit.wait,
    "trace": torch.jit.trace,
    "Final": typing_extensions.Final,
    "Attribute": _Attribute,
}

for _name, _stand_in in STAND_INS.items():
    globals()[_name] = getattr(source, _name, _stand_in)


def script(obj: Any) -> Any:
    """`lowtide.script` as a decorator; what cannot be compiled yet is left as it was written."""
    try:
        return source.script(obj)
    except Exception:
        return obj
