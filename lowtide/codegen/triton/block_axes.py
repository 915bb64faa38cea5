"""The axes of a nest that are blocks, and the broadcasting of a value to them.

In:  the axes of a kernel, with their tiles. Out: names and texts of coordinates and masks.

    i by 64, j by 32, c by 1:  i and j are dims of blocks, c is a plain number
    x_i[:, None], x_j[None, :], x_c          coordinates where the dims are (i, j)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.ir.dtypes import DType
from lowtide.texpr.index import Axis, Index
from lowtide.tile.ir import Buffer

Dims = tuple[Axis, ...]


@dataclass(slots=True, kw_only=True)
class Blocks:
    """`points`: of each axis that is a dim of blocks, how many it has, as text; in the order in
    which dims stand. `exact`: axes of which no block reaches past the end. `written`: of single
    elements that the program has stored, the names of what it holds: in memory, other threads
    might not see them yet."""

    points: Mapping[Axis, str]
    exact: frozenset[Axis]
    strides: Mapping[str, tuple[Index, ...]]
    memory: Mapping[str, DType]  # tensors in memory
    values: Mapping[str, Buffer]  # definitions held by the program
    axes: dict[Axis, str] = field(default_factory=dict[Axis, str])
    written: dict[str, str] = field(default_factory=dict[str, str])

    def axis(self, a: Axis) -> str:
        """What an axis is called."""
        if a not in self.axes:
            self.axes[a] = a.name if a.name not in self.axes.values() else f"x{len(self.axes)}"
        return self.axes[a]

    def dims(self, axes: Sequence[Axis]) -> Dims:
        """Of these axes those that are dims, in their order."""
        return tuple(a for a in self.points if a in axes)

    def shape(self, dims: Dims) -> str:
        """The shape of a block, as text."""
        points = [self.points[a] for a in dims]
        return f"({points[0]},)" if len(points) == 1 else f"({', '.join(points)})"

    def coordinate(self, a: Axis, dims: Dims) -> str:
        """The places along an axis, among dims."""
        name = f"x_{self.axis(a)}"
        return self.arranged(name, (a,), dims) if a in self.points else name

    def mask(self, axes: Sequence[Axis], dims: Dims) -> str:
        """Which places are within these axes; "" if all are."""
        tests = [
            self.arranged(f"m_{self.axis(a)}", (a,), dims)
            for a in dims
            if a in axes and a not in self.exact
        ]
        return " & ".join(tests)

    def arranged(self, name: str, has: Dims, dims: Dims) -> str:
        """A block that has some dims, in their order, as one of other dims among which they are."""
        if not has or has == dims:
            return name
        order = [has.index(a) for a in dims if a in has]
        if order != sorted(order):
            name = f"tl.permute({name}, ({', '.join(map(str, order))}))"
        places = ", ".join(":" if a in has else "None" for a in dims)
        return name if len(has) == len(dims) else f"{name}[{places}]"
