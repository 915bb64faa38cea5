"""When a call runs as plain Python: what Lowtide must not get in the way of.

In: the state of the process and the thread. Out: a reason, "" where compiled code may run.
PyTorch's private flags are read here and nowhere else; one that this PyTorch lacks counts as off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from lowtide import config
from lowtide.ir.core import Function

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]


def _never(*_: object) -> Any:
    return False


def _flag(name: str) -> Callable[..., Any]:
    return getattr(_C, name, _never)


function_modes_on: Callable[[], bool] = _flag("_is_torch_function_mode_enabled")
_depth: Callable[[], int] = getattr(_C, "_len_torch_function_stack", lambda: 0)
_mode_at: Callable[[int], Any] = getattr(_C, "_get_function_stack_at", _never)
_dispatch_modes: Callable[[], int] = _flag("_len_torch_dispatch_stack")
_dispatch_mode_at: Callable[[int], Any] = _flag("_get_dispatch_stack_at")
_transform = getattr(getattr(_C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_is_recording: Callable[[], bool] = _flag("_is_tracing")
_any_autocast: Callable[[], bool] = getattr(_C, "_is_any_autocast_enabled", lambda: True)
_keeps_graph: Callable[[], bool] = getattr(
    getattr(_C, "_autograd", None), "_get_current_graph_task_keep_graph", lambda: True
)
_has_storage: Callable[[torch.Tensor], bool] = getattr(_C, "_has_storage", lambda _: True)
_config = config.current


def in_transform(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether a torch.func transform or vmap is at work, or one of the tensors is of its making,
    without memory of its own."""
    if _transform() is not None:
        return True
    return not all(_has_storage(x) for x in tensors if x is not None)


def keeps_graph() -> bool:
    """Whether the backward pass that is running may be run again. Unknown counts as yes."""
    return _keeps_graph()


def default_device() -> torch.device | None:
    """Where this thread makes tensors that name no device; None where nobody has said."""
    return next((mode.device for mode in _modes() if type(mode) is DeviceContext), None)


def autocast_on() -> bool:
    """Whether it is, for a device that we compile for."""
    return _any_autocast() and any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


_AUTOCASTS: Final = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")


def may_cast(function: Function) -> bool:
    """Whether autocast is on, or may be within the program."""
    return autocast_on() or any(op.attrs.get("target") in _AUTOCASTS for op in function.walk())


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The lower dtype of autocast on such devices; None where it is off."""
    on = autocast_on() and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if on else None


def in_any_order(machine: str) -> bool:
    """May kernels for it add up in any order? Not on the CPU, and not where PyTorch is to be
    deterministic."""
    return machine != "cpu" and not torch.are_deterministic_algorithms_enabled()


def surroundings(orders: bool = False) -> tuple[Any, ...]:
    """What a call means depends on these, too; () for PyTorch's defaults. `orders`: also on whether
    it is to be deterministic."""
    if orders:
        return (torch.are_deterministic_algorithms_enabled(), *surroundings())
    if not (function_modes_on() or autocast_on()):
        return ()
    found = default_device(), autocast_dtype("cpu"), autocast_dtype("cuda")
    return () if found == (None, None, None) else found


def _modes() -> list[Any]:
    return [_mode_at(k) for k in range(_depth())]


def _is_harmless(mode: Any) -> bool:
    """PyTorch's default device, which decides where tensors are made; a dispose scope, which is
    told what compiled code gives (`memory/watching`)."""
    return type(mode) is DeviceContext or getattr(mode, "may_be_told", False)


def reason() -> str:
    """Why nothing is compiled just now."""
    if _dispatch_modes() > 0 or (function_modes_on() and not all(map(_is_harmless, _modes()))):
        return "a TorchFunctionMode or TorchDispatchMode is on"
    if _transform() is not None:
        return "inside a torch.func transform"
    if _is_recording():  # torch.onnx.export does, too
        return "torch.jit.trace is recording"
    if forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
        return "inside forward-mode differentiation"
    if torch.get_default_dtype() is not torch.float32:
        return "the default dtype is not float32"
    return "LOWTIDE_DISABLE=1" if _config().disable else ""
