"""The C text of a kernel's axes, buffers, numbers and index polynomials.

In:  records of the tile program. Out: C names and lvalues, equal in all nests of a kernel.

    element (i, k) of buffer a      s_a[(l_i) * e_a_last + l_k]
    1.5 as f32                      (float)0x1.8000000000000p+0
    index (i + 1) // 2              (((b_i + l_i) + 1) / (2)); lt_floordiv(…) if perhaps negative
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowtide.codegen.index_text import index_text
from lowtide.ir.dtypes import DType
from lowtide.texpr.index import Axis, Gather, Index
from lowtide.tile.ir import Buffer


@dataclass(slots=True)
class Names:
    """The names in a kernel's text, and the library functions that the text uses."""

    lanes: int
    strides: dict[str, tuple[Index, ...]]
    memory: dict[str, DType]  # tensors in memory
    values: dict[str, Buffer]  # definitions held in buffers
    fixed: frozenset[Axis]
    grid: frozenset[Axis]
    aligned: frozenset[Axis]  # whose vectors begin at multiples of `lanes`
    axes: dict[Axis, str] = field(default_factory=dict[Axis, str])
    library: dict[str, None] = field(default_factory=dict[str, None])
    floordivs: set[str] = field(default_factory=set[str])

    def axis(self, a: Axis) -> str:
        if a not in self.axes:
            self.axes[a] = f"{a.name}" if a.name not in self.axes.values() else f"x{len(self.axes)}"
        return self.axes[a]

    def use(self, *names: str) -> str:
        self.library.update(dict.fromkeys(names))
        return names[0]


def buffer_place(
    buffer: Buffer,
    names: Names,
    within: Callable[[Axis], str],
    block: tuple[str, int] | None = None,
) -> str:
    """Return `name[…]` for a buffer element. `within(axis)`: its C coordinate in the buffer.

    `block`: the coordinate of the panel's first element, and the offset within the panel."""
    others = [a for a in buffer.axes if a is not buffer.last]
    row = "0"
    for a in others:
        length = f"e_{buffer.name}_{names.axis(a)}"
        row = f"({row}) * {length} + {within(a)}" if row != "0" else f"{within(a)}"
    if buffer.last is None:
        return f"s_{buffer.name}[{row}]"
    column = within(buffer.last)
    if not buffer.panel:
        return f"s_{buffer.name}[({row}) * e_{buffer.name}_last + {column}]"
    p = buffer.panel
    rows = " * ".join(f"e_{buffer.name}_{names.axis(a)}" for a in others) or "1"
    if block is not None:
        return f"s_{buffer.name}[{block[0]} * ({rows}) + ({row}) * {p} + {block[1]}]"
    return (
        f"s_{buffer.name}[(({column}) / {p}) * ({rows} * {p}) + ({row}) * {p} + ({column}) % {p}]"
    )


def number(value: float | int | bool, t: str) -> str:
    """Return a C constant of a register type, such as "f32" or "i64"."""
    if t in ("f32", "f64"):
        x = float(value)
        if x != x:
            return '__builtin_nanf("")' if t == "f32" else '__builtin_nan("")'
        if x in (float("inf"), float("-inf")):
            text = "__builtin_inff()" if t == "f32" else "__builtin_inf()"
            return text if x > 0 else f"-{text}"
        return f"(float){x.hex()}" if t == "f32" else x.hex()
    if t == "i64" and int(value) == -(1 << 63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"{int(value)}LL" if t == "i64" else f"({int(value)})"


HELPERS = """\
LT_INLINE int64_t lt_floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - (q * b > a); }
LT_INLINE int64_t lt_mod(int64_t a, int64_t b) { return a - lt_floordiv(a, b) * b; }
LT_INLINE int64_t lt_clamp(int64_t a, int64_t n) { return a < 0 || n < 1 ? 0 : a < n ? a : n - 1; }
/* a - start, clamped to [-1, 64]: no vector has more than 64 lanes */
LT_INLINE int32_t lt_lane(int64_t a, int64_t start) {
  uint64_t d = (uint64_t)a - (uint64_t)start;
  return a < start ? -1 : d < 64 ? (int32_t)d : 64;
}
LT_INLINE int64_t lt_min(int64_t a, int64_t b) { return a < b ? a : b; }
LT_INLINE int64_t lt_max(int64_t a, int64_t b) { return a > b ? a : b; }
"""


def c_index(
    index: Index,
    coordinate: Callable[[Axis], str] | None = None,
    gathered: Callable[[Gather], str] | None = None,
) -> str:
    """Return the polynomial as C; a size is the variable `z_name`."""
    return index_text(index, "/", coordinate, gathered)
