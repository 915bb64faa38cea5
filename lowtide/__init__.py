"""Lowtide: a memory-first JIT compiler for PyTorch code. `import lowtide as lt`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lowtide.api.names import INSTEAD, WHERE, find
from lowtide.version import __version__ as __version__

if TYPE_CHECKING:
    from lowtide.api.compile import compile, explain_compiled
    from lowtide.api.compile_module import freeze
    from lowtide.api.explain import Explanation
    from lowtide.api.patch import patch_torch_jit
    from lowtide.api.script import script
    from lowtide.api.script_function import ScriptFunction
    from lowtide.api.script_module import ScriptModule, script_method
    from lowtide.api.torch_jit_names import (
        Error,
        Future,
        RecursiveScriptModule,
        ScriptWarning,
        TopLevelTracedModule,
        TracingCheckError,
        enable_onednn_fusion,
        fuser,
        onednn_fusion_enabled,
        optimize_for_inference,
        optimized_execution,
        run_frozen_optimizations,
        script_if_tracing,
        set_fusion_strategy,
        strict_fusion,
    )
    from lowtide.api.trace import trace, trace_module
    from lowtide.api.traced import TracedFunction, TracedModule
    from lowtide.budget.memory import MemoryPlan
    from lowtide.c_library.export import Export, export_c
    from lowtide.deploy.load import load
    from lowtide.deploy.save import save
    from lowtide.diagnostics.stats import cache_stats
    from lowtide.errors import (
        BackendError,
        BudgetError,
        CompileError,
        DisposedTensorError,
        ExportError,
        LoadError,
        LowtideError,
        ScopeError,
    )
    from lowtide.frontend.script.decorators import (
        Attribute,
        Final,
        export,
        ignore,
        interface,
        unused,
    )
    from lowtide.frontend.script.language import annotate, fork, is_scripting, isinstance, wait
    from lowtide.frontend.trace.active import is_tracing
    from lowtide.frontend.trace.places import TracerWarning
    from lowtide.memory.scopes.functions import (
        alias,
        current_dispose_scope,
        detach_from_dispose_scope,
        dispose,
        is_disposed,
        move_to_other_dispose_scope,
        move_to_outer_dispose_scope,
        wrapped_dispose_scope,
    )
    from lowtide.memory.scopes.scope import DisposeScope, dispose_scope
    from lowtide.memory.scopes.sequential import Sequential
    from lowtide.memory.scopes.statistics import ScopeStatistics, scope_statistics
    from lowtide.runtime.arena import empty_cache, memory_stats
    from lowtide.scale.block import block
    from lowtide.scale.chunk_plan import ChunkPlan
    from lowtide.scale.map_chunks import map_chunks, plan_chunks
    from lowtide.tools.comparison import compare
    from lowtide.tools.profiler.batch import max_batch_size
    from lowtide.tools.profiler.profile import profile

__all__ = [
    "Attribute",
    "BackendError",
    "BudgetError",
    "ChunkPlan",
    "CompileError",
    "DisposeScope",
    "DisposedTensorError",
    "Error",
    "Explanation",
    "Export",
    "ExportError",
    "Final",
    "Future",
    "LoadError",
    "LowtideError",
    "MemoryPlan",
    "RecursiveScriptModule",
    "ScopeError",
    "ScopeStatistics",
    "ScriptFunction",
    "ScriptModule",
    "ScriptWarning",
    "Sequential",
    "TopLevelTracedModule",
    "TracedFunction",
    "TracedModule",
    "TracerWarning",
    "TracingCheckError",
    "alias",
    "annotate",
    "block",
    "cache_stats",
    "compare",
    "compile",
    "current_dispose_scope",
    "detach_from_dispose_scope",
    "dispose",
    "dispose_scope",
    "empty_cache",
    "enable_onednn_fusion",
    "explain_compiled",
    "export",
    "export_c",
    "fork",
    "freeze",
    "fuser",
    "ignore",
    "interface",
    "is_disposed",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "load",
    "map_chunks",
    "max_batch_size",
    "memory_stats",
    "move_to_other_dispose_scope",
    "move_to_outer_dispose_scope",
    "onednn_fusion_enabled",
    "optimize_for_inference",
    "optimized_execution",
    "patch_torch_jit",
    "plan_chunks",
    "profile",
    "run_frozen_optimizations",
    "save",
    "scope_statistics",
    "script",
    "script_if_tracing",
    "script_method",
    "set_fusion_strategy",
    "strict_fusion",
    "trace",
    "trace_module",
    "unused",
    "wait",
    "wrapped_dispose_scope",
]


def __getattr__(name: str) -> Any:
    if name in INSTEAD:
        raise AttributeError(f"lowtide has no {name!r}; write instead: {INSTEAD[name]}")
    if name not in WHERE:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    found = find(name)
    globals()[name] = found
    return found


def load_ipython_extension(shell: Any) -> None:
    """Give IPython's shell the magics of `tools/magics`: `%load_ext lowtide`."""
    from lowtide.tools.magics import register

    register(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("LOWTIDE_PATCH_TORCH_JIT") == "1":
    __getattr__("patch_torch_jit")()
