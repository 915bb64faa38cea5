"""Calls exported C: by ctypes, and its self-test under sanitizers."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowtide.runtime import toolchain

OK, BAD_SIZE, SMALL_WORKSPACE, BAD_INDEX, BAD_WEIGHTS, RAISED, NULL = range(7)
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]


class Library:
    """The library that `lt.export_c` has written to a folder."""

    def __init__(self, folder: Path, name: str = "model") -> None:
        self.c = ctypes.CDLL(str(folder / f"lib{name}.so"))
        self.name = name
        self.state: ctypes.Array[ctypes.c_char] | None = None
        self.workspace = torch.empty(1)

    def start(self, nbytes: int) -> int:
        """Set a state of at most so many bytes to its first values; return the status."""
        self.state = ctypes.create_string_buffer(nbytes)
        return self.c[f"{self.name}_state_init"](self.state, None)

    def __call__(
        self,
        function: str,
        sizes: Sequence[int],
        given: Sequence[Any],
        outs: Sequence[Tensor | tuple[Tensor, Tensor]],
    ) -> int:
        """Call a function; return its status. An output that is a pair is (memory, shape)."""
        numbers = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        needed = self.c[f"{self.name}_{function}_workspace_bytes"]
        needed.restype = ctypes.c_size_t
        nbytes = needed(numbers)
        self.workspace = torch.full((nbytes + 128,), 77, dtype=torch.uint8)
        at = (self.workspace.data_ptr() + 63) // 64 * 64
        args: list[Any] = [_c_value(x) for x in given]
        for out in outs:
            if isinstance(out, tuple):
                memory, shape = out
                args += [_c_value(memory), ctypes.c_int64(memory.numel()), _c_value(shape)]
            else:
                args.append(_c_value(out))
        args += [None, *([self.state] if self.state is not None else []), ctypes.c_void_p(at)]
        status = self.c[f"{self.name}_{function}"](numbers, *args, ctypes.c_size_t(nbytes), None)
        after = self.workspace[at - self.workspace.data_ptr() + nbytes :]
        assert bool((after == 77).all()), "written beyond the workspace"
        return status

    def message(self, function: str) -> str:
        """Return what the last call raised."""
        at = (self.workspace.data_ptr() + 63) // 64 * 64
        read = self.c[f"{self.name}_{function}_message"]
        read.restype = ctypes.c_char_p
        return read(ctypes.c_void_p(at)).decode()


def _c_value(x: Any) -> Any:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return ctypes.c_double(x) if isinstance(x, float) else ctypes.c_int64(x)


def sanitized(folder: Path, name: str = "model") -> str:
    """Build and run the self-test with AddressSanitizer and UndefinedBehaviorSanitizer."""
    found = toolchain.compiler()
    flags = [f for f in found.flags if not f.startswith(("-O", "-shared", "-nostdlib"))]
    program = folder / "sanitized"
    row = [*found.command, *flags, "-O1", *SANITIZERS, "-o", str(program),
           str(folder / f"{name}.c"), str(folder / f"{name}_selftest.c"), "-lm"]  # fmt: skip
    subprocess.run(row, check=True, cwd=folder)
    run = subprocess.run([program], cwd=folder, capture_output=True, text=True, check=False,
                         env={"ASAN_OPTIONS": "detect_leaks=0"})  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
