"""Builds every function of the vector library into a shared object, each in a loop over arrays.

In: lanes, vector bytes, compiler command, flags.
Out: `Library`, called as `library("exp_f32", x)` with numpy arrays.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lowtide import vecmath
from lowtide.vecmath.snippet import Layout, prototype

FLAGS = [
    "-std=gnu11",
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-nostdlib",
    "-shared",
    "-fPIC",
]
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-Wno-unused-function",
    "-Wno-missing-field-initializers",
]
_NUMPY = {
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "u32": np.uint32,
    "u64": np.uint64,
    "u8": np.uint8,
    "i8": np.int8,
    "u16": np.uint16,
    "i16": np.int16,
}
_SCALAR = {
    "int": np.int32,
    "float": np.float32,
    "double": np.float64,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "uint8_t": np.uint8,
}
MEMORY = ("f32", "f64", "i32", "i64", "u8", "bf16", "f16", "bool")


def gcc() -> list[str] | None:
    found = shutil.which("gcc")
    return [found] if found else None


def zig() -> list[str] | None:
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


class Library:
    """The compiled functions; vector parameters are arrays of a multiple of the lanes."""

    def __init__(
        self, folder: Path, lanes: int, vector_bytes: int, compiler: list[str], flags: list[str]
    ) -> None:
        self.lanes = lanes
        layout = Layout(lanes=lanes, vector_bytes=vector_bytes)
        protos = {n: prototype(s.text(layout)) for n, s in vecmath.NAMES.items()}
        self._protos = {
            n: p
            for n, p in protos.items()
            if p.result != "void"
            and not any("*" in kind for kind, _ in p.params)
            and n not in ("floordiv_lane",)
        }
        loops = [self._loop(n) for n in self._protos] + [_access(d, protos) for d in MEMORY]
        source = folder / f"all_{lanes}_{vector_bytes}.c"
        self.path = source.with_suffix(".so")
        text = vecmath.types(lanes, vector_bytes) + vecmath.functions(
            vecmath.NAMES, lanes, vector_bytes
        )
        source.write_text(text + "\n" + "\n".join(loops))
        subprocess.run(
            [*compiler, *FLAGS, *WARNINGS, *flags, str(source), "-o", str(self.path)], check=True
        )
        self.so = ctypes.CDLL(str(self.path))

    def _loop(self, name: str) -> str:
        proto = self._protos[name]
        kinds = [kind for kind, _ in proto.params]
        args = ", ".join(
            f"*(const {k}_u *)((const char *)p{i} + j * sizeof({k}))"
            if k.endswith("v")
            else f"*(const {k} *)p{i}"
            for i, k in enumerate(kinds)
        )
        params = ", ".join(f"const void *p{i}" for i in range(len(kinds)))
        loose = proto.result + ("_u" if proto.result.endswith("v") else "")
        return (
            f"void run_{name}(long n, void *out, {params}) {{\n  for (long j = 0; j < n; j++)\n"
            f"    *({loose} *)((char *)out + j * sizeof({proto.result})) = {name}({args});\n}}"
        )

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        """`name` over whole arrays; folds give one value per vector."""
        proto = self._protos[name]
        count = len(arrays[0])
        pad = -count % self.lanes
        given: list[np.ndarray] = []
        for (kind, _), array in zip(proto.params, arrays, strict=True):
            dtype = _NUMPY[kind[:-1]] if kind.endswith("v") else _SCALAR[kind]
            padded = (
                np.concatenate([array, np.repeat(array[-1:], pad)]) if kind.endswith("v") else array
            )
            given.append(np.ascontiguousarray(padded, dtype=dtype))
        vectors = (count + pad) // self.lanes
        folded = not proto.result.endswith("v")
        dtype = _SCALAR[proto.result] if folded else _NUMPY[proto.result[:-1]]
        out = np.empty(vectors if folded else vectors * self.lanes, dtype=dtype)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *given)]
        self.so[f"run_{name}"](ctypes.c_long(vectors), *pointers)
        return out if folded else out[:count]


def _access(dtype: str, protos: dict[str, object]) -> str:
    """C of two functions that copy with the library's loads and stores.

    copy_part_<dtype>(to, from, n)
    copy_strided_<dtype>(to, from, to_stride, from_stride, n)
    """
    raw = {
        "f32": "float",
        "f64": "double",
        "i32": "int32_t",
        "i64": "int64_t",
        "u8": "uint8_t",
        "bool": "uint8_t",
    }
    c = raw.get(dtype, "uint16_t")
    return (
        f"void copy_{dtype}({c} *to, const {c} *p) {{ store_{dtype}(to, load_{dtype}(p)); }}\n"
        f"void copy_part_{dtype}({c} *to, const {c} *p, int n)"
        f" {{ store_part_{dtype}(to, load_part_{dtype}(p, n), n); }}\n"
        f"void widen_part_{dtype}({c} *to, const {c} *p, int n)"
        f" {{ store_{dtype}(to, load_part_{dtype}(p, n)); }}\n"
        f"void copy_strided_{dtype}({c} *to, const {c} *p, int64_t s, int64_t t, int n)"
        f" {{ store_strided_{dtype}(to, s, load_strided_{dtype}(p, t, n), n); }}"
    )
