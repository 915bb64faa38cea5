"""What cuDNN's recurrent layers take, as cuDNN tells.

In: the form of a call. Out: bytes, of the current device; None where no cuDNN is loaded, or it
refuses. Only functions of NVIDIA's documented interface are called (cuDNN 8 and 9, cudnn_adv.h,
cudnn_ops.h), with what PyTorch calls them with.

    sizes(Asked(mode=2, dtype=torch.float32, …))    Sizes(weights=…, reserve=…, workspace=…, …)
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

DTYPES: Final = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 9}

_ALGORITHMS: Final = 0, 1, 3  # standard, persistent, persistent for small states
_MATH: Final = 0, 1, 3  # default, tensor cores, without these
_DOUBLE_BIAS, _LINEAR_INPUT = 2, 0
_PADDED: Final = 1
_STEP_BY_STEP, _PACKED = 0, 1
_lock: Final = threading.Lock()
_NOWHERE: Final = ctypes.c_void_p(256)
NAMES: Final = (
    "Create", "CreateDropoutDescriptor", "DestroyDropoutDescriptor", "SetDropoutDescriptor",
    "RestoreDropoutDescriptor", "DropoutGetStatesSize", "CreateRNNDescriptor",
    "DestroyRNNDescriptor", "SetRNNDescriptor_v8", "CreateRNNDataDescriptor",
    "DestroyRNNDataDescriptor", "SetRNNDataDescriptor", "GetRNNTempSpaceSizes",
    "GetRNNWeightSpaceSize",
)  # fmt: skip

_LIBRARIES: Final = None, "libcudnn.so.9", "libcudnn.so.8"  # None: what all of the process see
_ONLY_LOADED: Final = getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_NOW", 0)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The form of a call. `lengths`: of each sequence, the longest first."""

    mode: int
    dtype: torch.dtype
    input_size: int
    hidden: int
    projected: int  # 0: it is not
    num_layers: int
    bidirectional: bool
    dropout: float
    train: bool
    lengths: tuple[int, ...]
    is_packed: bool


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes. `reserve`: kept for the backward pass; `dropout_state`: once in a process."""

    weights: int
    workspace: int
    reserve: int
    dropout_state: int


class _Refused(Exception):
    pass


def sizes(asked: Asked) -> Sizes | None:
    """See the module's text."""
    device = _device()
    with _lock:  # a handle is for one thread at a time
        return None if device is None else _sizes(asked, device)


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_available() else None


@functools.lru_cache(256)
def _sizes(asked: Asked, device: int) -> Sizes | None:
    try:
        handle = _handle(device)
        found = [_of(handle, asked, algorithm, math) for algorithm in _ALGORITHMS for math in _MATH]
    except _Refused:
        return None
    known = [one for one in found if one is not None]
    if not known:
        return None
    most: dict[str, int] = {}
    for one in known:
        most |= {name: max(n, most.get(name, 0)) for name, n in vars(one).items()}
    return Sizes(**most)


def forget() -> None:
    """What was asked so far: PyTorch's cuDNN is another one now, as in a test."""
    _sizes.cache_clear()
    _handle.cache_clear()
    _functions.cache_clear()


def _of(handle: Any, asked: Asked, algorithm: int, math: int) -> Sizes | None:
    """None where cuDNN has no such algorithm for it."""
    try:
        with (
            _dropout(handle, asked.dropout) as (dropout, state_bytes),
            _layers(asked, algorithm, math, dropout) as layers,
            _sequences(asked) as sequences,
        ):
            weights, workspace, reserve = (ctypes.c_size_t() for _ in range(3))
            _call("GetRNNWeightSpaceSize", handle, layers, ctypes.byref(weights))
            kept = ctypes.byref(reserve) if asked.train else None
            taken = ctypes.byref(workspace), kept
            _call("GetRNNTempSpaceSizes", handle, layers, int(asked.train), sequences, *taken)
    except _Refused:
        return None
    return Sizes(
        weights=weights.value,
        workspace=workspace.value,
        reserve=reserve.value,
        dropout_state=state_bytes,
    )


@contextmanager
def _dropout(handle: Any, p: float) -> Generator[tuple[Any, int]]:
    """A descriptor and the bytes of its state, of which none is made: nothing is drawn."""
    with _descriptor("Dropout") as made:
        nbytes, seed = ctypes.c_size_t(), ctypes.c_ulonglong()
        how, state = "SetDropoutDescriptor", None
        if p:
            _call("DropoutGetStatesSize", handle, ctypes.byref(nbytes))
            how, state = "RestoreDropoutDescriptor", _NOWHERE  # to set would be to draw
        _call(how, made, handle, ctypes.c_float(p), state, nbytes, seed)
        yield made, nbytes.value


@contextmanager
def _layers(asked: Asked, algorithm: int, math: int, dropout: Any) -> Generator[Any]:
    dtype = DTYPES[asked.dtype]
    computed = DTYPES[torch.float32] if asked.dtype.itemsize == 2 else dtype
    with _descriptor("RNN") as made:
        _call(
            "SetRNNDescriptor_v8", made, algorithm, asked.mode, _DOUBLE_BIAS,
            int(asked.bidirectional), _LINEAR_INPUT, dtype, computed, math, asked.input_size,
            asked.hidden, asked.projected or asked.hidden, asked.num_layers, dropout,
            0 if asked.is_packed else _PADDED,
        )  # fmt: skip
        yield made


@contextmanager
def _sequences(asked: Asked) -> Generator[Any]:
    lengths = (ctypes.c_int * len(asked.lengths))(*asked.lengths)
    layout = _PACKED if asked.is_packed else _STEP_BY_STEP
    with _descriptor("RNNData") as made:
        _call(
            "SetRNNDataDescriptor", made, DTYPES[asked.dtype], layout, max(asked.lengths),
            len(asked.lengths), asked.input_size, lengths, None,
        )  # fmt: skip
        yield made


@contextmanager
def _descriptor(kind: str) -> Generator[Any]:
    made = ctypes.c_void_p()
    _call(f"Create{kind}Descriptor", ctypes.byref(made))
    try:
        yield made
    finally:
        _call(f"Destroy{kind}Descriptor", made)


@functools.cache
def _handle(device: int) -> Any:
    """Of the current device. Raises _Refused."""
    made = ctypes.c_void_p()
    _call("Create", ctypes.byref(made))
    return made


def _call(name: str, *args: Any) -> None:
    """Raises _Refused."""
    functions = _functions()
    if functions is None or functions[name](*args) != 0:
        raise _Refused(name)


@functools.cache
def _functions() -> dict[str, Callable[..., int]] | None:
    """Those of the cuDNN that PyTorch has loaded; None if none is, or it is another generation."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name, mode=_ONLY_LOADED)
            return {name: getattr(library, f"cudnn{name}") for name in NAMES}
        except (OSError, TypeError, AttributeError):
            continue
    return None
