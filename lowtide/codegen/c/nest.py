"""Prints a nest as C: loops over the points of a tile, values in vector registers.

In:  a scheduled `Nest` and the `Names` of its kernel.
Out: C lines. Each value is computed in the outermost loop inside which all its axes are known, once
     for each row and vector that the loop body holds in registers.

    nest (j vector x2, i unroll 2, k)           for (l_j …; += 32) for (l_i …; += 2) {
      acc = sum[k](mul(a[i,k], b[k,j]))   ->      a00 = load(acc …) …
                                                  for (l_k …) { b0 = …; b1 = …; a0 = splat … }
                                                  store(acc …, a00) … }

The rows that no block of rows covers run one by one. The vectors that no block covers run one by
one, too; the last one is partial, its lanes are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.codegen.c import pointwise as pw
from lowtide.codegen.c.body import Body, Variant
from lowtide.codegen.c.c_names import Names
from lowtide.codegen.c.reduce import accumulate
from lowtide.tile.ir import Accumulate, Nest

ARG = ("argmin", "argmax")


def nest_lines(nest: Nest, names: Names) -> Iterator[str]:
    """Yield the C of a nest. It reads the variables b_<axis>, the start of the tile along an axis,
    and n_<axis>, the tile's length. A nest with a minimum or maximum of floats has two versions,
    see `reduce`."""
    watched = sorted(
        {
            pw.REGISTER[w.expr.dtype.name]
            for w in nest.writes
            if isinstance(w, Accumulate) and _watches_nan(w)
        }
    )
    if not watched:
        for variant in _variants(nest, names):
            yield from _guarded(nest, names, variant)
        return
    yield "if (exact) {"
    yield from _guarded(nest, names, Variant(1, 1, nest.vector is not None, True, True))
    yield "} else {"
    yield from (f"  {t}v seen_{t} = {{0}};" for t in watched)
    for variant in _variants(nest, names):
        yield from _guarded(nest, names, variant)
    for t in watched:
        yield f"  if ({names.use(f'anylane_{t}')}(seen_{t} != seen_{t})) *nan = 1;"
    yield "}"


def _watches_nan(w: Accumulate) -> bool:
    return w.fn in ("min", "max", *ARG) and w.expr.dtype.is_float


# ---- variants of the blocked loops ------------------------------------------------------------


def _variants(nest: Nest, names: Names) -> Iterator[Variant]:
    """Yield whole blocks, the rest of the vector axis, and the rest of the rows, one by one."""
    rows, width = max(nest.unroll.values(), default=1), names.lanes * nest.vectors
    if nest.vector is None:
        yield Variant(1, rows, False)
    else:
        if (nest.vector.extent.const or width) >= width:
            yield Variant(nest.vectors, rows, False)
        yield Variant(1, rows, True)
    if rows > 1:
        yield Variant(1, 1, nest.vector is not None, everything=True)


def _guarded(nest: Nest, names: Names, variant: Variant) -> Iterator[str]:
    guard = _guard(nest, names, variant)
    yield f"if ({guard}) {{" if guard else "{"
    yield from ("  " + line for line in Body(nest, names, variant, accumulate).lines())
    yield "}"


def _guard(nest: Nest, names: Names, variant: Variant) -> str:
    tests: list[str] = []
    if nest.vector is not None and not variant.everything:
        n, width = f"n_{names.axis(nest.vector)}", names.lanes * nest.vectors
        tests.append(f"{n} % {width}" if variant.partial else f"{n} >= {width}")
    for a, rows in nest.unroll.items():
        n = f"n_{names.axis(a)}"
        if variant.rows == rows:
            tests.append(f"{n} >= {rows}")
        elif not variant.alone:
            tests.append(f"{n} % {rows}")
    return " && ".join(tests)
