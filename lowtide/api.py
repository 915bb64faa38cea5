"""The public names and where they live; each is imported when it is first asked for.

In: a name. Out: the object. `import lowtide` therefore costs next to nothing beside `import torch`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

WHERE: Final = {
    "script": "lowtide.pipeline.script",
    "ScriptFunction": "lowtide.pipeline.script_function",
    "ScriptModule": "lowtide.pipeline.script_module",
    "script_method": "lowtide.pipeline.script_module",
    "compile": "lowtide.pipeline.dynamo",
    "explain_compiled": "lowtide.pipeline.dynamo",
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
    "Error": "lowtide.torch_jit_names",
    "Future": "lowtide.torch_jit_names",
    "RecursiveScriptModule": "lowtide.torch_jit_names",
    "enable_onednn_fusion": "lowtide.torch_jit_names",
    "onednn_fusion_enabled": "lowtide.torch_jit_names",
    "optimize_for_inference": "lowtide.torch_jit_names",
    "script_if_tracing": "lowtide.torch_jit_names",
    "set_fusion_strategy": "lowtide.torch_jit_names",
    "strict_fusion": "lowtide.torch_jit_names",
    "fuser": "lowtide.torch_jit_names",
    "optimized_execution": "lowtide.torch_jit_names",
    "run_frozen_optimizations": "lowtide.torch_jit_names",
    "ScriptWarning": "lowtide.torch_jit_names",
    "TopLevelTracedModule": "lowtide.torch_jit_names",
    "TracingCheckError": "lowtide.torch_jit_names",
    "Explanation": "lowtide.pipeline.explain",
    "MemoryPlan": "lowtide.pipeline.memory",
    "cache_stats": "lowtide.pipeline.stats",
    "is_scripting": "lowtide.frontend.script.language",
    "annotate": "lowtide.frontend.script.language",
    "isinstance": "lowtide.frontend.script.language",
    "fork": "lowtide.frontend.script.language",
    "wait": "lowtide.frontend.script.language",
    "compare": "lowtide.comparison",
    "profile": "lowtide.memory.profiler.profile",
    "max_batch_size": "lowtide.memory.profiler.batch",
    "memory_stats": "lowtide.runtime.arena",
    "empty_cache": "lowtide.runtime.arena",
    "dispose_scope": "lowtide.memory.scopes.scope",
    "DisposeScope": "lowtide.memory.scopes.scope",
    "move_to_outer_dispose_scope": "lowtide.memory.scopes.functions",
    "detach_from_dispose_scope": "lowtide.memory.scopes.functions",
    "move_to_other_dispose_scope": "lowtide.memory.scopes.functions",
    "dispose": "lowtide.memory.scopes.functions",
    "is_disposed": "lowtide.memory.scopes.functions",
    "alias": "lowtide.memory.scopes.functions",
    "current_dispose_scope": "lowtide.memory.scopes.functions",
    "wrapped_dispose_scope": "lowtide.memory.scopes.functions",
    "scope_statistics": "lowtide.memory.scopes.statistics",
    "ScopeStatistics": "lowtide.memory.scopes.statistics",
    "Sequential": "lowtide.memory.scopes.sequential",
    "LowtideError": "lowtide.errors",
    "CompileError": "lowtide.errors",
    "BackendError": "lowtide.errors",
    "BudgetError": "lowtide.errors",
    "LoadError": "lowtide.errors",
    "save": "lowtide.deploy.save",
    "load": "lowtide.deploy.load",
    "DisposedTensorError": "lowtide.errors",
    "ScopeError": "lowtide.errors",
}

# Names of torch.jit that mean nothing here, and what to write in their place.
INSTEAD: Final = {
    "CompilationUnit": "lt.script of a Python function: source text is not compiled",
    "RecursiveScriptClass": "the class itself: objects of it go in and come out as they are",
    "ONNXTracedModule": "torch.onnx.export of the plain module",
    "export_opnames": "`explain(*args)`, which lists what PyTorch runs",
    "last_executed_optimized_graph": "`graph_for(*args)` of the compiled function",
    "save_jit_module_to_flatbuffer": "lt.save(m, f)",
    "jit_module_from_flatbuffer": "lt.load(f)",
}


def find(name: str) -> Any:
    """The object of a public name."""
    return getattr(importlib.import_module(WHERE[name]), name)
