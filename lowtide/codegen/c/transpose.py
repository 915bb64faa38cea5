"""Copies a tensor into a buffer with another contiguous axis: transposes blocks in registers.

In:  a nest that copies a tensor into a buffer whose contiguous axis is not the tensor's.
Out: C: loops over blocks of lanes × lanes elements, with one call for each block.

    s[k, j] = y[j, k]     y contiguous along k, s along j    for j by 16, k by 16: lt_transpose(…)
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.codegen.c.c_names import Names, buffer_place, c_index
from lowtide.codegen.c.pointwise import MEMORY
from lowtide.texpr.expr import Load
from lowtide.texpr.index import Axis
from lowtide.texpr.places import address, stride_along
from lowtide.tile.ir import Nest, Stage

LIBRARY = ("load_{t}", "load_part_{t}", "store_{t}")


def transposed_lines(nest: Nest, names: Names) -> Iterator[str]:
    """Yield the C of a nest whose `transposed`, the tensor's contiguous axis, is set."""
    (w,) = nest.writes
    assert isinstance(w, Stage)
    assert isinstance(w.expr, Load)
    assert nest.transposed is not None
    assert w.buffer.last is not None
    p, q = nest.transposed, w.buffer.last
    t, lanes = w.buffer.dtype.name, names.lanes
    names.use(*(n.format(t=t) for n in LIBRARY), f"@transpose_{t}")
    offset = address(w.expr, names.strides)
    step = stride_along(offset, q)
    assert step is not None
    local = {p: f"l_{names.axis(p)}", q: f"l_{names.axis(q)}"}

    def coordinate(a: Axis) -> str:
        name = names.axis(a)
        return f"(b_{name} + {local[a]})" if a in local else f"b_{name}"

    def place(p_offset: str) -> str:
        def within(a: Axis) -> str:
            base = coordinate(a) if a in w.buffer.whole else local[a]
            return f"{base}{p_offset}" if a is p else base

        return buffer_place(w.buffer, names, within)

    n_p, n_q = f"n_{names.axis(p)}", f"n_{names.axis(q)}"
    yield f"for (int64_t {local[q]} = 0; {local[q]} < {n_q}; {local[q]} += {lanes})"
    yield f"  for (int64_t {local[p]} = 0; {local[p]} < {n_p}; {local[p]} += {lanes})"
    yield (
        f"    lt_transpose_{t}(p_{w.expr.source} + {c_index(offset, coordinate)}, {c_index(step)}, "
        f"(int)lt_min({lanes}, {n_q} - {local[q]}), (int)lt_min({lanes}, {n_p} - {local[p]}), "
        f"&{place('')}, &{place(' + 1')} - &{place('')});"
    )


def transpose_function(t: str, lanes: int) -> str:
    """Return a C function: it loads `rows` vectors with `used` lanes each, and stores `used`
    vectors across them."""
    c = MEMORY[t]
    lines = [
        f"LT_CALLED void lt_transpose_{t}(const {c} *from, int64_t step, int rows, int used,",
        f"                               {c} *to, int64_t to_step) {{",
        f"  {t}v r0[{lanes}];",
        f"  if (used == {lanes} && rows == {lanes}) {{",
        *(f"    r0[{k}] = load_{t}(from + {k} * step);" for k in range(lanes)),
        "  } else {",
        f"    for (int k = 0; k < {lanes}; k++)",
        f"      r0[k] = k < rows ? load_part_{t}(from + k * step, used) : ({t}v){{0}};",
        "  }",
    ]
    half = 1
    values = [f"r0[{k}]" for k in range(lanes)]
    while half < lanes:
        new = list(values)
        for k in range(lanes):
            if k & half:
                continue
            low = ", ".join(str(j if not j & half else j - half + lanes) for j in range(lanes))
            high = ", ".join(str(j + half if not j & half else j + lanes) for j in range(lanes))
            a, b = values[k], values[k + half]
            for target, mask in ((k, low), (k + half, high)):
                new[target] = f"x{half}_{target}"
                lines.append(f"  {t}v {new[target]} = __builtin_shufflevector({a}, {b}, {mask});")
        values = new
        half *= 2
    lines += [
        f"  if (used > {k}) store_{t}(to + {k} * to_step, {v});" for k, v in enumerate(values)
    ]
    return "\n".join([*lines, "}", ""])
