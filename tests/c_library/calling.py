"""Calls exported C: by ctypes, and its self-test under sanitizers."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowtide.runtime import toolchain
from lowtide.torch_private.pytree import leaves
from tests.c_library import header

OK, BAD_SIZE, SMALL_WORKSPACE, BAD_INDEX, BAD_WEIGHTS, RAISED, NULL = range(7)
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]


class Library:
    """The library that `lt.export_c` has written to a folder, with its weights and state."""

    def __init__(self, folder: Path, name: str = "model") -> None:
        self.c = ctypes.CDLL(str(folder / f"lib{name}.so"))
        self.name = name
        text = (folder / f"{name}.h").read_text()
        self.functions = header.functions(text)
        self.workspace = torch.empty(1)
        self.file = torch.empty(0, dtype=torch.uint8)
        self.weights: _Weights | None = None
        self.state: ctypes.Array[ctypes.c_char] | None = None
        path = folder / f"{name}_weights.bin"
        if path.exists():
            assert self.open(path.read_bytes()) == OK
        if nbytes := header.state_bytes(text):
            assert self.start(nbytes) == OK

    def open(self, raw: bytes) -> int:
        """Open and verify a file of weights; return the status."""
        self.file, at = _aligned(len(raw))
        ctypes.memmove(at, raw, len(raw))
        self.weights = _Weights()
        given = ctypes.byref(self.weights), ctypes.c_void_p(at), ctypes.c_size_t(len(raw))
        opened = self.c[f"{self.name}_weights_open"](*given)
        return opened or self.c[f"{self.name}_weights_verify"](given[0])

    def start(self, nbytes: int) -> int:
        """Set a state of at most so many bytes to its first values; return the status."""
        self.state = ctypes.create_string_buffer(nbytes)
        given = None if self.weights is None else ctypes.byref(self.weights)
        return self.c[f"{self.name}_state_init"](self.state, given)

    def results(self, function: str, *args: Any) -> tuple[int, list[Any]]:
        """Call a function with the arguments of Python; return its status and its results."""
        f = self.functions[function]
        flat = [a for a in leaves(args) if isinstance(a, Tensor | int | float)]
        given = [
            (a.contiguous() if isinstance(a, Tensor) else float(a) if g.kind == "float" else a)
            for g, a in zip(f.inputs, _numeric(flat, f), strict=True)
        ]
        symbols = _symbols(f, given)
        if any(symbols.get(n, n) != (int(n) if n.isdigit() else symbols[n]) for n in symbols):
            return BAD_SIZE, []  # a constant of the program is another one
        sizes = [symbols[s.symbol] for s in f.sizes]
        shapes = self.shapes(f, sizes)
        if shapes is None:
            return BAD_SIZE, []
        outs: list[Tensor | tuple[Tensor, Tensor]] = []
        for g, shape in zip(f.outputs, shapes, strict=True):
            memory = torch.full((math.prod(shape) + 1,), 1, dtype=g.dtype)
            counted = torch.zeros(max(len(shape), 1), dtype=torch.int64)
            outs.append((memory[:-1], counted) if g.is_counted else memory)
        status = self(function, sizes, given, outs)
        found: list[Any] = []
        for g, shape, out in zip(f.outputs, shapes, outs, strict=True):
            memory, n = (out[0], out[1].tolist()) if isinstance(out, tuple) else (out, list(shape))
            n = n[: len(shape)]
            found.append(memory[: math.prod(n)].view(n) if status == OK else None)
            if not isinstance(out, tuple):
                assert out[-1] == 1, f"written beyond {g.name}"
        return status, found

    def shapes(self, f: header.Function, sizes: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs, the largest possible ones where data decide."""
        made = [torch.zeros(max(len(g.shape), 1), dtype=torch.int64)
                for g in f.outputs if g.shape is not None]  # fmt: skip
        numbers = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        status = self.c[f"{self.name}_{f.name}_output_shapes"](numbers, *map(_c_value, made))
        rest = iter(made)
        if status:
            return None
        return [
            () if g.shape is None else tuple(next(rest).tolist()[: len(g.shape)]) for g in f.outputs
        ]

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
        self.workspace, at = _aligned(nbytes)
        args: list[Any] = [_c_value(x) for x in given]
        for out in outs:
            if isinstance(out, tuple):
                memory, shape = out
                args += [_c_value(memory), ctypes.c_int64(memory.numel()), _c_value(shape)]
            else:
                args.append(_c_value(out))
        args.append(None if self.weights is None else ctypes.byref(self.weights))
        args += [*([self.state] if self.state is not None else []), ctypes.c_void_p(at)]
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


class _Weights(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_void_p), ("n_bytes", ctypes.c_size_t)]


def _aligned(nbytes: int) -> tuple[Tensor, int]:
    memory = torch.full((nbytes + 128,), 77, dtype=torch.uint8)
    return memory, (memory.data_ptr() + 63) // 64 * 64


def _numeric(flat: Sequence[Any], f: header.Function) -> list[Any]:
    """Return the arguments without the flags of the example, which are constants."""
    return [a for a in flat if type(a) is not bool] if len(flat) > len(f.inputs) else list(flat)


def _symbols(f: header.Function, given: Sequence[Any]) -> dict[str, int]:
    """Return the value of each size of a call."""
    found: dict[str, int] = {}
    for g, a in zip(f.inputs, given, strict=True):
        if isinstance(a, Tensor):
            found.update(zip(g.shape or (), a.shape, strict=True))
        for s in f.sizes:
            if not isinstance(a, Tensor) and g.name in s.dims:
                found[s.symbol] = int(a)
    return found


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
