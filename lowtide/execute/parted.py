"""Separates the backward passes of a region's independent outputs.

In: a region's saved values, and the cotangents of a backward pass. Out: the saved values that this
pass reads. They live as long as in eager PyTorch: a pass frees only the values that it read.

    p, q = (a * a).sum(), b.exp().sum()      one region, two parts
    p.backward()                             reads a; what was saved for q stays
    q.backward()                             reads b
    q.backward()                             PyTorch's error

Two outputs belong to one part if the backward passes of both go through a value whose derivative
depends on data. PyTorch saves tensors for such a value, and frees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.texpr import expr as ex
from lowtide.texpr.autodiff import Differentiation, cotangent_name, given_name
from lowtide.texpr.expr import Program
from lowtide.torch_private.autograd import keeps_graph
from lowtide.torch_private.tensors import version

Part = frozenset[int]  # outputs, by position


@dataclass(frozen=True, slots=True)
class Remaining:
    """The saved values that the remaining backward passes need (those of `parts`), and the version
    counters of these tensors after the last pass."""

    parts: frozenset[Part]
    tensors: Mapping[str, torch.Tensor]
    versions: Mapping[str, int]


def parts_of(program: Program, diff: Differentiation) -> frozenset[Part]:
    """Return the groups of outputs that carry gradients; see the module's text."""
    carrying = [k for k, n in enumerate(program.results) if diff.carries(n)]
    parts: list[tuple[set[int], set[str]]] = []
    for k in carrying:
        outputs, values = {k}, _with_data(program, diff, program.results[k])
        for part in [p for p in parts if not values.isdisjoint(p[1])]:
            parts.remove(part)
            outputs |= part[0]
            values |= part[1]
        parts.append((outputs, values))
    return frozenset(frozenset(outputs) for outputs, _ in parts)


def _with_data(program: Program, diff: Differentiation, output: str) -> set[str]:
    """Return the values on the way of the output's gradient whose derivative depends on data."""
    found, seen, todo = set[str](), set[str](), [output]
    while todo:
        name = todo.pop()
        if name in seen or not diff.carries(name):
            continue
        seen.add(name)
        if (y := program.delays.get(name)) is not None:
            found.add(name)
            todo += [y.source, y.init]
        pulled = diff.pulled(name)
        if pulled is None:
            continue
        own = {cotangent_name(name), given_name(name)}
        if any(x.source not in own for e in pulled.loads.values() for x in ex.loads(e)):
            found.add(name)
        d = diff.defs[name]
        todo += [d.adds_to or name, *(load.source for load in ex.loads(d.expr))]
    return found


def saved_for(
    ctx: Any,
    left: Remaining | None,
    parts: frozenset[Part],
    names: Sequence[str],
    cotangents: Sequence[object],
    reads: Callable[[frozenset[Part]], frozenset[str]],
) -> tuple[Sequence[Any], Remaining | None]:
    """Return (saved values by position in `names`, values left for later backward passes). `left`:
    the values left by the previous pass. `reads`: names that the backward pass of given parts
    reads. Raises as PyTorch does if values have been freed or changed."""
    if len(parts) < 2:
        return ctx.saved_tensors, None
    now = frozenset(p for p in parts if any(cotangents[k] is not None for k in p))
    if left is None or not now <= left.parts:
        saved, left = ctx.saved_tensors, None  # raises if they were freed
    else:
        _check(left)
        saved = [left.tensors.get(n) for n in names]
    if keeps_graph():
        return saved, left
    rest = (parts if left is None else left.parts) - now
    needed = reads(rest) if rest else frozenset[str]()
    tensors = {n: x for n, x in zip(names, saved, strict=True) if n in needed and x is not None}
    return saved, Remaining(rest, tensors, {n: version(x) for n, x in tensors.items()})


def _check(left: Remaining) -> None:
    for name, x in left.tensors.items():
        if version(x) != left.versions[name]:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{x.type()} {list(x.shape)}] is at version {version(x)}; "
                f"expected version {left.versions[name]} instead"
            )
