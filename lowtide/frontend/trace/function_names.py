"""The name that IR gives to a PyTorch function seen while tracing.

In: the function object that `__torch_function__` is handed. Out: its source name, as records and
targets write it, or None where it has no public path.

    torch.Tensor.add               →  "Tensor.add"
    torch.Tensor.T.__get__         →  "Tensor.T"
    torch.functional.einsum        →  "torch.einsum"
    torch.ops.aten.add.Tensor      →  "torch.ops.aten.add.Tensor"

Invariant: `interpret.callable_of` finds the same function under the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import torch

from lowtide.frontend.torch_schemas import torch_paths
from lowtide.ir.interpret import callable_of
from lowtide.torch_private.private_names import FUNCTIONS

# Operators of tensors whose records stand under `operator`, operands swapped where reflected.
_OPERATORS: Final = {
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift",
    "invert": "invert", "neg": "neg", "abs": "abs", "pos": "pos", "matmul": "matmul",
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow",
}  # fmt: skip
_INPLACE: Final = {
    "__ipow__": "Tensor.pow_", "pow_": "Tensor.pow_", "__iand__": "Tensor.bitwise_and_",
    "__ior__": "Tensor.bitwise_or_", "__ixor__": "Tensor.bitwise_xor_",
    "__ilshift__": "Tensor.__ilshift__", "__irshift__": "Tensor.__irshift__",
    "__ifloordiv__": "Tensor.floor_divide_", "__imod__": "Tensor.remainder_",
}  # fmt: skip
_REFLECTED: Final = {
    f"__r{name}__": f"operator.{target}"
    for name, target in _OPERATORS.items()
    if name not in ("shift", "eq", "ne", "lt", "le", "gt", "ge", "invert", "neg", "abs", "pos")
} | {"__rdiv__": "operator.truediv"}
_ALIASES: Final = {"Tensor.data": "Tensor.detach"}


def name_of(func: Callable[..., Any]) -> tuple[str, bool] | None:
    """The source name, and whether the first two operands are to be swapped."""
    owner = getattr(func, "__self__", None)
    attribute = getattr(owner, "__name__", None)
    name = str(getattr(func, "__name__", ""))
    if name in ("__get__", "__set__") and isinstance(attribute, str):
        path = f"Tensor.{attribute}" + (".__set__" if name == "__set__" else "")
        return _ALIASES.get(path, path), False
    operator = _operator(func, name)
    if operator is not None:
        return operator
    path = torch_paths().get(id(func)) or _method(func) or _by_module(func)
    return None if path is None else (path, False)


def _operator(func: object, name: str) -> tuple[str, bool] | None:
    if _method(func) is None and getattr(torch.Tensor, "__ipow__", None) is not func:
        return None
    if name in _INPLACE:
        return _INPLACE[name], False
    if name in _REFLECTED:
        return _REFLECTED[name], True
    plain = name.removeprefix("__").removesuffix("__")
    if name.startswith("__") and plain in _OPERATORS:
        return f"operator.{_OPERATORS[plain]}", False
    return None


def _method(func: object) -> str | None:
    """Return `Tensor.add` for that method of tensors."""
    return _methods().get(id(func), (None, None))[0]


@cache
def _methods() -> Mapping[int, tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}  # an id is good while the method lives
    for name in dir(torch.Tensor):
        member: Any = getattr(torch.Tensor, name, None)
        if callable(member) and not isinstance(member, type):
            found[id(member)] = f"Tensor.{name}", member
    return found


def _by_module(func: object) -> str | None:
    """Return the path in a function's attributes, if it leads to that function."""
    if type(func).__name__ in ("OpOverload", "OpOverloadPacket"):
        return f"torch.ops.{func}"
    module = str(getattr(func, "__module__", ""))
    name, short = str(getattr(func, "__qualname__", "")), str(getattr(func, "__name__", ""))
    for path in (f"{module}.{name}", f"torch.{short}", f"{FUNCTIONS}{short}"):
        if path.startswith("torch.") and _leads_to(path, func):
            return path
    return None


def _leads_to(path: str, func: object) -> bool:
    try:
        return callable_of(path) is func
    except AttributeError:
        return False
