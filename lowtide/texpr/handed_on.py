"""Gradients that are a cotangent, or equal to one another, are handed on, not written again.

In: a backward Program, the output that holds each gradient, the names of cotangents among its
inputs. Out: the Program without the outputs that nobody needs now; what is each gradient: an output
or a cotangent.

    ct_x[i] = g_z[i]      ct_y[i] = g_z[i]         x + y hands g_z on to both, as in PyTorch
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Def, Load, Program
from lowtide.texpr.index import as_index


def handed_on(
    program: Program, gradients: Mapping[str, str], cotangents: Collection[str]
) -> tuple[Program, dict[str, str]]:
    """See the module's text."""
    found: dict[str, str] = {}
    made: list[Def] = []
    for name, output in gradients.items():
        d = program.defs.get(output)
        if d is None:  # all of it is scattered
            found[name] = output
            continue
        same = next((e.name for e in made if _is_same(d, e)), None)
        found[name] = _cotangent(d, program, cotangents) or same or output
        if found[name] == output:
            made.append(d)
    dropped = {output for name, output in gradients.items() if found[name] != output}
    outputs = [o for o in program.outputs if o not in dropped]
    return ex.pruned(replace(program, outputs=outputs)), found


def _cotangent(d: Def, program: Program, cotangents: Collection[str]) -> str | None:
    """The cotangent that this is, element by element."""
    x = d.expr
    if not isinstance(x, Load) or x.index != tuple(as_index(a) for a in d.axes):
        return None
    source = program.inputs.get(x.source) or program.defs.get(x.source)
    if source is None:  # what a loop carries
        return None
    shape = tuple(map(as_index, source.shape))
    if shape != tuple(map(as_index, d.shape)) or source.dtype is not d.dtype:
        return None
    if isinstance(source, Def):
        return _cotangent(source, program, cotangents)
    return x.source if x.source in cotangents else None


def _is_same(d: Def, e: Def) -> bool:
    """Expressions that are equal are one object."""
    if tuple(map(as_index, d.shape)) != tuple(map(as_index, e.shape)) or d.dtype is not e.dtype:
        return False
    there = {a: as_index(b) for a, b in zip(d.axes, e.axes, strict=True)}
    return at_indices(d.expr, there) is e.expr
