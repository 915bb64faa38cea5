"""Fills a buffer whose contiguous axis is not that of memory: transposes blocks in registers.

In:  a nest that computes a value into a buffer; along its axis `transposed`, memory is contiguous.
Out: C: loops over blocks of lanes × lanes elements, with one call for each block.

    s[k, j] = y[j, k]          y contiguous along k, s along j
                               for j by 16, k by 16: lt_transpose(&y[j, k], …)
    s[k, j] = y[j, k] + c[k]   for j by 16, k by 16: block = …, then lt_transpose(block, …)
    s[k, j] = y[j, clamp(k, 3)]    the same: some points of k lie elsewhere
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.codegen.c.c_names import Names, buffer_place, c_index
from lowtide.codegen.c.nest import nest_lines
from lowtide.codegen.c.pointwise import MEMORY
from lowtide.texpr.expr import Load
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.places import address, stride_along
from lowtide.tile.ir import Buffer, Nest, Stage

LIBRARY = ("load_{t}", "load_part_{t}", "store_{t}")


def transposed_lines(nest: Nest, names: Names) -> Iterator[str]:
    """Yield the C of a nest whose `transposed`, the axis along which memory lies, is set."""
    (w,) = nest.writes
    assert isinstance(w, Stage)
    assert nest.transposed is not None
    assert w.buffer.last is not None
    p, q = nest.transposed, w.buffer.last
    t, lanes = w.buffer.dtype.name, names.lanes
    names.use(*(n.format(t=t) for n in LIBRARY), f"@transpose_{t}")
    local = {p: f"t_{names.axis(p)}", q: f"t_{names.axis(q)}"}

    def place(p_offset: str) -> str:
        def within(a: Axis) -> str:
            base = f"(b_{names.axis(a)} + {local[a]})" if a in w.buffer.whole else local[a]
            return f"{base}{p_offset}" if a is p else base

        return buffer_place(w.buffer, names, within)

    for a in (q, p):
        x = local[a]
        yield f"for (int64_t {x} = 0; {x} < n_{names.axis(a)}; {x} += {lanes}) {{"
    sizes = [f"(int)lt_min({lanes}, n_{names.axis(a)} - {local[a]})" for a in (q, p)]
    offset = address(w.expr, names.strides) if isinstance(w.expr, Load) else None
    if isinstance(w.expr, Load) and offset is not None and stride_along(offset, p) is as_index(1):
        step = stride_along(offset, q)
        assert step is not None

        def coordinate(a: Axis) -> str:
            name = names.axis(a)
            return f"(b_{name} + {local[a]})" if a in local else f"b_{name}"

        source, step_text = f"p_{w.expr.source} + {c_index(offset, coordinate)}", c_index(step)
    else:
        yield from ("  " + line for line in _block_lines(w, p, q, local, names))
        source, step_text = "s_block", f"{lanes}"
    yield (
        f"  lt_transpose_{t}({source}, {step_text}, {', '.join(sizes)}, "
        f"&{place('')}, &{place(' + 1')} - &{place('')});"
    )
    yield "}}"


def _block_lines(w: Stage, p: Axis, q: Axis, local: dict[Axis, str], names: Names) -> Iterator[str]:
    """Yield the C that computes a block of lanes x lanes points, as memory lies: a nest over a tile
    of this size."""
    dtype, lanes = w.buffer.dtype, names.lanes
    block = Buffer(name="block", dtype=dtype, axes=(q, p), last=p)
    nest = Nest(axes=(q, p), writes=[Stage(buffer=block, expr=w.expr)], order=(q, p), vector=p)
    yield f"{MEMORY[dtype.name]} s_block[{lanes * lanes}];"
    yield f"const int64_t e_block_last = {lanes};"
    for a in (q, p):
        name = names.axis(a)
        yield f"const int64_t c_{name} = b_{name} + {local[a]};"
        yield f"const int64_t m_{name} = lt_min({lanes}, n_{name} - {local[a]});"
    yield "{"
    for a in (q, p):
        name = names.axis(a)
        yield f"  const int64_t b_{name} = c_{name}, n_{name} = m_{name}; (void)b_{name};"
    yield from ("  " + line for line in nest_lines(nest, names))
    yield "}"


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
