"""The public names and where they live; each is imported when it is first asked for.

In: a name. Out: the object. `import lowtide` therefore costs next to nothing beside `import torch`.
"""

from __future__ import annotations

from typing import Final

WHERE: Final = {
    "script": "lowtide.pipeline.script",
    "ScriptFunction": "lowtide.pipeline.script",
    "ScriptModule": "lowtide.pipeline.script_module",
    "script_method": "lowtide.pipeline.script_module",
    "freeze": "lowtide.pipeline.compile_module",
    "export": "lowtide.frontend.script.decorators",
    "ignore": "lowtide.frontend.script.decorators",
    "unused": "lowtide.frontend.script.decorators",
    "interface": "lowtide.frontend.script.decorators",
    "Attribute": "lowtide.frontend.script.decorators",
    "Final": "lowtide.frontend.script.decorators",
    "trace": "lowtide.pipeline.trace",
    "trace_module": "lowtide.pipeline.trace",
    "TracedFunction": "lowtide.pipeline.traced",
    "TracedModule": "lowtide.pipeline.traced",
    "TracerWarning": "lowtide.frontend.trace.places",
    "is_tracing": "lowtide.frontend.trace.active",
    "patch_torch_jit": "lowtide.patch",
    "Explanation": "lowtide.pipeline.explain",
    "MemoryPlan": "lowtide.pipeline.memory",
    "cache_stats": "lowtide.pipeline.stats",
    "is_scripting": "lowtide.frontend.script.language",
    "annotate": "lowtide.frontend.script.language",
    "compare": "lowtide.comparison",
    "empty_cache": "lowtide.runtime.arena",
    "LowtideError": "lowtide.errors",
    "CompileError": "lowtide.errors",
    "BackendError": "lowtide.errors",
    "LoadError": "lowtide.errors",
    "save": "lowtide.deploy.save",
    "load": "lowtide.deploy.load",
}
