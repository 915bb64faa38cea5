"""Finds operands of a region that die with it, whose memory its results may take.

In: a region's specialisation, its kernels, the values of a call. Out: `Donatable` operands. The
kernels overwrite one if no other reference to it exists; `ownership` checks this before the
region runs.

    y = conv2d(x, w)            y: made by an op of this block, dead after the next region
    z = relu(y * a)             z over y, if the reference counts show that nobody else has y

A dry run decides the same with its meta tensors, so its peak is that of the run. A dry run does not
call the user's Python code. So a value that was passed to such code, which might have stored it, is
never a candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lowtide.execute.specialisations import Donatable, Entry, Specialisation
from lowtide.ir.core import Op, Value, walk
from lowtide.runtime import ownership
from lowtide.specialise.abstract import Place
from lowtide.texpr.index import product
from lowtide.texpr.sizes import evaluate

_MAKE: Final = ("torch.", "call_torch", "mutate")
_KEEP_NOTHING: Final = (*_MAKE, "const", "cast", "list.get", "tuple.get", "unpack", "if", "loop")


def owned(ops: Sequence[Op], pos: int) -> frozenset[Value]:
    """Return the values made before `pos` of which only PyTorch's code has seen a reference."""
    made: set[Value] = set()
    for op in ops[:pos]:
        inner = [op, *(o for block in op.blocks for o in walk(block))]
        if not all(o.name.startswith(_KEEP_NOTHING) for o in inner):
            made -= {v for o in inner for v in o.operands}
        if op.name.startswith(_MAKE):
            made |= {*op.results}
    return frozenset(made)


def donatable(
    spec: Specialisation, entry: Entry, live_ins: Sequence[Value], owned: frozenset[Value],
    returned: frozenset[Value],
) -> Donatable | None:  # fmt: skip
    """Return those of `owned` that are dead after the kernels have read them and are large enough.
    `returned`: results of the block, if the region ends it."""
    host = spec.host
    if host is None or host.may_fail_after or spec.executable is None or not owned:
        return None
    gone = {*spec.dead} - (returned if spec.finished else frozenset())
    names: dict[int, str] = {}
    for name, place in _alone_at(spec.places).items():
        if live_ins[place] not in owned & gone or place in host.reads_after:
            continue
        if _is_saved(spec, name) or not spec.executable.reusable_inputs([name]):
            continue
        if _bytes(spec, entry, name) >= ownership.LEAST_BYTES:
            names[place] = name
    return Donatable(names=names) if names else None


def _alone_at(places: Mapping[str, Place]) -> dict[str, int]:
    """Return the tensors that are live-ins themselves, not items of lists."""
    return {n: p.position for n, p in places.items() if not p.path}


def _is_saved(spec: Specialisation, name: str) -> bool:
    g = spec.gradient
    return g is not None and name in g.saved_inputs and name not in g.in_place_of


def _bytes(spec: Specialisation, entry: Entry, name: str) -> int:
    assert spec.host is not None
    known = dict(zip(spec.host.symbols, entry.sizes, strict=True))
    i = spec.host.program.inputs.get(name)
    return 0 if i is None else evaluate(product(i.shape), known) * i.dtype.itemsize
