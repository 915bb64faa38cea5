"""The public names and their modules; each is imported at its first use.

In: a name. Out: the object. `import lowtide` therefore takes little time after `import torch`.

    lt.script          imports lowtide.api.script
"""

from __future__ import annotations

import importlib
from typing import Any, Final

WHERE: Final = {
    "script": "lowtide.api.script",
    "ScriptFunction": "lowtide.api.script_function",
    "ScriptModule": "lowtide.api.script_module",
    "script_method": "lowtide.api.script_module",
    "compile": "lowtide.api.compile",
    "explain_compiled": "lowtide.api.compile",
    "freeze": "lowtide.api.compile_module",
    "export": "lowtide.frontend.script.decorators",
    "ignore": "lowtide.frontend.script.decorators",
    "unused": "lowtide.frontend.script.decorators",
    "interface": "lowtide.frontend.script.decorators",
    "Attribute": "lowtide.frontend.script.decorators",
    "Final": "lowtide.frontend.script.decorators",
    "trace": "lowtide.api.trace",
    "trace_module": "lowtide.api.trace",
    "TracedFunction": "lowtide.api.traced",
    "TracedModule": "lowtide.api.traced",
    "TracerWarning": "lowtide.frontend.trace.places",
    "is_tracing": "lowtide.frontend.trace.active",
    "patch_torch_jit": "lowtide.api.patch",
    "Error": "lowtide.api.torch_jit_names",
    "Future": "lowtide.api.torch_jit_names",
    "RecursiveScriptModule": "lowtide.api.torch_jit_names",
    "enable_onednn_fusion": "lowtide.api.torch_jit_names",
    "onednn_fusion_enabled": "lowtide.api.torch_jit_names",
    "optimize_for_inference": "lowtide.api.torch_jit_names",
    "script_if_tracing": "lowtide.api.torch_jit_names",
    "set_fusion_strategy": "lowtide.api.torch_jit_names",
    "strict_fusion": "lowtide.api.torch_jit_names",
    "fuser": "lowtide.api.torch_jit_names",
    "optimized_execution": "lowtide.api.torch_jit_names",
    "run_frozen_optimizations": "lowtide.api.torch_jit_names",
    "ScriptWarning": "lowtide.api.torch_jit_names",
    "TopLevelTracedModule": "lowtide.api.torch_jit_names",
    "TracingCheckError": "lowtide.api.torch_jit_names",
    "Explanation": "lowtide.api.explain",
    "MemoryPlan": "lowtide.budget.memory",
    "cache_stats": "lowtide.diagnostics.stats",
    "is_scripting": "lowtide.frontend.script.language",
    "annotate": "lowtide.frontend.script.language",
    "isinstance": "lowtide.frontend.script.language",
    "fork": "lowtide.frontend.script.language",
    "wait": "lowtide.frontend.script.language",
    "compare": "lowtide.tools.comparison",
    "profile": "lowtide.tools.profiler.profile",
    "max_batch_size": "lowtide.tools.profiler.batch",
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
    "plan_chunks": "lowtide.scale.map_chunks",
    "map_chunks": "lowtide.scale.map_chunks",
    "ChunkPlan": "lowtide.scale.chunk_plan",
    "block": "lowtide.scale.block",
    "save": "lowtide.deploy.save",
    "export_c": "lowtide.c_library.export",
    "Export": "lowtide.c_library.export",
    "ExportError": "lowtide.errors",
    "load": "lowtide.deploy.load",
    "DisposedTensorError": "lowtide.errors",
    "ScopeError": "lowtide.errors",
}

# Names of torch.jit that mean nothing here, and what to write in their place.
INSTEAD: Final = {
    "CompilationUnit": "lt.script of a Python function: source text is not compiled",
    "RecursiveScriptClass": "the class itself: compiled code takes and returns its objects",
    "ONNXTracedModule": "torch.onnx.export of the plain module",
    "export_opnames": "`explain(*args)`, which lists what PyTorch runs",
    "last_executed_optimized_graph": "`graph_for(*args)` of the compiled function",
    "save_jit_module_to_flatbuffer": "lt.save(m, f)",
    "jit_module_from_flatbuffer": "lt.load(f)",
}


def find(name: str) -> Any:
    """Return the object of a public name."""
    return getattr(importlib.import_module(WHERE[name]), name)
