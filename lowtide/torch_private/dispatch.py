"""Dispatch of ops: keys, schemas, kinds of ops, and which convolution PyTorch chooses."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_ops: Final[Any] = torch._ops  # pyright: ignore[reportPrivateUsage]
_COMPOSITE: Final = "CompositeImplicitAutograd"
# PyTorch's own convolutions; by their names, for a transposed one by oneDNN has none in Python.
_SLOW: Final = ("Slow2d", "Slow3d", "SlowDilated2d", "SlowDilated3d",
                "SlowTranspose2d", "SlowTranspose3d")  # fmt: skip
_SLOW_BACKENDS: Final[list[Any]] = [getattr(_C._ConvBackend, name) for name in _SLOW]

# Of an overload: its schema. Of a path such as `aten.mm`: all its overloads are one packet.
schema_of: Final[Callable[[Any], Any]] = operator.attrgetter("_schema")
OverloadPacket: Final[Any] = _ops.OpOverloadPacket
HigherOrderOperator: Final[Any] = _ops.HigherOrderOperator  # its arguments are graphs

has_fallback: Final[Callable[[Any], bool]] = _C._dispatch_has_backend_fallback
KeySet: Final[Any] = _C.DispatchKeySet
is_key_excluded: Final[Callable[[Any], bool]] = _C._dispatch_tls_is_dispatch_key_excluded
is_key_included: Final[Callable[[Any], bool]] = _C._dispatch_tls_is_dispatch_key_included
exclude_key: Final[Callable[[Any, bool], None]] = _C._dispatch_tls_set_dispatch_key_excluded
include_key: Final[Callable[[Any, bool], None]] = _C._dispatch_tls_set_dispatch_key_included
KeysExcluded: Final[Any] = _C._ExcludeDispatchKeyGuard  # a context
# The names of all ops that have a kernel for the key of this name.
ops_with_kernel: Final[Callable[[str], list[str]]] = _C._dispatch_get_registrations_for_dispatch_key
_has_kernel: Final[Callable[[str, str], bool]] = _C._dispatch_has_kernel_for_dispatch_key


def key_named(name: str) -> Any:
    """Return a dispatch key."""
    return getattr(_C.DispatchKey, name)


@functools.cache
def is_composite(func: Any) -> bool:
    """Return whether PyTorch has the op in terms of others: where autograd is left out, a mode sees
    it whole, as `aten.cov` under `torch.inference_mode()`, whose parts are what takes memory."""
    return _has_kernel(func.name(), _COMPOSITE) and not _has_kernel(func.name(), "Meta")


def parts_of_composite(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the op's result by the ops that PyTorch's own kernel calls. For some ops PyTorch has
    another decomposition in Python, which takes more or less memory."""
    return func._op_dk(key_named(_COMPOSITE), *args, **kwargs)


def is_slow_convolution(images: Any, weights: Any, *options: Any) -> bool:
    """Return whether a kernel of PyTorch's own runs it, not a library's. `options`: stride,
    padding, dilation, transposed, output_padding, groups."""
    return _C._select_conv_backend(images, weights, None, *options, None) in _SLOW_BACKENDS
