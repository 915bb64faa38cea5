"""When a call runs as plain Python: what Lowtide must not get in the way of.

In: the state of the process and the thread. Out: a reason, "" where compiled code may run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lowtide import config
from lowtide.torch_private.autograd import forward_level
from lowtide.torch_private.modes import (
    DeviceContext,
    any_autocast,
    dispatch_depth,
    function_modes,
    function_modes_on,
    is_recording,
    precision_of,
    transform,
)
from lowtide.torch_private.tensors import has_storage

_config = config.current


def in_transform(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether a torch.func transform or vmap is at work, or one of the tensors is of its
    making, without memory of its own."""
    if transform() is not None:
        return True
    return not all(has_storage(x) for x in tensors if x is not None)


def default_device() -> torch.device | None:
    """Return the device of tensors that this thread makes without naming one; None if none is
    set."""
    return next((mode.device for mode in function_modes() if type(mode) is DeviceContext), None)


def autocast_on() -> bool:
    """Return whether it is, for a device that we compile for."""
    return any_autocast() and any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the lower dtype of autocast on such devices; None where it is off."""
    on = autocast_on() and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if on else None


def may_round_operands() -> bool:
    """Return whether the user lets the CPU's products of float32 round their operands, as by
    `torch.set_float32_matmul_precision("medium")`."""
    return precision_of("mkldnn", "matmul") in ("bf16", "tf32")


def may_add(machine: str) -> bool:
    """Return whether kernels may add at places that are data. The CPU's add in a fixed order, a
    GPU's in any order, which deterministic mode forbids."""
    return machine == "cpu" or not torch.are_deterministic_algorithms_enabled()


def surroundings(orders: bool = False) -> tuple[Any, ...]:
    """Return the settings on which a call depends; () for PyTorch's defaults. `orders`: include
    whether PyTorch must be deterministic."""
    if orders:
        return (torch.are_deterministic_algorithms_enabled(), *surroundings())
    if not (function_modes_on() or autocast_on()):
        return ()
    found = default_device(), autocast_dtype("cpu"), autocast_dtype("cuda")
    return () if found == (None, None, None) else found


def _is_harmless(mode: Any) -> bool:
    """Return whether a mode is PyTorch's default device, or a dispose scope, which gets the results
    of compiled code (`memory/watching`)."""
    return type(mode) is DeviceContext or getattr(mode, "takes_results", False)


def reason() -> str:
    """Why nothing is compiled just now."""
    if dispatch_depth() > 0 or (
        function_modes_on() and not all(map(_is_harmless, function_modes()))
    ):
        return "a TorchFunctionMode or TorchDispatchMode is on"
    if transform() is not None:
        return "inside a torch.func transform"
    if is_recording():
        return "torch.jit.trace is recording"
    if forward_level() >= 0:
        return "inside forward-mode differentiation"
    if torch.get_default_dtype() is not torch.float32:
        return "the default dtype is not float32"
    return "LOWTIDE_DISABLE=1" if _config().disable else ""
