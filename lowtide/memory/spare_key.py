"""Python kernels that replace ATen ops on one thread, within a context.

In: ATen ops, and a function for each. Out: a context in which PyTorch's dispatcher calls the
function instead of the op, for calls from Python and from C++, and for tensors of any device.

    key = SpareKey("AutocastIPU")
    key.add(aten.mm.default, lambda op, *args: op(*(x.half() for x in args)))
    with key.on():
        x @ y                       ──►  mm(x as f16, y as f16)

Invariant: the key is off within such a function, so that it can call PyTorch's own kernels.

The dispatch key is the autocast key of a device without kernels in this build of PyTorch. Autocast
keys precede autograd's. Of the names given, the first unused one is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch

from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.torch_private.dispatch import (
    KeySet,
    KeysExcluded,
    exclude_key,
    has_fallback,
    include_key,
    is_key_excluded,
    is_key_included,
    key_named,
    schema_of,
)


class SpareKey:
    """See the module's text. `names`: of dispatch keys, in order of preference."""

    def __init__(self, *names: str) -> None:
        keys = ((name, key_named(name)) for name in names)
        name, self._key = next(k for k in keys if not has_fallback(k[1]))
        self._alone: Any = KeySet(self._key)
        others = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, name)
        self._name, self._ops = name, torch.library.Library("aten", "IMPL")
        self._others = others  # a Library removes its kernels when it is freed

    def add(self, op: Any, kernel: Callable[..., Any]) -> None:
        """Register a kernel: it is called with the op and its arguments."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.off():
                return kernel(op, *args, **kwargs)

        hide_with_callees(run)
        name, overload = schema_of(op).name, schema_of(op).overload_name
        self._ops.impl(f"{name}.{overload}" if overload else name, run, self._name)

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """A context in which this thread calls the kernels."""
        was_out = is_key_excluded(self._key)
        was_in = is_key_included(self._key)
        exclude_key(self._key, False)
        include_key(self._key, True)
        try:
            yield
        finally:
            include_key(self._key, was_in)
            exclude_key(self._key, was_out)

    def off(self) -> contextlib.AbstractContextManager[None]:
        """Return a context, within `on`, in which this thread does not call the kernels."""
        guard: contextlib.AbstractContextManager[None] = KeysExcluded(self._alone)
        return guard
