"""The errors of two results against a run in float64: the smaller one is nearer to the truth.

In: a function, its arguments, its results in the user's dtypes. Out: the largest error of each, in
the floating-point parts; None if the function does not run in float64. Indices are not judged:
where two distances are equal but for rounding, either index is right.

    errors(near, (x, y), {"eager": near(x, y), "lowtide": compiled(x, y)})
        →  {"eager": 2.2e-05, "lowtide": 1.2e-08}         # cdist rounds more than the kernel
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch

from lowtide.tools.difference import difference
from lowtide.torch_private.pytree import tensors_in


def errors(
    function: Any, args: Sequence[Any], results: Mapping[str, object]
) -> dict[str, float] | None:
    """See the module's text."""
    try:
        truth = in_double(function)(*map(_double, args))
    except Exception:  # the user's code may not run in float64; then nothing is known
        return None
    want = _floats(truth)
    return {name: difference(want, _floats(found)).max_abs for name, found in results.items()}


def in_double(function: Any) -> Callable[..., Any]:
    """Return the function, with a module's parameters and buffers in float64."""
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, torch.nn.Module):
        return function
    double = copy.deepcopy(owner).double()
    return MethodType(function.__func__, double) if isinstance(function, MethodType) else double


def _double(x: Any) -> Any:
    is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.detach().double().requires_grad_(x.requires_grad) if is_float else x


def _floats(result: object) -> list[torch.Tensor]:
    return [x.detach().double() for x in tensors_in(result) if x.is_floating_point()]
