"""The axes of a kernel that are dims of blocks, and the broadcasting of values to them.

In:  the axes of a kernel, with their tiles. Out: the text of coordinates and masks.

    i by 64, j by 32, c by 1:  i and j are dims of blocks, the coordinate along c is one number
    x_i[:, None], x_j[None, :], x_c          coordinates as blocks with the dims (i, j)
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
    """`points`: the axes that are dims of blocks, in order, and the text of the number of points
    in a block. `exact`: axes whose blocks do not reach past the end. `written`: variables that
    hold a stored single element; a load might not see the store of another thread."""

    points: Mapping[Axis, str]
    exact: frozenset[Axis]
    strides: Mapping[str, tuple[Index, ...]]
    memory: Mapping[str, DType]  # tensors in memory
    values: Mapping[str, Buffer]  # definitions held by the program
    axes: dict[Axis, str] = field(default_factory=dict[Axis, str])
    written: dict[str, str] = field(default_factory=dict[str, str])

    def axis(self, a: Axis) -> str:
        """Return the name of an axis in the text."""
        if a not in self.axes:
            self.axes[a] = a.name if a.name not in self.axes.values() else f"x{len(self.axes)}"
        return self.axes[a]

    def dims(self, axes: Sequence[Axis]) -> Dims:
        """Return the axes that are dims of blocks, in the order of dims."""
        return tuple(a for a in self.points if a in axes)

    def shape(self, dims: Dims) -> str:
        """Return the text of a block's shape."""
        points = [self.points[a] for a in dims]
        return f"({points[0]},)" if len(points) == 1 else f"({', '.join(points)})"

    def coordinate(self, a: Axis, dims: Dims) -> str:
        """Return the coordinates along an axis, as a block with `dims`."""
        name = f"x_{self.axis(a)}"
        return self.arranged(name, (a,), dims) if a in self.points else name

    def mask(self, axes: Sequence[Axis], dims: Dims) -> str:
        """Return the test that points are within these axes, "" if all are."""
        tests = [
            self.arranged(f"m_{self.axis(a)}", (a,), dims)
            for a in dims
            if a in axes and a not in self.exact
        ]
        return " & ".join(tests)

    def arranged(self, name: str, has: Dims, dims: Dims) -> str:
        """Return a block with dims `has` as one with `dims`, which include them."""
        if not has or has == dims:
            return name
        order = [has.index(a) for a in dims if a in has]
        if order != sorted(order):
            name = f"tl.permute({name}, ({', '.join(map(str, order))}))"
        places = ", ".join(":" if a in has else "None" for a in dims)
        return name if len(has) == len(dims) else f"{name}[{places}]"
