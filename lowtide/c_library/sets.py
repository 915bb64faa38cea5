"""The instruction sets that an exported library has kernels for.

In: this machine's compiler. Out: for each set, the compiler whose kernels are printed.

    avx512   kernels of 64 bytes a vector       #if LT_BYTES >= 64
    avx2     of 32                              #elif LT_BYTES >= 32
    base     of 16                              #else

Kernels are planned for a size of vectors: those of 64 bytes would be several times as long, and
slow, where registers have 16. Sets beyond those of this machine get the kernels of the next one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from lowtide import config
from lowtide.runtime import toolchain

# Of x86-64, the best first: the features that a machine needs, and the compiler's flags.
SETS: Final[dict[str, tuple[str, ...]]] = {
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "bmi", "bmi2"),
    "avx2": ("avx2", "fma", "bmi", "bmi2"),
    "base": (),
}
_NARROWER: Final = {32: "-mno-avx512f", 16: "-mno-avx"}  # by the bytes of a vector
BYTES: Final = """\
#if defined(__AVX512F__)
#define LT_BYTES 64
#elif defined(__AVX__)
#define LT_BYTES 32
#else
#define LT_BYTES 16
#endif"""


def each_set() -> Iterator[int]:
    """Yield the bytes of a vector for this machine and for each set with shorter ones, and have
    kernels planned for these until the next step."""
    found = toolchain.compiler()
    yield found.target.vector_bytes
    if found.target.arch != "x86_64":
        return
    for nbytes, flag in _NARROWER.items():
        if nbytes < found.target.vector_bytes:
            with config.override(compiler=shlex.join([*found.command, flag])):
                if toolchain.target().vector_bytes == nbytes:
                    yield nbytes
