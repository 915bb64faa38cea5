"""Pickles and copies of compiled objects: a pickle carries the saved program.

In: a compiled module, or a function that no module has by its name. Out: what `__reduce__` returns.

    pickle.loads(pickle.dumps({"net": lt.load("net.lt")}))["net"](x)

Reading such a pickle runs `lt.load` of the bytes that `lt.save` wrote, so the program in it is
checked like any other file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import torch

from lowtide.api import names
from lowtide.api.torch_jit_members import saved_to_buffer

LOADED: Final = "lowtide.loaded"  # the `__module__` of classes and functions from files


def is_from_file(obj: object) -> bool:
    """Return whether this is a function from a file, or an object of a class from one."""
    found = obj if callable(obj) and hasattr(obj, "__code__") else type(obj)
    return getattr(found, "__module__", None) == LOADED


def reduced(c: Any) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Return the function and arguments that make the object again, as `__reduce__` does. Raises
    CompileError if the object cannot be saved."""
    return restored, (saved_to_buffer(c),)


def restored(raw: bytes) -> Any:
    """Return the compiled function or module that these bytes of `lt.save` hold."""
    return names.find("load")(raw)


def clone_results(module: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Put clones of a module's tensors that ops computed into the memo of a deep copy, as torch.jit
    copies them: `self.state = self.cell(x)` leaves one, which PyTorch's deepcopy refuses."""
    waiting: list[Any] = [value for part in module.modules() for value in vars(part).values()]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if not value.is_leaf:
                memo.setdefault(id(value), value.clone())
        elif isinstance(value, list | tuple):
            waiting.extend(cast("list[Any]", value))
        elif isinstance(value, dict):
            waiting.extend(cast("dict[Any, Any]", value).values())
        elif is_from_file(value) and not isinstance(value, torch.nn.Module):
            waiting.extend(getattr(value, "__dict__", {}).values())
