"""Ops that PyTorch's library does, with lowerings for where no library may be called.

In: a record of kind LIBRARY or SMALL. Front ends leave both as calls of PyTorch, so that budgets,
memory and effects see no difference; the specialiser binds them late (`specialise/late_binding`):
LIBRARY only where all is computed by kernels, as in an exported C library, SMALL also where so
little is computed that a call of the library takes longer.

    kernels only:        max_pool2d(x, 2)   →   t[n, c, i, j] = max[p, q](x[n, c, 2*i + p, 2*j + q])
    else:                PyTorch's own; the region ends
"""

from __future__ import annotations

from typing import Any, Final

from lowtide import config
from lowtide.ops.operands import is_list, require_float, same_dtype
from lowtide.ops.registry import OpRecord
from lowtide.texpr.build import Builder, Unsupported, Val

LIBRARY: Final = "library"
SMALL: Final = "small"


def is_left(record: OpRecord) -> bool:
    """Return whether front ends leave the op as a call of PyTorch."""
    return record.kind in (LIBRARY, SMALL)


def may_be_kernels(record: OpRecord) -> bool:
    """Return whether the specialiser may lower the op."""
    return record.kind == SMALL or (record.kind == LIBRARY and without_library())


def without_library() -> bool:
    """Return whether the code must run without PyTorch's library, as exported C does."""
    return config.current().kernels_only


def require_kernels(b: Builder) -> None:
    """Raise Unsupported unless kernels must compute the op, since no library may be called."""
    require_plain(b)
    if not without_library():
        raise Unsupported("is PyTorch's own")


def require_plain(b: Builder) -> None:
    """Raise Unsupported for what only PyTorch does: gradients of it, and all on a GPU."""
    if b.device.type != "cpu" or b.records or b.may_recompute:
        raise Unsupported("is PyTorch's own, where a gradient is recorded or on a GPU")


def require_wide_floats(*xs: Val | None) -> None:
    """Raise Unsupported for ints, for mixed dtypes and for floats of 16 bits."""
    require_float(*xs)
    if same_dtype(*xs).itemsize < 4:
        raise Unsupported("is PyTorch's own, of 16-bit floats")


def constants(b: Builder, value: Any, count: int, least: int, what: str) -> list[int]:
    """Return constants, one for each dim; a lone one is that of all."""
    given = list(value) if is_list(value) else [value]
    numbers = [b.static_int(v) for v in given]
    if len(numbers) not in (1, count) or min(numbers) < least:
        raise Unsupported(f"{what} of other numbers")
    return numbers * count if len(numbers) == 1 else numbers
