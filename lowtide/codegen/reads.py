"""The operands of a kernel: the tensors, numbers and sizes that its text names.

In: a planned kernel. Out: names, and the index polynomials of its nests; equal for C and Triton.

    y[i] = x[i] * c      tensors_of: [x, y]      numbers_of: [c]      indices_of: address of x[i], …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index
from lowtide.texpr.places import address
from lowtide.tile.ir import Kernel, Store


def nodes_of(kernel: Kernel) -> Iterator[Expr]:
    """Yield every node of the expressions that the nests compute."""
    for nest in kernel.nests():
        for w in nest.writes:
            yield from ex.walk(w.expr)


def tensors_of(kernel: Kernel) -> list[str]:
    """Return the tensors that the kernel reads from memory, then those that it writes."""
    known = {*kernel.values, *kernel.outputs}
    read = [
        load.source
        for nest in kernel.nests()
        for w in nest.writes
        for load in ex.loads(w.expr)
        if load.source not in known
    ]
    return [*dict.fromkeys(read), *kernel.outputs]


def numbers_of(kernel: Kernel) -> list[str]:
    """Return the names of the numbers that a launch passes."""
    return sorted({n.name for n in nodes_of(kernel) if isinstance(n, ex.Scalar)})


def indices_of(kernel: Kernel, strides: Mapping[str, tuple[Index, ...]]) -> Iterator[Index]:
    """Yield every polynomial that the text of the nests prints."""
    for node in nodes_of(kernel):
        yield from ex.indices(node)
        if isinstance(node, ex.Load) and node.source not in kernel.values:
            yield address(node, strides)
    for nest in kernel.nests():
        yield from (a.extent for a in nest.axes)
        for w in nest.writes:
            if isinstance(w, Store):
                yield from strides[w.target]
                yield from w.index
