"""Counters of the compiler's work: they show, for instance, that a new size compiles nothing.

before = lt.cache_stats()
f(torch.rand(5000, 4), y)
assert lt.cache_stats().compiles == before.compiles
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the process began.

    `traces`: times a region's ops were followed; `specialisations`: signatures kept; `compiles`:
    programs handed to the code generator; `kernels_built`, `disk_hits`, `memory_hits`: libraries
    that the C compiler made, that were found on disk, or in this process; `calls_eager`: calls
    that ran as plain Python; `regions_eager`: runs of a region by PyTorch instead."""

    traces: int = 0
    specialisations: int = 0
    compiles: int = 0
    kernels_built: int = 0
    disk_hits: int = 0
    memory_hits: int = 0
    calls_eager: int = 0
    regions_eager: int = 0

    def __sub__(self, other: CacheStats) -> CacheStats:
        """Return the counts since `other`."""
        mine, theirs = asdict(self), asdict(other)
        return CacheStats(**{k: mine[k] - theirs[k] for k in mine})


_lock = threading.Lock()
_counts = {f.name: 0 for f in fields(CacheStats)}


def count(name: str) -> None:
    """Adds one to a counter."""
    with _lock:
        _counts[name] += 1


def cache_stats() -> CacheStats:
    """Return the counters now; subtract two to see what happened between."""
    from lowtide.runtime import cache  # not needed to count

    built = cache.stats()
    counts = _counts | {
        "kernels_built": built.compiles,
        "disk_hits": built.disk_hits,
        "memory_hits": built.memory_hits,
    }
    return CacheStats(**counts)
