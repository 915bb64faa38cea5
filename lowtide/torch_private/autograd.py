"""Autograd's engine: which node runs, in what order nodes were made, hooks of saved tensors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.autograd import function as torch_function
from torch.nn.modules import _functions
from torch.utils import checkpoint

from lowtide.cpython import frame_at, frames_of_threads

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_autograd: Final[Any] = _C._autograd
_checkpoint: Final[Any] = checkpoint
_graph: Final[Any] = torch.autograd.graph

# What a module's backward hooks put around it.
BackwardHookFunction: Final[type] = _functions.BackwardHookFunction
# The node of the backward pass that this thread runs; None outside of one.
current_node: Final[Callable[[], Any]] = _C._current_autograd_node
# The number of a node: a later one has a larger number.
sequence_number: Final[Callable[[Any], int]] = operator.methodcaller("_sequence_nr")
# What `torch.set_grad_enabled` calls; captured graphs call it by this path.
set_grad_enabled: Final[Any] = _C._set_grad_enabled
SET_GRAD_PATH: Final = "torch._C._set_grad_enabled"
# Stops the second run of a checkpointed function where enough is known.
StopRecomputation: Final[type[Exception]] = _checkpoint._StopRecomputationError
# The class of autograd Functions in which `apply` is C's.
FunctionBase: Final[Any] = torch_function._SingleLevelFunction  # pyright: ignore[reportPrivateUsage]
# The class of all Functions, if its `apply` is C's (from PyTorch 2.14 on), not Python's around C's.
FUNCTION_OF_C: Final[Any] = (
    None
    if isinstance(inspect.getattr_static(torch_function.Function, "apply"), classmethod)
    else torch_function.Function
)
# What C's `apply` reads of a Function: the first before it turns gradients off, and it only; then
# the other, to run it.
READ_BY_C: Final = ("_backward_cls", "forward")
# From PyTorch 2.14 on a clamp has no slope at a number that is its limit, and halves a cotangent
# between the tensor and an equal limit that is a tensor; fmax and fmin halve it, too.
HALVES_AT_LIMITS: Final = torch.__version__ >= "2.14"  # pyright: ignore[reportOperatorIssue]
# Of `torch.autograd`: what runs each backward pass.
RUN_BACKWARD: Final = "_engine_run_backward"
SAVED: Final = "_saved_"  # how the names of what a node has saved begin

top_saved_hooks: Final[Callable[[bool], Any]] = _autograd._top_saved_tensors_default_hooks
pop_saved_hooks: Final[Callable[[], None]] = _autograd._pop_saved_tensors_default_hooks
push_saved_hooks: Final[Callable[[Any, Any], None]] = _autograd._push_saved_tensors_default_hooks
# 0 or more inside forward-mode differentiation.
forward_level: Final[Callable[[], int]] = functools.partial(
    operator.attrgetter("_current_level"), forward_ad
)
# Takes tensors, and the version that each has from then on.
set_versions: Final[Callable[..., None]] = _autograd._unsafe_set_version_counter
# Whether the backward pass that is running may be run again. Unknown counts as yes.
keeps_graph: Final[Callable[[], bool]] = getattr(
    _autograd, "_get_current_graph_task_keep_graph", lambda: True
)
_RUN_BACKWARD_CODE: Final = getattr(_graph, RUN_BACKWARD).__code__


def inputs_of_backward() -> frozenset[tuple[Any, int]]:
    """Return the edges at which the running backward pass returns gradients, as (node,
    output): none if it accumulates those of all leaves. On a thread of the engine, those of the
    backward passes of all threads."""
    own = _inputs_in(frame_at())
    if own is not None:
        return own
    frames = frames_of_threads().values()
    return frozenset[tuple[Any, int]]().union(*(_inputs_in(f) or () for f in frames))


def _inputs_in(frame: FrameType | None) -> frozenset[tuple[Any, int]] | None:
    while frame is not None and frame.f_code is not _RUN_BACKWARD_CODE:
        frame = frame.f_back
    if frame is None:
        return None
    inputs = frame.f_locals["args"][3]
    return frozenset(
        (x.grad_fn, x.output_nr) if isinstance(x, torch.Tensor) else tuple(x[:2]) for x in inputs
    )


@contextlib.contextmanager
def without_saved_hooks() -> Generator[None]:
    """Return a context in which no hook of the user's gets the tensors that autograd saves."""
    below = list[tuple[Any, Any]]()
    while (top := top_saved_hooks(True)) is not None:
        below.append(top)
        pop_saved_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(below):
            push_saved_hooks(pack, unpack)
