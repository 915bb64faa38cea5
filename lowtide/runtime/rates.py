"""The speed of matrix products on this machine: by PyTorch's library, and by kernels.

In: the sizes of a product. Out: whether the library is faster. The table has operations per
nanosecond for each dtype and class of shapes, and bytes per nanosecond of memory.

    f32 large: library 95.1, kernels 121.8     f32 thin: library 11.2, kernels 9.7

`codegen/rates` measures the table once for a machine, a version of PyTorch, a compiler and a number
of threads; it is stored on disk. Before that, kernels compute all products. A wrong rate costs time
only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch

from lowtide import config
from lowtide.errors import BackendError
from lowtide.runtime import facts, toolchain

_FACTS: Final = "rates"
LEAST_POINTS: Final = 1 << 18  # multiplications; with fewer, the call of the library takes longer
_CALL_NS: Final = 4000.0  # a call of the library and its three views
_CACHED_BYTES: Final = 4 << 20  # of computed operands: a kernel writes them, too, into its tiles
_THIN: Final = 32  # rows or columns
_SMALL: Final = 1 << 24  # multiplications
# Sizes that stand for a class: batch, rows, columns, terms.
SHAPES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "large": (1, 512, 512, 512),
    "small": (1, 160, 160, 160),
    "thin": (1, 8, 1024, 1024),
    "batch": (32, 64, 64, 64),
}


class Sizes(Protocol):
    """See `texpr.library.Product`."""

    @property
    def dtype(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def points(self) -> int: ...
    @property
    def extra_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates by dtype and class, such as "f32 large". `bytes_per_ns`: of memory that is read or
    written."""

    library: Mapping[str, float] = field(default_factory=dict[str, float])
    kernels: Mapping[str, float] = field(default_factory=dict[str, float])
    bytes_per_ns: float = 8.0


def is_librarys(product: Sizes) -> bool:
    """Return whether the library is faster, with the time to store its operands."""
    if product.points < LEAST_POINTS:
        return False
    fixed = config.current().products
    if fixed:
        return fixed == "library"
    known, kind = current(), class_of(product)
    if kind not in known.library or kind not in known.kernels:
        return False
    operations = 2.0 * product.points
    moved_ns = 2.0 * max(product.extra_bytes - _CACHED_BYTES, 0) / known.bytes_per_ns
    library_ns = operations / known.library[kind] + moved_ns + _CALL_NS
    return library_ns < operations / known.kernels[kind]


def described(product: Sizes) -> str:
    """Return the rates that decide over a product, as text; empty if a setting decides."""
    known, kind = current(), class_of(product)
    if config.current().products or kind not in known.library or kind not in known.kernels:
        return ""
    library, kernels = known.library[kind], known.kernels[kind]
    return f"{kind} product: library {library:.0f}, kernels {kernels:.0f} operations per ns"


def class_of(product: Sizes) -> str:
    """Return the row of a product in the table."""
    if min(product.rows, product.columns) < _THIN:
        shape = "thin"
    elif product.batch > 1:
        shape = "batch"
    else:
        shape = "small" if product.points < _SMALL else "large"
    return f"{product.dtype} {shape}"


_current: dict[int, Rates] = {}  # by the number of threads


def current() -> Rates:
    """Return the rates of this machine, empty if they have not been measured."""
    threads = torch.get_num_threads()
    found = _current.get(threads)
    if found is None:
        found = _current[threads] = _read()
    return found


def is_measured(dtype: str) -> bool:
    """Return whether there are rates of a dtype, or a setting replaces them."""
    return bool(config.current().products or f"{dtype} large" in current().kernels)


def use(rates: Rates) -> None:
    """Set the rates of this process for the present number of threads."""
    _current[torch.get_num_threads()] = rates


def keep(rates: Rates) -> None:
    """Set the rates, and store them on disk for later processes."""
    use(rates)
    facts.write(_FACTS, _key(), to_rows(rates))


def _read() -> Rates:
    """Return the rates on disk, empty if there are none or the file is damaged."""
    try:
        return from_rows(facts.read(_FACTS, _key()))
    except BackendError:
        return Rates()


def to_rows(rates: Rates) -> dict[str, str]:
    """Return the rates as texts, for a file."""
    rows = {f"library {k}": str(v) for k, v in rates.library.items()}
    rows |= {f"kernels {k}": str(v) for k, v in rates.kernels.items()}
    return rows | {"bytes_per_ns": str(rates.bytes_per_ns)}


def from_rows(texts: Mapping[str, str]) -> Rates:
    """Return the rates that `to_rows` wrote, empty ones if the texts are damaged."""
    try:
        rows = {k: float(v) for k, v in texts.items()}
    except ValueError:
        return Rates()
    if not rows or not all(0 < v < 1e9 for v in rows.values()) or "bytes_per_ns" not in rows:
        return Rates()
    memory = rows.pop("bytes_per_ns")
    parts = {
        kind: {k.partition(" ")[2]: v for k, v in rows.items() if k.startswith(kind)}
        for kind in ("library", "kernels")
    }
    return Rates(library=parts["library"], kernels=parts["kernels"], bytes_per_ns=memory)


def _key() -> str:
    parts = (toolchain.compiler().identity, torch.__version__, str(torch.get_num_threads()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
