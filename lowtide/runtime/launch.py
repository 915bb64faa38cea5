"""Calls compiled kernels: packs the slots into one buffer, and makes one foreign call without GIL.

In:  a loaded library, a symbol, and the kinds of its slots (`abi.py`).
Out: a `Kernel`, called with the values of slots 2 and up; it fills in the first two.

    kernel = bind(library, "scale", "PPqd")
    kernel(out.data_ptr(), x.data_ptr(), x.numel(), 2.0)      # 2 µs, and the kernel's own time

A kernel may be called from many threads at once: each call packs its own buffer.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable

import torch

from lowtide.errors import BackendError
from lowtide.runtime import abi


def parallel_for_address() -> int:
    """Return the address of `torch_parallel_for`, 0 if this build of torch does not export it."""
    return torch_function("torch_parallel_for")


@functools.cache
def torch_function(name: str) -> int:
    """Return the address of a function of torch's libraries, 0 if this build does not export it."""
    for library in _torch_libraries():
        try:
            function = library[name]
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _torch_libraries() -> list[ctypes.CDLL]:
    """Return handles of libraries that torch has loaded, and that may have its symbols."""
    import os
    import sys

    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    name = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(
        sys.platform, "libtorch_cpu.so"
    )
    found: list[ctypes.CDLL] = []
    for path in (os.path.join(folder, name), None):
        try:
            found.append(ctypes.CDLL(path))
        except (OSError, TypeError):  # no such file in this build; None is refused on Windows
            continue
    return found


class Kernel:
    """One compiled function. `kernel(*slots)` packs slots 2 and up, runs it, returns its int64.

    `function` takes packed bytes; `pack` makes these from all slots, 0 and 1 included, by `layout`.
    Generated drivers use these directly.
    """

    __slots__ = (
        "_library",
        "_parallel_for",
        "_threads",
        "fmt",
        "function",
        "layout",
        "name",
        "pack",
    )

    def __init__(self, library: ctypes.CDLL, symbol: str, fmt: str) -> None:
        unknown = set(fmt) - set(abi.SLOT_CODES)
        if unknown:
            raise ValueError(f"slot codes {sorted(unknown)} in {fmt!r} are not of {abi.SLOT_CODES}")
        try:
            function = library[symbol]
        except AttributeError as fault:
            raise BackendError(f"the compiled library does not export `{symbol}`") from fault
        function.argtypes = (ctypes.c_char_p,)
        function.restype = ctypes.c_int64
        self.name = symbol
        self.fmt = fmt
        self.function: Callable[[bytes], int] = function
        self.layout = "@Pq" + fmt
        self.pack: Callable[..., bytes] = struct.Struct(self.layout).pack
        self._library = library  # keeps the code loaded
        self._parallel_for = parallel_for_address()
        self._threads = torch.get_num_threads

    def __call__(self, *slots: int | float) -> int:
        """Run the kernel. `slots`: a value for each character of `fmt`. Raises struct.error."""
        return self.function(self.pack(self._parallel_for, self._threads(), *slots))

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.fmt!r})"


def bind(library: ctypes.CDLL, symbol: str, fmt: str) -> Kernel:
    """Return the function `symbol` of a library as a kernel. `fmt`: the kinds of slots 2 and up.

    Raises BackendError if there is no such symbol, ValueError if `fmt` has an unknown kind.
    """
    return Kernel(library, symbol, fmt)
