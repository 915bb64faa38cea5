"""The type names that every kernel begins with: own stdint names and GNU vectors, no header.

In: the lane count and the hardware vector in bytes. Out: C typedefs.
Invariant: `f32v` has `lanes` lanes, `f32x8` has 8; an `…_u` type may be loaded from any address and
may alias.

    typedef float f32v __attribute__((vector_size(64)));
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Layout

SCALARS = {
    "f32": "float",
    "f64": "double",
    "i8": "int8_t",
    "u8": "uint8_t",
    "i16": "int16_t",
    "u16": "uint16_t",
    "i32": "int32_t",
    "u32": "uint32_t",
    "i64": "int64_t",
    "u64": "uint64_t",
}
ITEMSIZE = {name: int(name[1:]) // 8 for name in SCALARS}

_STDINT = """\
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
#define LT_INLINE static inline __attribute__((always_inline))
#ifdef __clang__ // whose vector builtins came one after another, from 14 on
#define LT_HAS(builtin) __has_builtin(builtin)
#else
#define LT_HAS(builtin) 0
#endif
#define LT_CALLED static __attribute__((noinline, unused))
"""


def split_lanes(layout: Layout) -> list[int]:
    """Lane counts below the kernel's at which a function may be printed."""
    return sorted({n for size in (1, 2, 4, 8) if (n := layout.hardware_lanes(size)) < layout.lanes})


def types(lanes: int, vector_bytes: int) -> str:
    """Return the C typedefs for kernels of `lanes` lanes on hardware vectors of `vector_bytes`
    bytes."""
    layout = Layout(lanes=lanes, vector_bytes=vector_bytes)
    rows = [_vectors("v", lanes)]
    rows += [_vectors(f"x{n}", n) for n in split_lanes(layout)]
    return _STDINT + "\n".join(rows) + "\n"


def _vectors(suffix: str, lanes: int) -> str:
    rows: list[str] = []
    for name, scalar in SCALARS.items():
        size = f"vector_size({lanes * ITEMSIZE[name]})"
        rows.append(f"typedef {scalar} {name}{suffix} __attribute__(({size}));")
        loose = f"{size}, aligned({ITEMSIZE[name]}), may_alias"
        rows.append(f"typedef {scalar} {name}{suffix}_u __attribute__(({loose}));")
    return "\n".join(rows)
