"""Modes of this thread: of functions, of dispatch; transforms of torch.func; what records."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

import torch
import torch.utils._python_dispatch as dispatch
from torch._functorch import eager_transforms, predispatch  # pyright: ignore[reportPrivateUsage]
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DeviceContext"]  # PyTorch's mode of the default device

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_dispatch: Final[Any] = dispatch
_F = TypeVar("_F", bound=Callable[..., Any])
_frames: Final[Any] = _C._dynamo.eval_frame
_FLAG: Final = "_is_in_any_mode_without_ignore_compile_internals"  # torch 2.11 may lack it


def _never(*_: object) -> Any:
    return False


def _flag(name: str) -> Callable[..., Any]:
    """Return a private function that tells if a mode is on. If this PyTorch lacks it, return one
    that returns False."""
    return getattr(_C, name, _never)


function_modes_on: Final[Callable[[], bool]] = _flag("_is_torch_function_mode_enabled")
function_depth: Final[Callable[[], int]] = getattr(_C, "_len_torch_function_stack", lambda: 0)
function_mode_at: Final[Callable[[int], Any]] = _flag("_get_function_stack_at")
pop_function_mode: Final[Callable[[], Any]] = _C._pop_torch_function_stack
push_function_mode: Final[Callable[[Any], None]] = _C._push_on_torch_function_stack
# A context inside which no mode of functions, and no class, sees a call.
NoFunctionModes: Final[Any] = _C.DisableTorchFunction

dispatch_depth: Final[Callable[[], int]] = _flag("_len_torch_dispatch_stack")
dispatch_mode_at: Final[Callable[[int], Any]] = _flag("_get_dispatch_stack_at")
# A context inside which this thread has no modes of dispatch.
no_dispatch_modes: Final[Callable[[], Any]] = _dispatch._disable_current_modes

_functorch: Final[Any] = getattr(_C, "_functorch", None)
# The innermost transform of torch.func that is at work; None without one.
transform: Final[Callable[[], object]] = getattr(_functorch, "peek_interpreter_stack", lambda: None)
_is_wrapped: Final[Any] = getattr(_functorch, "is_functorch_wrapped_tensor", _never)
any_autocast: Final[Callable[[], bool]] = getattr(_C, "_is_any_autocast_enabled", lambda: True)
# (owner, names) of functions that no mode intercepts; the names of functorch's are those that
# Dynamo does not look into, if there are such.
# How precise float32 is, by backend and kind of op: "none" is the default.
precision_of: Final[Callable[[str, str], str]] = getattr(
    _C, "_get_fp32_precision_getter", lambda backend, kind: "none"
)
_GRAD_UNWRAPPER: Final = "_unwrap_for_grad_impl"
UNWRAPPERS: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (getattr(torch.nested, "_nested", None), ("nested_tensor",)),
    (predispatch, ("_remove_batch_dim_impl", _GRAD_UNWRAPPER)),
    (eager_transforms, ("_unwrap_functional_tensor",)),
    (eager_transforms, () if hasattr(predispatch, _GRAD_UNWRAPPER) else ("_unwrap_for_grad",)),
)
# Whether `torch.jit.trace` records; torch.onnx.export does, too. Packages ask where it is kept.
is_recording: Final[Callable[[], bool]] = _flag("_is_tracing")
RECORDING_KEPT: Final[tuple[Any, str]] = (_C.__dict__, "_is_tracing")
# Modules whose functions change what a transform or a mode does.
STATE_MODULES: Final = (
    *("torch._C._functorch", "torch._functorch", "torch.amp", "torch.autograd.forward_ad"),
    *("torch.autograd.graph", "torch.autograd.grad_mode"),
)


def function_modes() -> list[Any]:
    """Return the function modes of this thread, the bottom of the stack first."""
    return [function_mode_at(k) for k in range(function_depth())]


def remove_function_mode(mode: object) -> int | None:
    """Remove a mode from anywhere in the stack. Returns how many modes were above it, None if it
    was not on the stack."""
    at = next((k for k, other in enumerate(function_modes()) if other is mode), None)
    if at is None:
        return None
    above = [pop_function_mode() for _ in range(function_depth() - at)]
    for other in reversed(above[:-1]):
        push_function_mode(other)
    return len(above) - 1


def insert_function_mode(mode: object, above: int) -> None:
    """Put a mode on the stack, below the `above` modes on the top."""
    others = [pop_function_mode() for _ in range(min(above, function_depth()))]
    for other in (mode, *reversed(others)):
        push_function_mode(other)


def without_override_check(func: FunctionType) -> FunctionType:
    """Return a function of PyTorch's that runs its body also where a mode, or the class of an
    argument, would handle the call. They see the calls of the body."""
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**func.__globals__, **dict.fromkeys(checks, _never)}
    made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def is_wrapped(x: Any) -> bool:
    """Return whether a tensor stands for another one inside a transform such as vmap."""
    return isinstance(x, torch.Tensor) and bool(_is_wrapped(x))


class OwnMode(TorchDispatchMode):
    """The base of Lowtide's own modes of dispatch: captured code runs under it.

        class Counts(OwnMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None): ...

    PyTorch notes in one variable of the process whether a mode is on that captured code must not
    run under. Each mode saves it on entry and restores it on exit. If two threads leave their modes
    in another order than they entered them, the variable stays set: `torch.compile` then captures
    nothing, and the guards of what it has captured fail. So an `OwnMode` sets the variable on exit
    to what this thread's modes say.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it PyTorch would import it, which takes seconds

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Guards of captured code pass over this mode."""
        return True

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if getattr(dispatch, _FLAG, False):
            stack = map(dispatch_mode_at, range(dispatch_depth()))
            is_on = not all(mode.ignore_compile_internals() for mode in stack)
            setattr(dispatch, _FLAG, is_on)
            _C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals(is_on)


def run_as_it_is(function: _F) -> _F:
    """Return the function, whose frame `torch.compile` does not capture. It may capture those of
    the functions that it calls."""
    action: Any = _frames._FrameAction
    strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    _frames.set_code_exec_strategy(function.__code__, strategy)
    return function
