"""Lowtide: a memory-first JIT compiler for PyTorch code. `import lowtide as lt`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lowtide.api import WHERE

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lowtide.comparison import compare
    from lowtide.errors import BackendError, CompileError, LowtideError
    from lowtide.frontend.script.language import annotate, is_scripting
    from lowtide.memory.batch import max_batch_size
    from lowtide.memory.profiler.profile import profile
    from lowtide.pipeline.explain import Explanation
    from lowtide.pipeline.memory import MemoryPlan
    from lowtide.pipeline.script import ScriptFunction, script
    from lowtide.pipeline.stats import cache_stats
    from lowtide.runtime.arena import empty_cache, memory_stats

__all__ = [
    "BackendError",
    "CompileError",
    "Explanation",
    "LowtideError",
    "MemoryPlan",
    "ScriptFunction",
    "annotate",
    "cache_stats",
    "compare",
    "empty_cache",
    "is_scripting",
    "max_batch_size",
    "memory_stats",
    "profile",
    "script",
]


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    found = getattr(importlib.import_module(WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
