"""The public names and where they live; each is imported when it is first asked for.

In: a name. Out: the object. `import lowtide` therefore costs next to nothing beside `import torch`.
"""

from __future__ import annotations

from typing import Final

WHERE: Final = {
    "script": "lowtide.pipeline.script",
    "ScriptFunction": "lowtide.pipeline.script",
    "Explanation": "lowtide.pipeline.explain",
    "MemoryPlan": "lowtide.pipeline.memory",
    "cache_stats": "lowtide.pipeline.stats",
    "is_scripting": "lowtide.frontend.script.language",
    "annotate": "lowtide.frontend.script.language",
    "compare": "lowtide.comparison",
    "profile": "lowtide.memory.profiler.profile",
    "max_batch_size": "lowtide.memory.batch",
    "memory_stats": "lowtide.runtime.arena",
    "empty_cache": "lowtide.runtime.arena",
    "LowtideError": "lowtide.errors",
    "CompileError": "lowtide.errors",
    "BackendError": "lowtide.errors",
}
