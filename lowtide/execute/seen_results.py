"""Refuses a backward pass in which the gradient of a result would be seen and be wrong.

In: a region's Program, what a call returned. Out: None, or a RuntimeError.

    y, z = x * x, (x * x).sin()      eager mode: z -> y -> x         one region: y -> x, z -> x

In eager mode a hook of `y`, `y.retain_grad()` and `torch.autograd.grad(z, y)` see the gradient that
flows from `z` into `y`. A region computes the gradient of `x` at once, and has no gradient of `y`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from lowtide.texpr.expr import Program, loads
from lowtide.torch_private.autograd import inputs_of_backward

_REMEDY = (
    " of a result that another result is computed from. Within a compiled function the gradient "
    "that comes from the other one is not seen. Compile the two parts as two functions, or run "
    "this one with LOWTIDE_DISABLE=1"
)
_HOOKED = "{}: a hook, or retain_grad()," + _REMEDY
_PROBLEM = "{}: torch.autograd.grad with respect to, or backward(inputs=...) with," + _REMEDY
Seen = Sequence[tuple[int, weakref.ref[Any]]]  # positions among the results, and these


Dependent = tuple[tuple[int, ...], tuple[int, ...]]


def dependent(program: Program, carrying: Sequence[bool]) -> Dependent:
    """Return, among the results that carry a gradient, the positions of those that others are
    computed from, and of these others."""
    results = {n: k for k, n in enumerate(program.results) if carrying[k]}
    if len(results) < 2:
        return (), ()
    above: dict[str, set[str]] = {}  # of each definition, what it is computed from
    for name, d in program.defs.items():
        read = {load.source for load in loads(d.expr)}
        above[name] = read.union(*(above.get(n, ()) for n in read))
    upon = {n for name in results for n in above.get(name, ()) if n in results and n in above}
    others = [k for n, k in results.items() if not upon.isdisjoint(above.get(n, ()))]
    return tuple(k for k, n in enumerate(program.results) if n in upon), tuple(others)


def watch(results: Sequence[torch.Tensor], dependent: Dependent, program: Program) -> Seen:
    """See to it that a gradient raises that reaches one of the others, if it is requested with
    respect to a result that they are computed from. Return these results."""
    upon, others = dependent
    if not others:
        return ()
    node = weakref.ref(results[others[0]].grad_fn)
    hook = functools.partial(_check_unrequested, node, upon, program)
    for k in others:
        results[k].register_hook(hook)  # pyright: ignore[reportUnknownMemberType]
    return [(k, weakref.ref(results[k])) for k in upon]


def _check_unrequested(
    node: weakref.ref[Any], upon: Sequence[int], program: Program, _: torch.Tensor
) -> None:
    requested = inputs_of_backward()
    for k in upon:
        if (node(), k) in requested:
            raise RuntimeError(_PROBLEM.format(program.defs[program.results[k]].loc))


def check_unseen(results: Seen, program: Program) -> None:
    """Raise RuntimeError if one of these results has a hook, or keeps its gradient."""
    for k, result in results:
        y = result()
        hooks: dict[int, Any] = (y is not None and y._backward_hooks) or {}
        if y is not None and (y.retains_grad or any(map(_reads, hooks.values()))):
            raise RuntimeError(_HOOKED.format(program.defs[program.results[k]].loc))


def _reads(hook: Any) -> bool:
    """Return whether a hook may read or change a gradient; FSDP's only wait for the moment."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook is not _check_unrequested and not str(getattr(hook, "__module__", "")).startswith(
        "torch.distributed."
    )
