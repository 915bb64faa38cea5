"""C source from kernel texts: types, helpers and vector functions in front of the kernels.

In:  kernel texts with the same number of lanes. Out: C source without includes.

    typedef float f32v …;  LT_INLINE f32v exp_f32(f32v x) {…}  …  void k0(…) {…}

Before a kernel is compiled, `without_names` replaces the names of the user's program by numbers.
So the kernels of two layers that differ in names only are one library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lowtide.codegen.c.c_names import HELPERS
from lowtide.codegen.c.kernel import KernelText
from lowtide.codegen.c.pointwise import FLOORDIV
from lowtide.codegen.c.reduce import arg_fold
from lowtide.codegen.c.transpose import transpose_function
from lowtide.runtime import abi
from lowtide.vecmath import functions, types


def module_text(kernels: Sequence[KernelText], lanes: int, vector_bytes: int) -> str:
    """Return the C source of kernels that all have `lanes` lanes."""
    library = list(dict.fromkeys(n for k in kernels for n in k.names.library))
    special = [n[1:].split("_") for n in library if n.startswith("@")]
    divisions = sorted({t for k in kernels for t in k.names.floordivs})
    parts = [
        types(lanes, vector_bytes),
        abi.C_DECLARATIONS,
        HELPERS,
        functions(
            [n for n in library if not n.startswith("@")],
            lanes,
            vector_bytes,
            [k.text for k in kernels],
        ),
        *(FLOORDIV.format(t=t, v=f"{t}v", m={"f32": "i32v", "f64": "i64v"}[t]) for t in divisions),
        *(
            transpose_function(t, lanes) if fn == "transpose" else arg_fold(fn, t)
            for fn, t in special
        ),
        *(k.text for k in kernels),
    ]
    return "\n".join(parts)


_NAMED = re.compile(r"\b([a-z])_(\w+)")


def without_names(source: str, kernel: str) -> str:
    """Return the C with numbers for the names of axes and values, in order of appearance, and with
    `abi.SYMBOL` for the name of the kernel."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"{found[1]}_{len(numbers)}")

    alike = re.sub(rf"\b{kernel}(?=\b|_)", abi.SYMBOL, source)
    return _NAMED.sub(numbered, alike)


def kernel_source(kernel: KernelText, lanes: int, vector_bytes: int) -> str:
    """Return the C source to compile: the same for kernels that differ in names only."""
    return without_names(module_text([kernel], lanes, vector_bytes), kernel.name)
