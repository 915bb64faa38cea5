"""Small functions under torch.jit's names, so that `import lowtide as jit` works.

jit.script_if_tracing     compiled inside a trace, plain Python elsewhere
jit.optimize_for_inference(mod)           jit.freeze(mod)
jit.set_fusion_strategy([...])            nothing to choose: kernels are made for all sizes
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from lowtide.api.compile_module import freeze
from lowtide.api.script import script
from lowtide.api.script_module import ScriptModule
from lowtide.api.traced import TracedModule
from lowtide.errors import CompileError
from lowtide.frontend.trace.active import is_tracing

Future: TypeAlias = torch.jit.Future  # pyright: ignore[reportMissingTypeArgument]
"""torch.jit's own class; `lt.fork` returns one."""
Error: TypeAlias = CompileError
"""`lt.CompileError`."""
RecursiveScriptModule: TypeAlias = ScriptModule
"""`lt.ScriptModule`."""
TopLevelTracedModule: TypeAlias = TracedModule
"""`lt.TracedModule`."""
ScriptWarning: TypeAlias = torch.jit.ScriptWarning  # pyright: ignore[reportPrivateImportUsage]
"""torch.jit's own class, for `warnings.filterwarnings`; Lowtide does not warn with it."""
TracingCheckError: TypeAlias = torch.jit.TracingCheckError  # pyright: ignore[reportPrivateImportUsage]
"""torch.jit's own class, for `except`; Lowtide warns with `lt.TracerWarning` instead."""


def script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `fn` where traced code calls it, so that its control flow is recorded. Elsewhere it
    is the plain Python function."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return script(fn)(*args, **kwargs) if is_tracing() else fn(*args, **kwargs)

    marks: Any = wrapper  # as torch.jit has them: compiled code reads the function behind
    marks.__original_fn, marks.__script_if_tracing_wrapper = fn, True
    return wrapper


def optimize_for_inference(
    mod: torch.nn.Module, other_methods: Sequence[str] | None = None
) -> ScriptModule:
    """Return `freeze(mod)`, which leaves nothing more to choose. `other_methods`: methods to
    compile besides forward."""
    return freeze(mod, preserved_attrs=other_methods)


def set_fusion_strategy(strategy: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the strategy. It has no effect: kernels are compiled for all sizes in any case."""
    return list(strategy)


def enable_onednn_fusion(enabled: bool) -> None:
    """Accept the setting without effect: Lowtide has kernels of its own."""


def onednn_fusion_enabled() -> bool:
    """Return False: Lowtide has kernels of its own instead."""
    return False


strict_fusion = contextlib.nullcontext
"""A context without effect: `explain()` says what was not fused."""


def fuser(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context without effect: Lowtide has kernels of its own instead of PyTorch's
    fusers."""
    del name
    return contextlib.nullcontext()


def optimized_execution(should_optimize: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context without effect: there is one way to run a program."""
    del should_optimize
    return contextlib.nullcontext()


def run_frozen_optimizations(
    mod: ScriptModule,
    optimize_numerics: bool = True,
    preserved_methods: Sequence[str] | None = None,
) -> None:
    """Accept the module without effect: `freeze` has optimized it."""
    del mod, optimize_numerics, preserved_methods
