"""Computes equal gradients once.

In: a backward Program, the output that holds each gradient. Out: the Program without duplicate
outputs, and the output that holds each gradient.

    ct_x[i] = g_z[i]      ct_y[i] = g_z[i]         x + y: one tensor is the gradient of both
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Def, Program
from lowtide.texpr.index import as_index


def with_equal_gradients(
    program: Program, gradients: Mapping[str, str]
) -> tuple[Program, dict[str, str]]:
    """See the module's text."""
    found = dict(gradients)
    made: list[Def] = []
    added_to = program.added_to()
    for name, output in gradients.items():
        d = program.defs.get(output)
        if d is None or output in added_to:  # of these, something is scattered
            continue
        same = next((e.name for e in made if _is_same(d, e)), None)
        if same is None:
            made.append(d)
        else:
            found[name] = same
    dropped = {output for name, output in gradients.items() if found[name] != output}
    outputs = [o for o in program.outputs if o not in dropped]
    return ex.pruned(replace(program, outputs=outputs)), found


def _is_same(d: Def, e: Def) -> bool:
    """Expressions that are equal are one object."""
    if tuple(map(as_index, d.shape)) != tuple(map(as_index, e.shape)) or d.dtype is not e.dtype:
        return False
    there = {a: as_index(b) for a, b in zip(d.axes, e.axes, strict=True)}
    return at_indices(d.expr, there) is e.expr
