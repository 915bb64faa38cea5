"""Runs a program compiled and in eager PyTorch, and compares all that can be told of tensors.

In: a function and what makes its arguments. Out: nothing, or AssertionError: values, what was
written into arguments, gradients and which of them are None, `requires_grad`, which tensors share
memory, and whether PyTorch raises. What eager PyTorch refuses to differentiate, since something was
written over that it had saved, may have a gradient here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lowtide as lt

Make = Callable[[], tuple[Any, ...]]
Facts = dict[str, Any]


def traced(f: Any, make: Make) -> Any:
    return lt.trace(f, make())


MODES: dict[str, Callable[[Any, Make], Any]] = {
    "script": lambda f, _: lt.script(f),
    "trace": traced,
    "compile": lambda f, _: lt.compile(f),
}


def agree(f: Any, make: Make, mode: str) -> None:
    """Two calls of the compiled function do what a call in eager PyTorch does."""
    torch.compiler.reset()
    module = copy.deepcopy(f) if isinstance(f, nn.Module) else f
    want, compiled = facts(module, make), MODES[mode](copy.deepcopy(f), make)
    for _ in range(2):
        got = facts(compiled, make)
        assert got.get("raises") == want.get("raises")
        left = ("gradients", "no gradient") if "no gradient" in want else ()
        a, b = ({k: x for k, x in found.items() if k not in left} for found in (got, want))
        if "raises" not in want:
            torch.testing.assert_close(a, b, equal_nan=True)


def facts(f: Callable[..., Any], make: Make) -> Facts:
    args = make()
    given = tensors(args)
    before = [x._version for x in given]
    torch.manual_seed(0)
    try:
        found = tensors(f(*args))
    except (RuntimeError, TypeError) as error:
        return {"raises": type(error).__name__}
    everything = [*given, *found]
    result: Facts = {
        "values": [x.detach().clone() for x in found],
        "arguments": [x.detach().clone() for x in given],
        "written": [x._version > n for x, n in zip(given, before, strict=True)],
        "requires_grad": [x.requires_grad for x in found],
        "shared": [[shares(x, y) for y in everything] for x in found],
    }
    losses = [(x * torch.linspace(1, 2, x.numel()).view(x.shape)).sum() for x in found
              if x.requires_grad]  # fmt: skip
    try:
        if losses:
            torch.stack(losses).sum().backward()
        result["gradients"] = {k: x.grad for k, x in enumerate(given) if x.is_leaf}
    except RuntimeError as error:
        result["no gradient"] = str(error)
    return result


def tensors(x: Any) -> list[Tensor]:
    return [t for t in tree_leaves(x) if isinstance(t, Tensor)]


def shares(x: Tensor, y: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
