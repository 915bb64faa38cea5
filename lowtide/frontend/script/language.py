"""Functions of the language itself, which compiled code may call: `lt.is_scripting`, `lt.annotate`.

In plain Python they do next to nothing; `builtin_calls` says what they mean in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from lowtide.frontend.script.types_from_annotations import tested_types
from lowtide.ir import types as t

T = TypeVar("T")


def is_scripting() -> bool:
    """Return True in compiled code, False in Python."""
    return False


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
    """Run `func(*args, **kwargs)` at once; return a future, for `wait`."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: torch.futures.Future[Any]) -> Any:
    """Return the value of a future."""
    return future.wait()


def isinstance(obj: object, target_type: Any) -> bool:
    """Python's isinstance, which also takes `List[int]`, `Dict[str, Tensor]` and the like.

    Raises RuntimeError, as torch.jit's, for what is neither a type nor a tuple of types."""
    tested = tested_types(target_type)
    if tested is None and type(target_type) in (list, dict, set, str, int):
        raise RuntimeError(f"{target_type!r} is not a type or a tuple of types")
    return tested is not None and any(t.is_instance(obj, type_) for type_ in tested)


def annotate(the_type: Any, the_value: T) -> T:
    """Return `the_value`. In compiled code its type is `the_type`, for an empty list or a None."""
    del the_type
    return the_value
